"""Share of a forwarded request's CPU time spent on internal fields: two balancers, with and without.

Both run side by side and are loaded in alternation for fractions of a second, in random order in each block; CPU times
from the kernel's accounting are compared within a block.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median

from experiments.cpu_time import cpu_of
from experiments.errors import FleetFailedError
from experiments.ports import free_ports
from experiments.processes import Child, program
from experiments.reproduce import launch
from experiments.reproduce.header_sets import INTERNAL, SETS
from experiments.reproduce.launch import BalancerFile
from experiments.reproduce.medians import interval

CONNECTIONS = 16
TIMEOUT = 20.0


@dataclass(frozen=True, slots=True)
class Turn:
    """CPU time of the balancer per request in microseconds. `strips`: whether it has names to remove."""

    block: int
    strips: bool
    repeats: bool
    micros: float


@dataclass(frozen=True, slots=True)
class Share:
    """Medians over blocks. `share` is relative to the time of a request without internal names, 0 to 1."""

    repeats: bool
    without: float
    added: float
    share: float
    interval: tuple[float, float]


def shares_of(turns: list[Turn]) -> list[Share]:
    """Added time, paired within a block: for clients whose fields change, and for clients that repeat theirs."""
    found = []
    for repeats in (False, True):
        own = {(one.block, one.strips): one.micros for one in turns if one.repeats is repeats}
        without = {block: micros for (block, strips), micros in own.items() if not strips}
        pairs = [(own[block, True], base) for block, base in without.items() if (block, True) in own]
        if pairs:
            ratios = [with_ / base - 1 for with_, base in pairs]
            added = median(with_ - base for with_, base in pairs)
            base = median(base for _, base in pairs)
            found.append(Share(repeats, base, added, median(ratios), interval(ratios)))
    return found


async def run_plan(
    blocks: int, requests: int, seed: int, folder: Path, progress: Callable[[Turn], None]
) -> None:
    """Measure both balancers with both kinds of clients in each block. Raises `FleetFailedError`."""
    async with AsyncExitStack() as stack:
        port = next(free_ports(1))
        worker = await launch.started("worker", [*program("benchmarks.harness.worker"), str(port)], stack)
        await listening(worker, port)
        units = {strips: await unit_before(port, strips, folder, stack) for strips in (False, True)}
        rng = Random(seed)
        sides = [(strips, repeats) for strips in (False, True) for repeats in (False, True)]
        for block in range(-1, blocks):  # the first block is warm-up
            for strips, repeats in rng.sample(sides, len(sides)):
                micros = await asyncio.to_thread(cost_of, units[strips], requests, repeats)
                if block >= 0:
                    progress(Turn(block, strips, repeats, micros))


async def listening(child: Child, port: int) -> None:
    """Wait until a process accepts connections; it prints nothing when ready. Raises `FleetFailedError`."""
    for _ in range(400):
        if not child.is_running:
            break
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            await asyncio.sleep(0.05)
        else:
            return
    raise FleetFailedError(f"{child.name} does not listen{child.tail}")


async def unit_before(port: int, strips: bool, folder: Path, stack: AsyncExitStack) -> Child:
    endpoint = {"id": "w", "region": "here", "address": f"http://127.0.0.1:{port}"}
    tables = {"headers": {"internal": list(INTERNAL)}} if strips else {}
    file = BalancerFile(tables=tables, endpoints=[endpoint])
    return await launch.unit("that strips" if strips else "that does not", file, folder, stack)


def cost_of(unit: Child, requests: int, repeats: bool) -> float:
    """CPU microseconds per request, with sixteen connections. Raises `FleetFailedError`."""
    heads = [f"GET / HTTP/1.1\r\n{text.replace(chr(10), chr(13) + chr(10))}\r\n".encode() for text in SETS]
    try:
        sockets = [socket.create_connection(unit.address, TIMEOUT) for _ in range(CONNECTIONS)]
        before = cpu_of(unit.pid).total
        for number in range(rounds := max(1, requests // CONNECTIONS)):
            for at, one in enumerate(sockets):
                one.sendall(heads[(at + (0 if repeats else number)) % len(heads)])
            for one in sockets:
                read_answer(one)
        spent = cpu_of(unit.pid).total - before
        for one in sockets:
            one.close()
    except OSError as failure:
        raise FleetFailedError(f"the balancer: {failure}{unit.tail}") from None
    return 1e6 * spent / (rounds * CONNECTIONS)


def read_answer(one: socket.socket) -> None:
    """Read one response with Content-Length. Raises `FleetFailedError` unless it is a 200."""
    data = one.recv(65536)
    while (end := data.find(b"\r\n\r\n")) < 0 or len(data) < end + 4 + length_in(data[:end]):
        if not (more := one.recv(65536)):
            raise FleetFailedError("the balancer closed a connection")
        data += more
    if not data.startswith(b"HTTP/1.1 200 "):
        raise FleetFailedError(f"the balancer answered {data[:40]!r}")


def length_in(head: bytes) -> int:
    return int(head.lower().split(b"\r\ncontent-length:")[1].split(b"\r\n")[0])
