"""The source's mix of nine API calls, and virtual users that make them one after the other.

All users start at once and wait for each response before the next call. Failures are counted and the user continues.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from experiments.platform.processes import all_of
from experiments.reproduce.client import Answer, Client, ask_once


@dataclass(frozen=True, slots=True)
class Call:
    """One kind of call, made `times` times by every user. `size`: bytes of its body."""

    name: str
    method: str
    times: int
    size: int = 0

    @property
    def body(self) -> bytes:
        return json.dumps({"call": self.name, "data": "x" * self.size}).encode() if self.size else b""


MIX = (
    Call("create zone", "POST", 1, 120),
    Call("create DNS records", "POST", 10, 160),
    Call("list records", "GET", 3),
    Call("change mode on", "PATCH", 1, 40),
    Call("update records", "PUT", 10, 160),
    Call("change mode off", "PATCH", 1, 40),
    Call("purge caches", "POST", 1, 60),
    Call("delete records", "DELETE", 10),
    Call("delete zone", "DELETE", 1),
)
CALLS_PER_USER = sum(call.times for call in MIX)
"""The source's 19 000 calls are those of 500 users."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Finished calls, within `span` seconds."""

    answers: list[Answer]
    span: float


async def user_calls(address: tuple[str, int], users: int, progress: Callable[[int], None]) -> Calls:
    """Run `users` at once, each with all calls of the mix on a connection of its own. Raises `FleetFailedError`."""
    answers: list[Answer] = []
    began_at = time.monotonic()

    async def user() -> None:
        client = Client(*address)
        try:
            for call in MIX:
                for _ in range(call.times):
                    answers.append(await client.ask(call.method, call.body, call.name))
                    if len(answers) % 100 == 0:
                        progress(len(answers))
        finally:
            client.close()

    await all_of(user() for _ in range(users))
    return Calls(answers, time.monotonic() - began_at)


async def random_calls(address: tuple[str, int], calls: int, gap: float, rng: Random) -> Calls:
    """Open loop: calls drawn from the mix, on new connections, at Poisson instants `gap` seconds apart on average."""
    answers: list[Answer] = []
    began_at = time.monotonic()

    async def ask(call: Call, at: float) -> None:
        await asyncio.sleep(began_at + at - time.monotonic())
        answers.append(await ask_once(address, call.method, call.body, call.name))

    await all_of(ask(call, at) for call, at in random_instants(calls, gap, rng))
    return Calls(answers, time.monotonic() - began_at)


def random_instants(calls: int, gap: float, rng: Random) -> Iterator[tuple[Call, float]]:
    """Calls drawn by their share of the mix, with Poisson instants in seconds."""
    at = 0.0
    for call in rng.choices(MIX, [call.times for call in MIX], k=calls):
        at += rng.expovariate(1 / gap)
        yield call, at
