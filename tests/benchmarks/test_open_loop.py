"""The cheap open-loop generator against servers in this process: ends of requests, and coordinated omission."""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import numpy as np
import pytest

from benchmarks.harness.open_loop import OpenLoop, Record, size_of
from experiments.errors import FleetFailedError
from experiments.generator.arrivals import constant
from experiments.platform import cpu_time
from experiments.run_data import Kind
from experiments.stats.measures import percentile
from tests.support.wire import ScriptedWorker, Wire

pytestmark = pytest.mark.skipif(not cpu_time.is_known_here(), reason="epoll and timerfd are Linux's")

Answer = Callable[[int], Awaitable[Sequence[bytes]]]
Serve = Callable[[Answer], Awaitable[int]]
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
BREAK = b""
"""Instead of a piece: close the connection."""


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """`serve(answer)` listens and returns the port; `answer(number)` gives the pieces of a response."""
    numbers = itertools.count()
    async with AsyncExitStack() as servers:

        async def start(answer: Answer) -> int:
            async def talk(wire: Wire) -> None:
                while await wire.until(b"\r\n\r\n"):
                    for piece in await answer(next(numbers)):
                        await wire.send(piece)
                        await asyncio.sleep(0)
                        if piece == BREAK:
                            return

            return (await servers.enter_async_context(ScriptedWorker(talk))).port

        yield start


async def drive(
    port: int, instants: Sequence[float], connections: int = 4, timeout: float = 30.0, spins: bool = False
) -> Record:
    """A run in a thread, so that the servers of this process can answer."""

    def run() -> Record:
        loop = OpenLoop(port, REQUEST, connections, timeout, spins)
        try:
            return loop.run(instants)
        finally:
            loop.close()

    return await asyncio.to_thread(run)


def cycle_of(*responses: Sequence[bytes]) -> Answer:
    """Answers in turn."""

    async def answer(number: int) -> Sequence[bytes]:
        return responses[number % len(responses)]

    return answer


@pytest.mark.parametrize("spins", [False, True])
@pytest.mark.parametrize("connections", [1, 4, 100])
async def test_every_request_is_sent_when_due_or_later(serve: Serve, connections: int, spins: bool) -> None:
    """On any number of connections, due ≤ sent ≤ ended, and all are answered."""
    port = await serve(cycle_of([WHOLE]))
    found = await drive(port, constant(1000, 200).tolist(), connections, spins=spins)
    assert (found.kind == Kind.OK).all()
    assert (found.sent >= found.due).all()
    assert (found.ended >= found.sent).all()
    assert found.due[-1] - found.due[0] == pytest.approx(0.199)


@pytest.mark.parametrize("connections", [100, 4])
async def test_a_stall_shows_in_the_tail(serve: Serve, connections: int) -> None:
    """wrk2's demonstration: one pause of 0.4 s in 1 s of load must dominate p99, however few the connections are.

    A generator that waited for answers before it sends would count a slow request for each connection; here all that
    were due during the pause are late by what was left of it.
    """
    stalled_until = 0.0

    async def answer(number: int) -> Sequence[bytes]:
        nonlocal stalled_until
        if number == 50:
            stalled_until = time.monotonic() + 0.4
        await asyncio.sleep(max(0.0, stalled_until - time.monotonic()))
        return [WHOLE]

    found = await drive(await serve(answer), constant(200, 200).tolist(), connections)
    latency = found.ended - found.due
    assert (found.kind == Kind.OK).all()
    assert np.sum(latency > 0.1) >= 50
    assert percentile(latency, 99) > 0.35
    assert found.has_waited.any() or connections == 100


async def test_a_fragmented_response_ends_with_its_last_byte(serve: Serve) -> None:
    """Also the first one, from which the length is learned."""
    pieces = [WHOLE[:20], WHOLE[20:-1], WHOLE[-1:]]
    found = await drive(await serve(cycle_of(pieces, [WHOLE])), [0.0] * 20)
    assert (found.kind == Kind.OK).all()


async def test_responses_may_differ_in_length(serve: Serve) -> None:
    longer = WHOLE.replace(b"2\r\n\r\nok", b"4\r\n\r\nfine")
    found = await drive(await serve(cycle_of([WHOLE], [longer])), [0.0] * 20)
    assert (found.kind == Kind.OK).all()


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        ([b"HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n"], Kind.ERROR_STATUS),
        ([BREAK], Kind.RESET),
        ([WHOLE[:-1], BREAK], Kind.RESET),
        ([WHOLE + b"surplus"], Kind.RESET),
    ],
)
async def test_failures_by_kind(serve: Serve, response: list[bytes], kind: Kind) -> None:
    """Every second response is bad; the connection is replaced, and the others succeed."""
    found = await drive(await serve(cycle_of([WHOLE], response)), [0.0] * 20, connections=1)
    assert np.bincount(found.kind, minlength=6)[[Kind.OK, kind]].tolist() == [10, 10]


async def test_a_connection_closed_while_idle_loses_no_request(serve: Serve) -> None:
    """The server closes after each response; the next request is due long after that."""
    answer = cycle_of([WHOLE, BREAK])
    found = await drive(await serve(answer), [0.0, 0.1, 0.2], connections=1)
    assert len(found.kind) == 3
    assert found.kind[0] == Kind.OK


async def test_unanswered_requests_time_out(serve: Serve) -> None:
    """One that is never answered, and one that therefore never finds a connection."""

    async def answer(number: int) -> Sequence[bytes]:
        await asyncio.sleep(60)
        return []

    found = await drive(await serve(answer), [0.0, 0.0], connections=1, timeout=0.01)
    assert found.kind[0] == Kind.TIMEOUT
    assert found.kind[1] in (Kind.TIMEOUT, Kind.REFUSED)
    assert np.isfinite(found.ended).all()


async def test_requests_after_the_end_of_the_server_fail() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        running = asyncio.ensure_future(
            drive(server.getsockname()[1], [0.0, 0.0], connections=1, timeout=0.3)
        )
        first, _ = await asyncio.to_thread(server.accept)
    with first:
        await asyncio.to_thread(first.recv, 4096)
    found = await running
    assert found.kind.tolist() == [Kind.RESET, Kind.REFUSED]


def test_a_port_without_a_server_is_an_error() -> None:
    with pytest.raises(FleetFailedError, match="no connection"):
        OpenLoop(1, REQUEST, connections=1, timeout=1.0)


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Le", -1),
        (WHOLE, len(WHOLE)),
        (WHOLE[:-2], len(WHOLE)),
        (b"HTTP/1.1 204 X\r\nA: b\r\ncontent-length:7 \r\n\r\n", 43 + 7),
        (b"HTTP/1.1 304 Not Modified\r\n\r\n", 29),
    ],
)
def test_size_of_a_response(data: bytes, size: int) -> None:
    assert size_of(data) == size
