"""Measurements of `reuse`: the nine calls through a balancer for each way to connect to a third party.

Each way has fresh third parties and a fresh balancer, in random order; the ways differ by two configuration lines only.
Times are those of the source, compressed by `time_scale`.

All users of the source's nine calls start at once and wait for each response before the next call. Failures are counted
and the user continues.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random

from experiments.platform.processes import Child, all_of
from experiments.reproduce import launch
from experiments.reproduce.client import Calls, ClientAnswer, OneCaller, scheduled
from experiments.reproduce.latency_summary import LatencySummary, summary_of
from experiments.reproduce.launch import UNVERIFIED, ConnectionCounts, Keys, connection_counts
from experiments.reproduce.reproduction import ReportProgress


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


async def user_calls(address: tuple[str, int], users: int, progress: Callable[[int], None]) -> Calls:
    """Run `users` at once, each with all calls of the mix on a connection of its own. Raises `FleetFailedError`."""
    answers: list[ClientAnswer] = []
    began_at = time.monotonic()

    async def user() -> None:
        with closing(OneCaller(*address)) as client:
            for call in MIX:
                for _ in range(call.times):
                    answers.append(await client.ask(call.method, call.body, call.name))
                    if len(answers) % 100 == 0:
                        progress(len(answers))

    await all_of(user() for _ in range(users))
    return Calls(answers, time.monotonic() - began_at)


def random_instants(calls: int, gap: float, rng: Random) -> Iterator[tuple[Call, float]]:
    """Calls drawn by their share of the mix, with Poisson instants in seconds."""
    at = 0.0
    for call in rng.choices(MIX, [call.times for call in MIX], k=calls):
        at += rng.expovariate(1 / gap)
        yield call, at


@dataclass(frozen=True, slots=True)
class LowTraffic:
    """Part with little traffic, not compressed: `calls` at Poisson instants, `gap` seconds apart on average, over
    `parties` third parties, so that each is called rarely.
    """

    parties: int = 8
    calls: int = 100
    gap: float = 0.5


@dataclass(frozen=True, slots=True)
class ReusePlan:
    """Seconds of the source's time, which `time_scale` compresses. `at_once`: concurrent calls of the service.

    Handshakes take milliseconds of Python on both ends, so the third party is `machines` processes. `idle`: range of
    the idle timeout after which it closes a connection without notice; `requests`: range of its request limit per
    connection.
    """

    users: int = 500
    at_once: int = 50
    machines: int = 2
    round_trip: float = 0.090
    service: tuple[float, float] = (0.100, 0.160)
    idle: tuple[float, float] = (4.5, 9.0)
    requests: tuple[int, int] = (20, 200)
    time_scale: float = 0.5
    low_traffic: LowTraffic = LowTraffic()

    @property
    def calls(self) -> int:
        return self.users * CALLS_PER_USER


QUICK = ReusePlan(users=14, at_once=7, machines=1, time_scale=0.25, low_traffic=LowTraffic(2, 12))


@dataclass(frozen=True, slots=True)
class Transport:
    """A way to connect, as keys of the endpoint."""

    name: str
    transport: str = "native"
    keep_alive: bool = True

    @property
    def why_absent(self) -> str:
        """Reason why it cannot take part; empty if it can."""
        missing = self.transport == "curl" and find_spec("pycurl") is None
        return "pycurl is not installed: pip install '.[curl]' in the checkout" if missing else ""


NEW_CONNECTIONS = Transport("new connection each time", keep_alive=False)
OURS = Transport("our pool")
TRANSPORTS = (NEW_CONNECTIONS, Transport("aiohttp session", "aiohttp"), Transport("libcurl", "curl"), OURS)


@dataclass(frozen=True, slots=True)
class TransportPart:
    """Calls of one part of the measurement with the balancer's connection counters."""

    calls: Calls
    connections: ConnectionCounts


@dataclass(frozen=True, slots=True)
class TransportRun:
    """All calls of the users by one transport, and those with little traffic through a balancer of its own."""

    transport: Transport
    load: TransportPart
    low_traffic: TransportPart

    def latency(self, time_scale: float) -> LatencySummary:
        """Statistics of all calls of the users, including failed ones, in the source's time."""
        calls = self.load.calls
        return summary_of([one.took for one in calls.answers], calls.span).scaled(time_scale)


