"""Start workers and balancers for the lifetime of an `AsyncExitStack`, with their public commands and files."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from experiments.errors import FleetFailedError
from experiments.measured.process_config import serve_argv, toml_document
from experiments.platform import control, processes
from experiments.platform.processes import Child, program

Keys = Mapping[str, object]

UNVERIFIED: Keys = {"upstream_tls": {"verify": False}}
"""Table of a balancer before workers with TLS, which make their own certificates."""


async def started(name: str, argv: Sequence[str], stack: AsyncExitStack) -> Child:
    """Start a process that is stopped with the stack, without waiting until it is ready. Raises `FleetFailedError`."""
    child = await processes.start(name, argv)
    stack.push_async_callback(child.stop)
    return child


async def ready(name: str, argv: Sequence[str], stack: AsyncExitStack) -> Child:
    """Start a process and wait until it is ready. Raises `FleetFailedError`."""
    child = await started(name, argv, stack)
    await child.ready()
    return child


async def worker(stack: AsyncExitStack, **options: object) -> Child:
    """Start an emulated worker and wait until it is ready. Raises `FleetFailedError`."""
    return await ready(f"worker {options.get('name', '')}".strip(), serve_argv(**options), stack)


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


@dataclass(frozen=True, slots=True)
class ConnectionCounts:
    """Counters of a balancer over all endpoints.

    Connections `opened`; requests that found an idle one (`reused`) or waited for a new one (`cold`); connections that
    the worker closed while idle (`lost_idle`) or in the instant of a request (`died`); `heartbeats`; requests sent
    again (`retried`); seconds of all complete TLS handshakes.
    """

    opened: int
    reused: int
    cold: int
    lost_idle: int
    died: int
    heartbeats: int
    retried: int
    handshakes: float

    def since(self, before: ConnectionCounts) -> ConnectionCounts:
        """Difference from an earlier reading."""
        return ConnectionCounts(
            *(now - then for now, then in zip(astuple(self), astuple(before), strict=True))
        )


EVENTS = ("opened", "reused", "cold", "lost_idle", "died", "heartbeats")


async def connection_counts(balancer: Child) -> ConnectionCounts:
    """Counters of a balancer, from its status. Raises `FleetFailedError`."""
    return counts_in(await balancer_status(balancer))


def counts_in(status: dict[str, Any]) -> ConnectionCounts:
    """Counters summed over all endpoints of a status document."""
    counts = [endpoint["connections"] for endpoint in status["endpoints"]]
    tls = [endpoint["route"]["tls"] for endpoint in status["endpoints"]]
    handshakes = sum(one["full"] * (one["full_mean"] or 0.0) for one in tls)
    events = {name: sum(one[name] for one in counts) for name in EVENTS}
    return ConnectionCounts(**events, retried=status["retried"], handshakes=handshakes)
