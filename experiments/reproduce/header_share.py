"""Share of a forwarded request's CPU time spent on internal fields: two balancers, with and without.

Both run side by side and are loaded in alternation for fractions of a second, in random order in each block; CPU times
from the kernel's accounting are compared within a block.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random

from experiments.errors import FleetFailedError
from experiments.platform.cpu_time import cpu_of
from experiments.platform.processes import Child
from experiments.reproduce import launch
from experiments.reproduce.blocking_client import TIMEOUT, read_response
from experiments.reproduce.header_sets import INTERNAL, SETS
from experiments.reproduce.launch import BalancerFile
from experiments.stats.comparison import typical
from experiments.stats.estimates import geometric_mean

CONNECTIONS = 16
HEADS = [f"GET / HTTP/1.1\n{text}\n".replace("\n", "\r\n").encode() for text in SETS]


@dataclass(frozen=True, slots=True)
class RequestCost:
    """CPU time of a balancer per request in microseconds, in one block.

    `removes`: it has internal names to remove; `repeats`: each client repeats its fields.
    """

    block: int
    removes: bool
    repeats: bool
    micros: float


@dataclass(frozen=True, slots=True)
class Share:
    """Geometric means over blocks. `share` is relative to the time of a request without internal names, 0 to 1."""

    repeats: bool
    without: float
    added: float
    share: float
    interval: tuple[float, float]


def shares_of(found: Sequence[RequestCost]) -> list[Share]:
    """Added time, paired within a block: for clients whose fields change, and for clients that repeat theirs."""
    shares = []
    for repeats in (False, True):
        own = {(one.block, one.removes): one.micros for one in found if one.repeats is repeats}
        without = {block: micros for (block, removes), micros in own.items() if not removes}
        pairs = [(own[block, True], base) for block, base in without.items() if (block, True) in own]
        if pairs:
            ratio = typical([with_ / base for with_, base in pairs])
            base, share = geometric_mean(base for _, base in pairs), ratio.ratio - 1
            shares.append(Share(repeats, base, base * share, share, (ratio.low - 1, ratio.high - 1)))
    return shares


async def measure_shares(
    blocks: int, requests: int, seed: int, folder: Path, measured: Callable[[RequestCost], None]
) -> None:
    """Measure both balancers with both kinds of clients in each block. Raises `FleetFailedError`."""
    async with AsyncExitStack() as stack:
        endpoint = {"id": "w", "region": "here", "address": await launch.fast_worker(stack)}
        names = {"headers": {"internal": list(INTERNAL)}}
        files = {
            True: BalancerFile(tables=names, endpoints=[endpoint]),
            False: BalancerFile(endpoints=[endpoint]),
        }
        balancers = {
            removes: await launch.balancer(f"internal names {removes}", file, folder, stack)
            for removes, file in files.items()
        }
        rng = Random(seed)
        cases = [(removes, repeats) for removes in (False, True) for repeats in (False, True)]
        for block in range(-1, blocks):  # the first block is warm-up
            for removes, repeats in rng.sample(cases, len(cases)):
                micros = await asyncio.to_thread(request_cost, balancers[removes], requests, repeats)
                if block >= 0:
                    measured(RequestCost(block, removes, repeats, micros))


def request_cost(balancer: Child, requests: int, repeats: bool) -> float:
    """CPU microseconds per request, with sixteen connections. Raises `FleetFailedError`."""
    try:
        sockets = [socket.create_connection(balancer.address, TIMEOUT) for _ in range(CONNECTIONS)]
        before = cpu_of(balancer.pid).total
        for number in range(rounds := max(1, requests // CONNECTIONS)):
            for at, one in enumerate(sockets):
                one.sendall(HEADS[(at + (0 if repeats else number)) % len(HEADS)])
            for one in sockets:
                if (status := read_response(one).status) != 200:
                    raise FleetFailedError(f"the balancer answered {status}")
        spent = cpu_of(balancer.pid).total - before
        for one in sockets:
            one.close()
    except OSError as failure:
        raise FleetFailedError(f"the balancer: {failure}{balancer.tail}") from None
    return 1e6 * spent / (rounds * CONNECTIONS)
