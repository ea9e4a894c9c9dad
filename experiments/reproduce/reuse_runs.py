"""Measurements of `reuse`: the nine calls through a balancer for each way to call a third party.

Each way has a fresh third party and a fresh balancer, in random order; the ways differ by two configuration lines only.
Times are those of the source, compressed by `time_scale`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random

from experiments.processes import Child
from experiments.reproduce import launch
from experiments.reproduce.api_calls import EACH, Made, Users, all_of
from experiments.reproduce.launch import BalancerFile, Keys


@dataclass(frozen=True, slots=True)
class LowTraffic:
    """Phase of little traffic, not compressed: `calls` at Poisson instants, `gap` seconds apart on average, over
    `parties` third parties, so that each is called rarely.
    """

    parties: int = 8
    calls: int = 100
    gap: float = 0.5


@dataclass(frozen=True, slots=True)
class Setup:
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
    little: LowTraffic = LowTraffic()

    @property
    def calls(self) -> int:
        return self.users * EACH


QUICK = Setup(users=14, at_once=7, machines=1, time_scale=0.25, little=LowTraffic(2, 12))


@dataclass(frozen=True, slots=True)
class Transport:
    """A way to call, as keys of the endpoint."""

    name: str
    transport: str = "native"
    keep_alive: bool = True

    @property
    def absence(self) -> str:
        """Reason why it cannot take part; empty if it can."""
        missing = self.transport == "curl" and find_spec("pycurl") is None
        return "pycurl is not installed: pip install 'steelyard[curl]'" if missing else ""


BASELINE = Transport("new connection each time", keep_alive=False)
OURS = Transport("our pool")
WAYS = (BASELINE, Transport("aiohttp session", "aiohttp"), Transport("libcurl", "curl"), OURS)


@dataclass(frozen=True, slots=True)
class Run:
    """All calls in one way, within `span` measured seconds, and those with little traffic through a balancer of its
    own, each with the balancer's connection counters.
    """

    way: Transport
    made: list[Made]
    span: float
    connections: dict[str, int]
    few: list[Made]
    few_connections: dict[str, int]


ReportProgress = Callable[[str], None]
Crowd = tuple[Users, dict[str, int]]


async def run_plan(
    setup: Setup, seed: int, folder: Path, progress: ReportProgress, ended: Callable[[Run], None]
) -> None:
    """Measure every available way. Raises `FleetFailedError`."""
    ways = [way for way in WAYS if not way.absence]
    crowds: dict[Transport, Crowd] = {}
    for way in Random(seed).sample(ways, len(ways)):
        progress(f"{way.name}: starting")
        crowds[way] = await crowd(way, setup, seed, folder, progress)
    progress(f"little traffic by all {len(ways)} at once")
    few = await little_traffic(ways, setup, seed, folder)
    for way in ways:
        users, connections = crowds[way]
        ended(Run(way, users.made, users.span, connections, few[way][0].made, few[way][1]))


async def crowd(way: Transport, setup: Setup, seed: int, folder: Path, progress: ReportProgress) -> Crowd:
    """Run all users in one way; returns them with the balancer's connection counters."""
    async with AsyncExitStack() as stack:
        numbers = range(setup.machines)
        parties = [await third_party(setup, setup.time_scale, seed + number, stack) for number in numbers]
        unit = await unit_for(way, parties, setup.at_once, folder, stack)
        users = Users(unit.address, lambda made: progress(f"{way.name}: {made} of {setup.calls} calls"))
        await users.run(setup.users)
        return users, await connections_of(unit)


async def little_traffic(
    ways: Sequence[Transport], setup: Setup, seed: int, folder: Path
) -> dict[Transport, Crowd]:
    """The same calls at the same instants in all ways, each with its own balancer, to the same third parties."""
    little = setup.little
    async with AsyncExitStack() as stack:
        parties = [await third_party(setup, 1.0, seed + number, stack) for number in range(little.parties)]
        units = {way: await unit_for(way, parties, setup.at_once, folder, stack) for way in ways}
        users = {way: Users(unit.address, lambda _: None) for way, unit in units.items()}
        await all_of(users[way].trickle(little.calls, little.gap, Random(seed)) for way in ways)
        return {way: (users[way], await connections_of(units[way])) for way in ways}


async def third_party(setup: Setup, time_scale: float, seed: int, stack: AsyncExitStack) -> Child:
    """Start an emulated third party without TLS session resumption, because the source's client used none."""
    low, high = (f"{1e3 * seconds:g}" for seconds in setup.service)
    return await launch.worker(
        stack,
        name="party",
        rtt=f"{1e3 * setup.round_trip:g}ms",
        service=f"{low}-{high}ms",
        slots=4 * setup.at_once,
        tls="1.2",
        no_resumption=True,
        close_idle_at_random="{:g}-{:g}s".format(*setup.idle),
        max_requests_per_connection="{}-{}".format(*setup.requests),
        time_scale=time_scale,
        seed=seed,
    )


async def unit_for(
    way: Transport, parties: Sequence[Child], at_once: int, folder: Path, stack: AsyncExitStack
) -> Child:
    """Start a balancer in front of these third parties."""
    file = file_of(way, at_once, [party.address for party in parties])
    return await launch.unit(f"{way.name}, {len(parties)}", file, folder, stack)


def file_of(way: Transport, at_once: int, parties: Sequence[tuple[str, int]]) -> BalancerFile:
    """Configuration of the balancer: a call goes to a random third party."""
    endpoints = [
        {
            "id": f"party-{number}",
            "address": f"https://{host}:{port}",
            "transport": way.transport,
            "keep_alive": way.keep_alive,
        }
        for number, (host, port) in enumerate(parties)
    ]
    tables: dict[str, Keys] = {"limits": {"in_flight": at_once}, "upstream_tls": {"verify": False}}
    return BalancerFile({"seed": 1, "policy": "random"}, tables, endpoints)


COUNTED = ("opened", "reused", "lost_idle", "died")


async def connections_of(unit: Child) -> dict[str, int]:
    """Connection counters summed over all endpoints, and the number of retried requests."""
    status = await launch.balancer_status(unit)
    found = [endpoint["connections"] for endpoint in status["endpoints"]]
    return {"repeated": status["retried"], **{name: sum(one[name] for one in found) for name in COUNTED}}
