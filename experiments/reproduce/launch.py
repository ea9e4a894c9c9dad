"""Start workers and balancers for the lifetime of an `AsyncExitStack`, with their public commands and files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from experiments.errors import FleetFailedError
from experiments.measured.process_config import serve_argv, toml_document
from experiments.platform import control, processes
from experiments.platform.processes import Child, all_of, program

Keys = Mapping[str, object]
T = TypeVar("T")
R = TypeVar("R")

UNVERIFIED: Keys = {"upstream_tls": {"verify": False}}
"""Table of a balancer before workers with TLS, which make their own certificates."""


async def paired_blocks(
    cases: Iterable[T], blocks: int, seed: int, call: Callable[[T], R]
) -> AsyncIterator[dict[T, R]]:
    """Results of a blocking call by case, for each block: every case once, in random order.

    A block before the first is for warm-up and is not reported.
    """
    rng, cases = Random(seed), list(cases)
    for block in range(-1, blocks):
        found = {case: await asyncio.to_thread(call, case) for case in rng.sample(cases, len(cases))}
        if block >= 0:
            yield found


async def ready(name: str, argv: Sequence[str], stack: AsyncExitStack) -> Child:
    """Start a process that is stopped with the stack, and wait until it is ready. Raises `FleetFailedError`."""
    return (await all_started({name: argv}, stack))[0]


async def all_started(programs: Mapping[str, Sequence[str]], stack: AsyncExitStack) -> list[Child]:
    """Start processes by name and wait until all are ready. Raises `FleetFailedError`."""
    children = []
    for name, argv in programs.items():
        children.append(await processes.start(name, argv))
        stack.push_async_callback(children[-1].stop)
    await all_of(child.ready() for child in children)
    return children


async def worker(stack: AsyncExitStack, **options: object) -> Child:
    """Start an emulated worker and wait until it is ready. Raises `FleetFailedError`."""
    return (await workers(stack, [options]))[0]


async def workers(stack: AsyncExitStack, options: Sequence[Keys]) -> list[Child]:
    """Start emulated workers and wait until all are ready. Raises `FleetFailedError`."""
    argv = [serve_argv(**one) for one in options]
    return await all_started({f"worker {number}": one for number, one in enumerate(argv)}, stack)


CALLS_ALONE: Keys = {"health_checks": {"first_connect": False}}
"""Table of a balancer whose connections are counted: it opens none before the calls of the reproduction."""


def config_text(keys: Keys) -> str:
    """Configuration of a balancer as TOML, listening on any free loopback port."""
    return toml_document({"listen": "127.0.0.1:0", **CALLS_ALONE, **keys})


async def balancer(
    name: str, keys: Keys, folder: Path, stack: AsyncExitStack, descriptors: int | None = None
) -> Child:
    """Start a balancer and wait until it is ready. Raises `FleetFailedError`.

    `keys` are those of its configuration; `descriptors` limits its open files; None: no limit of its own.
    """
    path = folder / f"{name.replace(' ', '-')}.toml"
    await asyncio.to_thread(path.write_text, config_text(keys), "utf-8")
    argv = [*program("balancer"), "serve", "--config", str(path)]
    if descriptors is not None:
        argv = ["sh", "-c", f'ulimit -n {descriptors} && exec "$@"', "sh", *argv]
    return await ready(f"balancer {name}", argv, stack)


async def fast_worker(stack: AsyncExitStack) -> str:
    """Start a worker that answers at once; returns its URL. Raises `FleetFailedError`."""
    child = await ready("worker", program("experiments.platform.instant_worker"), stack)
    return "http://{}:{}".format(*child.address)


async def balancer_status(balancer: Child) -> dict[str, Any]:
    """Status reported by a balancer. Raises `FleetFailedError`."""
    try:
        return await control.balancer_status(balancer.address)
    except FleetFailedError as error:
        raise FleetFailedError(f"{balancer.name} gives no status: {error}{balancer.tail}") from None


EVENTS = ("opened", "reused", "cold", "lost_idle", "died", "heartbeats")
Counts = Mapping[str, Any]
"""Counters of a balancer over all endpoints, by name.

Connections `opened`; requests that found an idle one (`reused`) or waited for a new one (`cold`); connections that the
worker closed while idle (`lost_idle`) or in the instant of a request (`died`); `heartbeats`; requests sent again
(`retried`); `handshakes`: seconds of all complete TLS handshakes.
"""


async def connection_counts(balancer: Child) -> Counts:
    """Counters of a balancer, from its status. Raises `FleetFailedError`."""
    return counts_in(await balancer_status(balancer))


def counts_in(status: dict[str, Any]) -> Counts:
    """Counters summed over all endpoints of a status document."""
    endpoints = status["endpoints"]
    tls = [endpoint["route"]["tls"] for endpoint in endpoints]
    handshakes = sum(one["full"] * (one["full_mean"] or 0.0) for one in tls)
    events = {name: sum(endpoint["connections"][name] for endpoint in endpoints) for name in EVENTS}
    return {**events, "retried": status["retried"], "handshakes": handshakes}
