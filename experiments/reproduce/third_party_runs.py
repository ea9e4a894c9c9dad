"""Measurements of `third-party`: the modes of a phase in parallel, each with its own balancer, and a route change.

Modes of one group get the same calls at the same instants. Connections opened before the calls begin are not counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from experiments.errors import FleetFailedError
from experiments.ports import lasting_ports
from experiments.processes import Child
from experiments.reproduce import launch
from experiments.reproduce.api_calls import Made, all_of
from experiments.reproduce.client import Client
from experiments.reproduce.launch import BalancerFile, Keys
from experiments.reproduce.name_server import name_server
from experiments.reproduce.provider import (
    DETOUR,
    LOOKUP,
    PHASES,
    TRIP,
    ConnectionCounts,
    Mode,
    ModeResult,
    Provider,
    RouteChange,
    Setup,
)
from experiments.run.fleet import all_ready

NAME = "provider.test"
TTL = 30
WARM_WITHIN = 20.0
LOOK = 0.25
LEARNING = 5
"""Connections after which a balancer knows the usual handshake time of a route."""


@dataclass(frozen=True, slots=True)
class Place:
    """A mode with its running balancer."""

    mode: Mode
    unit: Child


async def run_plan(
    setup: Setup, seed: int, folder: Path, progress: Callable[[str], None], stays: list[ModeResult]
) -> RouteChange:
    """Run all phases and the route change in parallel. Raises `FleetFailedError`."""
    progress(f"a route becomes {DETOUR} times as long")
    watching = asyncio.ensure_future(route_changed(setup, seed, folder))
    try:
        for groups in PHASES:
            modes = [mode for mode in setup.modes if mode.group in groups]
            stays += await phase(modes, setup, seed, folder, progress)
        progress("waiting for the watch")
        return await watching
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def phase(
    modes: Sequence[Mode], setup: Setup, seed: int, folder: Path, progress: Callable[[str], None]
) -> list[ModeResult]:
    """Run these modes in parallel. Raises `FleetFailedError`."""
    async with AsyncExitStack() as stack:
        names = ", ".join(f"{mode.group} {mode.name}" for mode in modes)
        progress(f"starting: {names}")
        parties = await start_providers(modes, seed, stack)
        _, port = await name_server(LOOKUP, TTL, stack)
        places = [Place(mode, await unit_for(mode, parties, port, setup, folder, stack)) for mode in modes]
        await asyncio.gather(*(settled(place) for place in places))
        progress(f"{setup.seconds:g} s of calls: {names}")
        return await asyncio.gather(*(stay(place, setup, seed) for place in places))


async def start_providers(modes: Sequence[Mode], seed: int, stack: AsyncExitStack) -> dict[Provider, Child]:
    """Start each provider once and wait until all are ready."""
    parties = list(dict.fromkeys(mode.provider for mode in modes))
    children = [
        await launch.started(provider.name, provider_argv(provider, seed), stack) for provider in parties
    ]
    await all_ready(children)
    return dict(zip(parties, children, strict=True))


def provider_argv(provider: Provider, seed: int, port: int = 0) -> list[str]:
    """Arguments of `workers serve`; without session resumption, so that full handshakes are compared."""
    return launch.worker_argv(
        name=provider.name,
        port=port,
        rtt=f"{1e3 * provider.trip:g}ms",
        service=provider.service,
        slots=1000,
        keep_alive=f"{provider.keep_alive:g}s",
        tls=provider.tls,
        http=provider.http,
        no_resumption=True,
        seed=seed,
    )


async def unit_for(
    mode: Mode, parties: dict[Provider, Child], port: int, setup: Setup, folder: Path, stack: AsyncExitStack
) -> Child:
    """Start the balancer of one mode: an endpoint for each instance of the application, all at one provider."""
    file = file_of(mode, parties[mode.provider].address, port, 1 if mode.group == "A" else setup.instances)
    return await launch.unit(f"{mode.group} {mode.name}".replace("/", "-"), file, folder, stack)


def file_of(mode: Mode, provider: tuple[str, int], port: int, instances: int) -> BalancerFile:
    """Configuration of the balancer. Calls go to random endpoints. Each instance has its own hostname, so that no
    instance uses a DNS result that another has waited for.
    """
    hosts = [f"{number}.{NAME}" if mode.slow_names else provider[0] for number in range(instances)]
    endpoints = [
        {"id": f"{number}", "address": f"https://{host}:{provider[1]}", **mode.endpoint}
        for number, host in enumerate(hosts)
    ]
    # a connect delayed by a busy machine is not a failure of the mode
    tables: dict[str, Keys] = {"upstream_tls": {"verify": False}, "timeouts": {"connect": 10}}
    if mode.slow_names:
        tables["names"] = names_keys(port, mode.forgotten)
    if mode.pool:
        tables["pool"] = mode.pool
    return BalancerFile({"seed": 1, "policy": "random"}, tables, endpoints)


def names_keys(port: int, is_forgotten: bool) -> Keys:
    """Keys of the table `names`; if forgotten, a result serves only the requests that waited for it, as from a cache
    that expires before the next request and is not refreshed ahead.
    """
    keys: dict[str, object] = {"resolver": "dns", "servers": [f"127.0.0.1:{port}"]}
    return keys | (
        {"prefetch": False, "min_ttl": 0.05, "max_ttl": 0.05, "max_stale": 0} if is_forgotten else {}
    )


async def settled(place: Place) -> None:
    """Wait until the connections to keep warm are open. Raises `FleetFailedError`."""
    if not place.mode.warm:
        return
    for _ in range(round(WARM_WITHIN / LOOK)):
        endpoints = (await launch.balancer_status(place.unit))["endpoints"]
        if all(endpoint["connections"]["idle"] >= place.mode.warm for endpoint in endpoints):
            return
        await asyncio.sleep(LOOK)
    raise FleetFailedError(f"{place.unit.name} had not warmed its connections within {WARM_WITHIN:g} s")


async def stay(place: Place, setup: Setup, seed: int) -> ModeResult:
    """Make all calls of one mode. Raises `FleetFailedError`."""
    before = connection_counts(await launch.balancer_status(place.unit))
    made: list[Made] = []
    began_at = time.monotonic()

    async def call(at: float) -> None:
        await asyncio.sleep(began_at + at - time.monotonic())
        connection = Client(*place.unit.address)
        answer = await connection.ask()
        connection.close()
        made.append(Made("call", at, answer.took, answer.status))

    await all_of(call(at) for at in instants(place.mode.group, setup, Random(f"{seed}:{place.mode.group}")))
    seconds = time.monotonic() - began_at
    account = connection_counts(await launch.balancer_status(place.unit)).since(before)
    rest = setup.rests.get(place.mode.group, setup.gap)
    return ModeResult(place.mode, tuple(made), seconds, rest, account)


def instants(group: str, setup: Setup, rng: Random) -> Iterator[float]:
    """Due times in seconds: Poisson bursts for A, Poisson calls for the others."""
    at = 0.0
    mean = setup.gap if group == "A" else setup.rests[group] / setup.instances
    while at < setup.seconds:
        yield from [at] * (rng.randint(*setup.burst) if group == "A" else 1)
        at += rng.expovariate(1 / mean)


def connection_counts(status: dict[str, Any]) -> ConnectionCounts:
    """Counters summed over all endpoints of a balancer."""
    counts = [endpoint["connections"] for endpoint in status["endpoints"]]
    tls = [endpoint["route"]["tls"] for endpoint in status["endpoints"]]
    opened, cold, died, heartbeats = (
        sum(one[name] for one in counts) for name in ("opened", "cold", "died", "heartbeats")
    )
    handshakes = sum(one["full"] * (one["full_mean"] or 0.0) for one in tls)
    return ConnectionCounts(opened, cold, died, heartbeats, handshakes)


async def route_changed(setup: Setup, seed: int, folder: Path) -> RouteChange:
    """Restart a provider with a longer round trip, and measure how long the balancer takes to report it."""
    async with AsyncExitStack() as stack:
        port = next(lasting_ports(1))
        near, far = Provider("near"), Provider("detour", trip=DETOUR * TRIP)
        async with AsyncExitStack() as first:
            await launch.ready("near", provider_argv(near, seed, port), first)
            endpoint = {"id": "provider", "address": f"https://127.0.0.1:{port}"}
            tables: dict[str, Keys] = {
                "upstream_tls": {"verify": False},
                "pool": {"preconnect": 2},
                "route_watch": {"duration": setup.lasting},
            }
            unit = await launch.unit("watching", BalancerFile({}, tables, [endpoint]), folder, stack)
            await wait_for_baseline(unit)
        await launch.ready("detour", provider_argv(far, seed, port), stack)
        return await noticing(unit, setup.patience)


async def wait_for_baseline(unit: Child) -> None:
    """Wait until the balancer knows the usual handshake time. Raises `FleetFailedError`."""
    for _ in range(round(2 * WARM_WITHIN / LOOK)):
        endpoint = (await launch.balancer_status(unit))["endpoints"][0]
        if endpoint["route"]["tls"]["usual"] is not None:
            return
        await asyncio.sleep(LOOK)
    raise FleetFailedError(f"{unit.name} has not learned what is usual{unit.tail}")


async def noticing(unit: Child, patience: float) -> RouteChange:
    began_at = time.monotonic()
    while (passed := time.monotonic() - began_at) < patience + 1:
        for event in (await launch.balancer_status(unit))["events"]:
            if event["what"].endswith("_departed"):
                return RouteChange(DETOUR, passed, event["text"])
        await asyncio.sleep(LOOK)
    return RouteChange(DETOUR, None)
