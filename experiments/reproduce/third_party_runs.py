"""Measurements of `third-party`: the modes of a phase in parallel, each with its own balancer, and a route change.

Modes of one group get the same calls at the same instants. Connections opened before the calls begin are not counted.

Times are not scaled, so that idle connections close after 4 s here too.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar, cast

from experiments.errors import FleetFailedError
from experiments.platform.ports import free_ports
from experiments.platform.processes import Child, all_of
from experiments.reproduce import launch
from experiments.reproduce.client import Calls, scheduled
from experiments.reproduce.launch import UNVERIFIED, Keys, balancer_status
from experiments.reproduce.reproduction import ReportProgress

ROUND_TRIP = 0.042
"""Round trip in seconds to both providers: the source's TCP handshake with B, 297 − 256 ms."""

LOOKUP = 0.256
KEEP_ALIVE = 4.0
SOURCE_HEARTBEAT = 1.5
"""Seconds in the source: a DNS lookup, B's idle timeout, interval between heartbeats."""

ROUTE_FACTOR = 8
"""Factor by which the round trip grows."""


@dataclass(frozen=True, slots=True)
class Provider:
    """A third-party service as `workers serve` emulates it."""

    round_trip: float = ROUND_TRIP
    service: str = "90-126ms"
    tls: str = "1.2"
    http: str = "1.1"


@dataclass(frozen=True, slots=True, eq=False)
class Mode:
    """A way to call a provider: keys of the endpoint and of the pool, slow lookups, and whether they are cached."""

    name: str
    provider: Provider
    group: str
    endpoint: Keys = field(default_factory=dict)
    pool: Keys = field(default_factory=dict)
    slow_names: bool = False
    uncached_names: bool = False

    @property
    def preconnect(self) -> int:
        """Connections kept ready to each endpoint."""
        return int(str(self.pool.get("preconnect", 0)))


A1 = Provider(service="60-140ms")
A2 = Provider(service="60-140ms", tls="1.3", http="2")
B = Provider()
FAR = Provider(round_trip=0.090)
HEARTBEATS = {"preconnect": 2, "heartbeat": "/healthz"}
"""Two: one serves while the other has a heartbeat in flight."""

OLD_A = Mode("HTTP/1.1, TLS 1.2", A1, "A")
NEW_A = Mode("HTTP/2, TLS 1.3", A2, "A", {"transport": "http2"})
PLAIN_B = Mode("without", B, "B", slow_names=True, uncached_names=True)
NAMES_B = Mode("+ background names", B, "B", slow_names=True)
HEARTBEATS_B = Mode("+ heartbeats", B, "B", pool=HEARTBEATS, slow_names=True)
PRECONNECT_B = Mode("or opened ahead", B, "B", pool={"preconnect": 1}, slow_names=True)
PLAIN_FAR = Mode("without", FAR, "far")
HEARTBEATS_FAR = Mode("kept warm", FAR, "far", pool=HEARTBEATS)

PHASES = (("A", "far"), ("B",))
"""Groups measured together: all at once would be more handshakes than two cores make in time."""

MODES = (OLD_A, NEW_A, PLAIN_B, NAMES_B, HEARTBEATS_B, PRECONNECT_B, PLAIN_FAR, HEARTBEATS_FAR)


@dataclass(frozen=True, slots=True)
class ThirdPartyPlan:
    """`seconds` of all modes of a phase at once. A: bursts of `burst` calls, `gap` seconds apart on average. B and far:
    `instances` of an application that each call once in `rests` seconds on average. The longer route must be reported
    within `patience` seconds; `watch_duration` is the balancer's `route_watch.duration`.
    """

    seconds: float = 90.0
    burst: tuple[int, int] = (10, 30)
    gap: float = 5.0
    instances: int = 125
    rests: Mapping[str, float] = field(default_factory=lambda: {"B": 12.5, "far": 4.0})
    watch_duration: float = 60.0
    patience: float = 60.0


QUICK = ThirdPartyPlan(
    seconds=10.0,
    burst=(8, 16),
    gap=2.0,
    instances=25,
    watch_duration=10.0,
)


@dataclass(frozen=True, slots=True)
class ModeResult:
    """Calls in one mode, each instance once in `rest` seconds."""

    mode: Mode
    calls: Calls
    rest: float

    @property
    def cold_share(self) -> float:
        return float(self.calls.connections["cold"] / max(1, len(self.calls.answers)))

    @property
    def connecting(self) -> float:
        """Seconds of connecting per call."""
        return float(self.calls.connections["handshakes"] / max(1, len(self.calls.answers)))


