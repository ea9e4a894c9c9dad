"""The source's mix of nine API calls, and virtual users that make them one after the other.

All users start at once and wait for each response before the next call. Failures are counted and the user continues.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from experiments.errors import FleetFailedError
from experiments.reproduce.client import Client


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
EACH = sum(call.times for call in MIX)
"""Calls of one user; the source's 19 000 are those of 500 users."""


@dataclass(frozen=True, slots=True)
class Made:
    """A finished call: start in seconds from the run's start, duration in seconds, status; status 0 if it broke."""

    name: str
    at: float
    took: float
    status: int

    @property
    def is_ok(self) -> bool:
        return 200 <= self.status < 400


class Users:
    """Virtual users of one address. `made` holds finished calls, `span` the total seconds."""

    def __init__(self, address: tuple[str, int], progress: Callable[[int], None]) -> None:
        self._address, self._progress = address, progress
        self.made: list[Made] = []
        self.span = 0.0

    async def run(self, count: int) -> None:
        """Run `count` users at once, each with all calls of the mix. Raises `FleetFailedError`."""
        self._began_at = time.monotonic()
        await all_of(self._user() for _ in range(count))
        self.span = time.monotonic() - self._began_at

    async def trickle(self, calls: int, gap: float, rng: Random) -> None:
        """Open loop: random calls of the mix on new connections, at Poisson instants `gap` seconds apart on average."""
        self._began_at = time.monotonic()
        await all_of(self._stranger(call, at) for call, at in trickling(calls, gap, rng))
        self.span = time.monotonic() - self._began_at

    async def _user(self) -> None:
        client = Client(*self._address)
        try:
            for call in MIX:
                for _ in range(call.times):
                    await self._make(client, call)
        finally:
            client.close()

    async def _stranger(self, call: Call, at: float) -> None:
        await asyncio.sleep(self._began_at + at - time.monotonic())
        client = Client(*self._address)
        try:
            await self._make(client, call)
        finally:
            client.close()

    async def _make(self, client: Client, call: Call) -> None:
        at = time.monotonic() - self._began_at
        answer = await client.ask(call.method, "/work", call.body)
        self.made.append(Made(call.name, at, answer.took, answer.status))
        if len(self.made) % 100 == 0:
            self._progress(len(self.made))


def trickling(calls: int, gap: float, rng: Random) -> Iterator[tuple[Call, float]]:
    """Calls drawn by their share of the mix, with Poisson instants in seconds."""
    at = 0.0
    for call in rng.choices(MIX, [call.times for call in MIX], k=calls):
        at += rng.expovariate(1 / gap)
        yield call, at


async def all_of(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines concurrently; the first failure cancels the others. Raises `FleetFailedError`."""
    try:
        async with asyncio.TaskGroup() as group:
            for one in work:
                group.create_task(one)
    except* FleetFailedError as failures:
        raise failures.exceptions[0] from None
