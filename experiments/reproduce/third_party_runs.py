"""Measurements of `third-party`: the modes of a phase in parallel, each with its own balancer, and a route change.

Modes of one group get the same calls at the same instants. Connections opened before the calls begin are not counted.

Times are not scaled, so that idle connections close after 4 s here too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from experiments.errors import FleetFailedError
from experiments.measured.fleet import all_ready
from experiments.measured.process_config import serve_argv
from experiments.platform.ports import lasting_ports
from experiments.platform.processes import Child
from experiments.reproduce import launch
from experiments.reproduce.client import ClientAnswer, scheduled
from experiments.reproduce.latency_summary import LatencySummary, summary_of
from experiments.reproduce.launch import (
    UNVERIFIED,
    ConnectionCounts,
    Keys,
    balancer_status,
    connection_counts,
)
from experiments.reproduce.name_server import name_server
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

    name: str
    round_trip: float = ROUND_TRIP
    service: str = "90-126ms"
    tls: str = "1.2"
    http: str = "1.1"
    keep_alive: float = KEEP_ALIVE


@dataclass(frozen=True, slots=True, eq=False)
class Mode:
    """A way to call a provider: endpoint keys and configuration tables of the balancer. `slow_names`: lookups are slow;
    `uncached_names`: their results are not cached.
    """

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


A1 = Provider("A, HTTP/1.1 and TLS 1.2", service="60-140ms")
A2 = Provider("A, HTTP/2 and TLS 1.3", service="60-140ms", tls="1.3", http="2")
B = Provider("B")
FAR = Provider("far", round_trip=0.090)
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
    """Calls in one mode, each instance once in `rest` seconds, with the balancer's counters."""

    mode: Mode
    answers: tuple[ClientAnswer, ...]
    seconds: float
    rest: float
    connections: ConnectionCounts

    @property
    def latency(self) -> LatencySummary:
        return summary_of([one.took for one in self.answers], self.seconds)

    @property
    def cold_share(self) -> float:
        return self.connections.cold / max(1, len(self.answers))

    @property
    def connecting(self) -> float:
        """Seconds of connecting per call."""
        return self.connections.handshakes / max(1, len(self.answers))


@dataclass(frozen=True, slots=True)
class RouteChange:
    """The round trip grew by `factor`; it was reported after `reported_after` seconds (None: never) as `text`."""

    factor: float
    reported_after: float | None
    text: str = ""


def result_of(results: Sequence[ModeResult], mode: Mode) -> ModeResult | None:
    return next((result for result in results if result.mode is mode), None)


NAME = "provider.test"
TTL = 30
POLL_EVERY = 0.25


async def measure(
    plan: ThirdPartyPlan, seed: int, folder: Path, progress: ReportProgress, results: list[ModeResult]
) -> RouteChange:
    """Run all phases and the route change in parallel. Raises `FleetFailedError`."""
    progress(f"a route becomes {ROUTE_FACTOR} times as long")
    watching = asyncio.ensure_future(route_change(plan, seed, folder))
    try:
        for groups in PHASES:
            modes = [mode for mode in MODES if mode.group in groups]
            results += await phase(modes, plan, seed, folder, progress)
        progress("waiting until the longer route is reported")
        return await watching
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def phase(
    modes: Sequence[Mode], plan: ThirdPartyPlan, seed: int, folder: Path, progress: ReportProgress
) -> list[ModeResult]:
    """Run these modes in parallel. Raises `FleetFailedError`."""
    async with AsyncExitStack() as stack:
        names = ", ".join(f"{mode.group} {mode.name}" for mode in modes)
        progress(f"starting: {names}")
        providers = await start_providers(modes, seed, stack)
        port = await name_server(LOOKUP, TTL, stack)
        balancers = []
        for mode in modes:
            instances = 1 if mode.group == "A" else plan.instances
            keys = keys_of(mode, providers[mode.provider].address, port, instances)
            name = f"{mode.group} {mode.name}".replace("/", "-")
            balancers.append(await launch.balancer(name, keys, folder, stack))
        pairs = list(zip(modes, balancers, strict=True))
        await asyncio.gather(
            *(
                wait_until(
                    balancer, partial(are_open, mode.preconnect), 20.0, "has not opened its connections"
                )
                for mode, balancer in pairs
            )
        )
        progress(f"{plan.seconds:g} s of calls: {names}")
        return await asyncio.gather(*(measure_mode(*pair, plan, seed) for pair in pairs))


async def start_providers(modes: Sequence[Mode], seed: int, stack: AsyncExitStack) -> dict[Provider, Child]:
    """Start each provider once and wait until all are ready."""
    providers = list(dict.fromkeys(mode.provider for mode in modes))
    children = [
        await launch.started(provider.name, provider_argv(provider, seed), stack) for provider in providers
    ]
    await all_ready(children)
    return dict(zip(providers, children, strict=True))