Results = dict[Mode, ModeResult]


@dataclass(frozen=True, slots=True)
class RouteChange:
    """The round trip grew by `factor`; it was reported after `reported_after` seconds (None: never) as `text`."""

    factor: float
    reported_after: float | None
    text: str = ""


NAME = "provider.test"
TTL = 30
POLL_EVERY = 0.25
Found = TypeVar("Found")


async def measure(
    plan: ThirdPartyPlan, seed: int, folder: Path, progress: ReportProgress, results: Results
) -> RouteChange:
    """Run all phases and the route change in parallel. Raises `FleetFailedError`."""
    progress(f"a route becomes {ROUTE_FACTOR} times as long")
    watching = asyncio.ensure_future(route_change(plan, seed, folder))
    try:
        for groups in PHASES:
            modes = [mode for mode in MODES if mode.group in groups]
            results |= await phase(modes, plan, seed, folder, progress)
        progress("waiting until the longer route is reported")
        return await watching
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def phase(
    modes: Sequence[Mode], plan: ThirdPartyPlan, seed: int, folder: Path, progress: ReportProgress
) -> Results:
    """Run these modes in parallel. Raises `FleetFailedError`."""
    found: Results = {}

    async def run(mode: Mode, balancer: Child) -> None:
        due = instants(mode.group, plan, Random(f"{seed}:{mode.group}"))
        calls = await scheduled(balancer, ((at, "GET", b"", "") for at in due))
        found[mode] = ModeResult(mode, calls, plan.rests.get(mode.group, plan.gap))

    async with AsyncExitStack() as stack:
        names = ", ".join(f"{mode.group} {mode.name}" for mode in modes)
        progress(f"starting: {names}")
        each = list(dict.fromkeys(mode.provider for mode in modes))
        children = await launch.workers(stack, [worker_options(provider, seed) for provider in each])
        providers = dict(zip(each, children, strict=True))
        port = await name_server(LOOKUP, TTL, stack)
        balancers = {}
        for mode in modes:
            instances = 1 if mode.group == "A" else plan.instances
            keys = keys_of(mode, providers[mode.provider].address, port, instances)
            name = f"{mode.group} {mode.name}".replace("/", "-")
            balancers[mode] = await launch.balancer(name, keys, folder, stack)
        await all_of(
            wait_until(balancer, partial(are_open, mode.preconnect), 20.0, "has not opened its connections")
            for mode, balancer in balancers.items()
        )
        progress(f"{plan.seconds:g} s of calls: {names}")
        await all_of(run(*pair) for pair in balancers.items())
    return found


def worker_options(provider: Provider, seed: int) -> dict[str, Any]:
    """Options of `workers serve`; without session resumption, so that full handshakes are compared."""
    return {
        "rtt": f"{1e3 * provider.round_trip:g}ms",
        "service": provider.service,
        "slots": 1000,
        "keep_alive": f"{KEEP_ALIVE:g}s",
        "tls": provider.tls,
        "http": provider.http,
        "no_resumption": True,
        "seed": seed,
    }


def keys_of(mode: Mode, provider: tuple[str, int], port: int, instances: int) -> Keys:
    """Configuration of the balancer: an endpoint for each instance of the application, all at one provider.

    Calls go to random endpoints. Each instance has its own hostname, so that no instance uses a DNS result that another
    has waited for. An uncached result serves only the requests that waited for it, as from a cache that expires before
    the next request and is not refreshed ahead.
    """
    hosts = [f"{number}.{NAME}" if mode.slow_names else provider[0] for number in range(instances)]
    endpoints = [
        {"id": f"{number}", "address": f"https://{host}:{provider[1]}", **mode.endpoint}
        for number, host in enumerate(hosts)
    ]
    names: Keys = {"resolver": "dns", "servers": [f"127.0.0.1:{port}"]}
    uncached: Keys = {"prefetch": False, "min_ttl": 0.05, "max_ttl": 0.05, "max_stale": 0}
    return {
        "seed": 1,
        "policy": "random",
        **UNVERIFIED,
        "timeouts": {"connect": 10},  # a connect delayed by a busy machine is not a failure of the mode
        "pool": mode.pool,
        "endpoints": endpoints,
        **({"names": {**names, **(uncached if mode.uncached_names else {})}} if mode.slow_names else {}),
    }