async def measure(
    plan: ReusePlan, seed: int, folder: Path, progress: ReportProgress, ended: Callable[[TransportRun], None]
) -> None:
    """Measure every available transport. Raises `FleetFailedError`."""
    available = [transport for transport in TRANSPORTS if not transport.why_absent]
    loads: dict[Transport, TransportPart] = {}
    for transport in Random(seed).sample(available, len(available)):
        progress(f"{transport.name}: starting")
        loads[transport] = await load(transport, plan, seed, folder, progress)
    progress(f"little traffic by all {len(available)} at once")
    rare = await low_traffic(available, plan, seed, folder)
    for transport in available:
        ended(TransportRun(transport, loads[transport], rare[transport]))


async def load(
    transport: Transport, plan: ReusePlan, seed: int, folder: Path, progress: ReportProgress
) -> TransportPart:
    """Run all users by one transport."""
    async with AsyncExitStack() as stack:
        numbers = range(plan.machines)
        parties = [await third_party(plan, plan.time_scale, seed + number, stack) for number in numbers]
        balancer = await balancer_of(transport, parties, plan.at_once, folder, stack)
        calls = await user_calls(
            balancer.address,
            plan.users,
            lambda done: progress(f"{transport.name}: {done} of {plan.calls} calls"),
        )
        return TransportPart(calls, await connection_counts(balancer))


async def low_traffic(
    transports: Sequence[Transport], plan: ReusePlan, seed: int, folder: Path
) -> dict[Transport, TransportPart]:
    """The same calls at the same instants by all, each with its own balancer, to the same third parties."""
    low = plan.low_traffic
    async with AsyncExitStack() as stack:
        parties = [await third_party(plan, 1.0, seed + number, stack) for number in range(low.parties)]
        balancers = {one: await balancer_of(one, parties, plan.at_once, folder, stack) for one in transports}
        found: dict[Transport, TransportPart] = {}

        async def run(transport: Transport, balancer: Child) -> None:
            drawn = random_instants(low.calls, low.gap, Random(seed))
            requests = ((at, call.method, call.body, call.name) for call, at in drawn)
            calls = await scheduled(balancer.address, requests)
            found[transport] = TransportPart(calls, await connection_counts(balancer))

        await all_of(run(*pair) for pair in balancers.items())
        return found


async def third_party(plan: ReusePlan, time_scale: float, seed: int, stack: AsyncExitStack) -> Child:
    """Start an emulated third party without TLS session resumption, because the source's client used none."""
    low, high = (f"{1e3 * seconds:g}" for seconds in plan.service)
    return await launch.worker(
        stack,
        name="party",
        rtt=f"{1e3 * plan.round_trip:g}ms",
        service=f"{low}-{high}ms",
        slots=4 * plan.at_once,
        tls="1.2",
        no_resumption=True,
        close_idle_at_random="{:g}-{:g}s".format(*plan.idle),
        max_requests_per_connection="{}-{}".format(*plan.requests),
        time_scale=time_scale,
        seed=seed,
    )


async def balancer_of(
    transport: Transport, parties: Sequence[Child], at_once: int, folder: Path, stack: AsyncExitStack
) -> Child:
    """Start a balancer in front of these third parties."""
    keys = keys_of(transport, at_once, [party.address for party in parties])
    return await launch.balancer(f"{transport.name}, {len(parties)}", keys, folder, stack)


def keys_of(transport: Transport, at_once: int, parties: Sequence[tuple[str, int]]) -> Keys:
    """Configuration of the balancer: a call goes to a random third party."""
    endpoints = [
        {
            "id": f"party-{number}",
            "address": f"https://{host}:{port}",
            "transport": transport.transport,
            "keep_alive": transport.keep_alive,
        }
        for number, (host, port) in enumerate(parties)
    ]
    limits = {"in_flight": at_once}
    return {"seed": 1, "policy": "random", "limits": limits, **UNVERIFIED, "endpoints": endpoints}