def provider_argv(provider: Provider, seed: int, port: int = 0) -> list[str]:
    """Arguments of `workers serve`; without session resumption, so that full handshakes are compared."""
    return serve_argv(
        name=provider.name,
        port=port,
        rtt=f"{1e3 * provider.round_trip:g}ms",
        service=provider.service,
        slots=1000,
        keep_alive=f"{provider.keep_alive:g}s",
        tls=provider.tls,
        http=provider.http,
        no_resumption=True,
        seed=seed,
    )


def keys_of(mode: Mode, provider: tuple[str, int], port: int, instances: int) -> Keys:
    """Configuration of the balancer: an endpoint for each instance of the application, all at one provider.

    Calls go to random endpoints. Each instance has its own hostname, so that no instance uses a DNS result that another
    has waited for.
    """
    hosts = [f"{number}.{NAME}" if mode.slow_names else provider[0] for number in range(instances)]
    endpoints = [
        {"id": f"{number}", "address": f"https://{host}:{provider[1]}", **mode.endpoint}
        for number, host in enumerate(hosts)
    ]
    keys = {
        "seed": 1,
        "policy": "random",
        **UNVERIFIED,
        "timeouts": {"connect": 10},  # a connect delayed by a busy machine is not a failure of the mode
        "pool": mode.pool,
        "endpoints": endpoints,
    }
    return keys | ({"names": names_keys(port, mode.uncached_names)} if mode.slow_names else {})


def names_keys(port: int, uncached: bool) -> Keys:
    """Keys of the table `names`; uncached, a result serves only the requests that waited for it, as from a cache that
    expires before the next request and is not refreshed ahead.
    """
    keys: dict[str, object] = {"resolver": "dns", "servers": [f"127.0.0.1:{port}"]}
    return keys | ({"prefetch": False, "min_ttl": 0.05, "max_ttl": 0.05, "max_stale": 0} if uncached else {})


async def measure_mode(mode: Mode, balancer: Child, plan: ThirdPartyPlan, seed: int) -> ModeResult:
    """Make all calls of one mode. Raises `FleetFailedError`."""
    before = await connection_counts(balancer)
    due = instants(mode.group, plan, Random(f"{seed}:{mode.group}"))
    calls = await scheduled(balancer.address, ((at, "GET", b"", "") for at in due))
    connections = (await connection_counts(balancer)).since(before)
    rest = plan.rests.get(mode.group, plan.gap)
    return ModeResult(mode, tuple(calls.answers), calls.span, rest, connections)


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
        port = next(lasting_ports(1))
        near, far = Provider("near"), Provider("far away", round_trip=ROUTE_FACTOR * ROUND_TRIP)
        async with AsyncExitStack() as first:
            await launch.ready("near", provider_argv(near, seed, port), first)
            keys = {
                **UNVERIFIED,
                "pool": {"preconnect": 2},
                "route_watch": {"duration": plan.watch_duration},
                "endpoints": [{"id": "provider", "address": f"https://127.0.0.1:{port}"}],
            }
            balancer = await launch.balancer("watching", keys, folder, stack)
            await wait_until(balancer, is_usual_known, 40.0, "does not know the usual handshake time")
        await launch.ready("far away", provider_argv(far, seed, port), stack)
        return await wait_for_report(balancer, plan.patience)


async def wait_for_report(balancer: Child, patience: float) -> RouteChange:
    """Wait until the balancer reports that the route takes longer."""
    began_at = time.monotonic()
    while (passed := time.monotonic() - began_at) < patience + 1:
        for event in (await balancer_status(balancer))["events"]:
            if event["what"].endswith("_departed"):
                return RouteChange(ROUTE_FACTOR, passed, event["text"])
        await asyncio.sleep(POLL_EVERY)
    return RouteChange(ROUTE_FACTOR, None)


def are_open(count: int, endpoints: Any) -> bool:
    """Whether each endpoint has as many connections."""
    connections = (endpoint["connections"] for endpoint in endpoints)
    return all(one["idle"] + one["leased"] >= count for one in connections)


def is_usual_known(endpoints: Any) -> bool:
    return endpoints[0]["route"]["tls"]["usual"] is not None


async def wait_until(balancer: Child, is_so: Callable[[Any], bool], within: float, failure: str) -> None:
    """Poll the endpoints of a balancer's status. Raises `FleetFailedError` after `within` seconds."""
    for _ in range(round(within / POLL_EVERY)):
        if is_so((await balancer_status(balancer))["endpoints"]):
            return
        await asyncio.sleep(POLL_EVERY)
    raise FleetFailedError(f"{balancer.name} {failure} within {within:g} s{balancer.tail}")