def instants(group: str, plan: ThirdPartyPlan, rng: Random) -> Iterator[float]:
    """Due times in seconds: Poisson bursts for A, Poisson calls for the others."""
    at = 0.0
    mean = plan.gap if group == "A" else plan.rests[group] / plan.instances
    while at < plan.seconds:
        yield from [at] * (rng.randint(*plan.burst) if group == "A" else 1)
        at += rng.expovariate(1 / mean)


async def route_change(plan: ThirdPartyPlan, seed: int, folder: Path) -> RouteChange:
    """Restart a provider with a longer round trip, and measure how long the balancer takes to report it."""
    async with AsyncExitStack() as stack:
        port = next(free_ports(1))
        far = Provider(round_trip=ROUTE_FACTOR * ROUND_TRIP)
        async with AsyncExitStack() as first:
            await launch.worker(first, port=port, **worker_options(B, seed))
            keys = {
                **UNVERIFIED,
                "pool": {"preconnect": 2},
                "route_watch": {"duration": plan.watch_duration},
                "endpoints": [{"id": "provider", "address": f"https://127.0.0.1:{port}"}],
            }
            balancer = await launch.balancer("watching", keys, folder, stack)
            await wait_until(balancer, is_usual_known, 40.0, "does not know the usual handshake time")
        await launch.worker(stack, port=port, **worker_options(far, seed))
        began_at = time.monotonic()
        text = await polled(balancer, departure, plan.patience + 1)
        return RouteChange(ROUTE_FACTOR, time.monotonic() - began_at if text else None, text or "")


def departure(status: Any) -> str | None:
    """Text of the event that a route takes longer."""
    return next((event["text"] for event in status["events"] if event["what"].endswith("_departed")), None)


def are_open(count: int, status: Any) -> bool:
    """Whether each endpoint has as many connections."""
    connections = (endpoint["connections"] for endpoint in status["endpoints"])
    return all(one["idle"] + one["leased"] >= count for one in connections)


def is_usual_known(status: Any) -> bool:
    return status["endpoints"][0]["route"]["tls"]["usual"] is not None


async def wait_until(balancer: Child, is_so: Callable[[Any], bool], within: float, failure: str) -> None:
    """Poll a balancer's status. Raises `FleetFailedError` after `within` seconds."""
    if not await polled(balancer, is_so, within):
        raise FleetFailedError(f"{balancer.name} {failure} within {within:g} s{balancer.tail}")


async def polled(balancer: Child, find: Callable[[Any], Found], within: float) -> Found | None:
    """First result of `find` in a balancer's status that is true; None after `within` seconds."""
    until = time.monotonic() + within
    while time.monotonic() < until:
        if found := find(await balancer_status(balancer)):
            return found
        await asyncio.sleep(POLL_EVERY)
    return None


HEAD = struct.Struct("!6H")
POINTER = 0xC00C
"""Compression pointer to byte 12, the name in the question."""

TYPE_A, CLASS_IN = 1, 1
FLAGS = 0x8180
"""Response, recursion desired and available."""


class NameServer(asyncio.DatagramProtocol):
    """DNS server that answers after `delay` seconds with a TTL of `ttl` seconds: every name resolves to 127.0.0.1.

    It implements as much of RFC 1035 as one question per datagram needs.
    """

    def __init__(self, delay: float, ttl: int) -> None:
        self._delay, self._ttl = delay, ttl

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        if reply := answer_to(data, self._ttl):
            asyncio.get_running_loop().call_later(self._delay, self._send, reply, address)

    def _send(self, reply: bytes, address: tuple[str, int]) -> None:
        if not self._transport.is_closing():
            self._transport.sendto(reply, address)


def answer_to(query: bytes, ttl: int) -> bytes:
    """Complete response, with a record if type A is asked for; empty if the query has no question."""
    end = query.find(b"\0", HEAD.size) + 5  # the name ends with an empty label; type and class follow
    if end < HEAD.size + 5 or len(query) < end:
        return b""
    (number,), (kind,) = struct.unpack_from("!H", query), struct.unpack_from("!H", query, end - 4)
    address = socket.inet_aton("127.0.0.1")
    record = struct.pack("!HHHIH", POINTER, TYPE_A, CLASS_IN, ttl, len(address)) + address
    has_address = bool(kind == TYPE_A)
    head = HEAD.pack(number, FLAGS, 1, has_address, 0, 0)
    return head + query[HEAD.size : end] + record * has_address


async def name_server(delay: float, ttl: int, stack: AsyncExitStack) -> int:
    """Start a name server that runs until the stack ends; returns its loopback port."""
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: NameServer(delay, ttl), ("127.0.0.1", 0))
    stack.callback(transport.close)
    return int(transport.get_extra_info("sockname")[1])
