"""The load generator against servers in this process: recorded requests, failures, and coordinated omission."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import numpy as np
import pytest

from experiments.generator.arrivals import closed, constant
from experiments.generator.generator import Generator
from experiments.run_data import Floats, Kind, Place, Samples
from experiments.stats.measures import percentile
from tests.support.wire import ScriptedWorker, Wire

PLACES = (Place(worker="emea-0", region="emea"), Place(worker="us-0", region="us"))
Answer = Callable[[int, bytes], Awaitable[bytes | None]]
StartServer = Callable[[Answer], Awaitable[tuple[str, int]]]


def response(status: int = 200, worker: str = "us-0") -> bytes:
    """A small answer as our workers give it."""
    return f"HTTP/1.1 {status} X\r\nX-Worker-Name: {worker}\r\nContent-Length: 2\r\n\r\nok".encode()


@pytest.fixture
async def start_server() -> AsyncIterator[StartServer]:
    """`start_server(answer)` serves on loopback; `answer(number, head)` returns bytes, or None to break off."""
    numbers = itertools.count()
    async with AsyncExitStack() as servers:

        async def start(answer: Answer) -> tuple[str, int]:
            async def serve(wire: Wire) -> None:
                while head := await wire.until(b"\r\n\r\n"):
                    reply = await answer(next(numbers), head)
                    if reply is None:
                        break
                    wire.write(reply)

            server = await servers.enter_async_context(ScriptedWorker(serve))
            return "127.0.0.1", server.port

        yield start


async def drive(
    address: tuple[str, int],
    instants: Sequence[float] | Floats,
    count: int,
    timeout: float = 5.0,
    connections: int = 4,
) -> Samples:
    generator = Generator(address, "test", PLACES, np.array(instants), count, timeout)
    return (await generator.run(connections)).samples()


async def test_every_request_is_sent_and_recorded_once(start_server: StartServer) -> None:
    """Rows are complete and in order, and the worker is the one that answered."""
    seen: list[bytes] = []

    async def answer(number: int, head: bytes) -> bytes:
        seen.append(next(line for line in head.split(b"\r\n") if line.startswith(b"X-Request-ID")))
        return response()

    samples = await drive(await start_server(answer), constant(2000, 200), 200)
    assert sorted(seen) == sorted(f"X-Request-ID: test-{number}".encode() for number in range(200))
    assert samples.ok.all()
    assert samples.sequence.tolist() == list(range(200))
    assert set(samples.worker) == set(samples.region) == {1}
    assert np.all(samples.scheduled_at <= samples.sent_at)
    assert np.all(samples.sent_at <= samples.first_byte_at)
    assert np.all(samples.first_byte_at <= samples.ended_at)


async def test_a_stall_shows_in_the_tail(start_server: StartServer) -> None:
    """The self-test against coordinated omission: one pause of 0.4 s in 1 s of load must dominate p99.

    A generator that waited for answers before sending would count one slow request in 200; here all that were
    due during the pause are late by what was left of it.
    """
    stalled_until = 0.0

    async def answer(number: int, head: bytes) -> bytes:
        nonlocal stalled_until
        if number == 50:
            stalled_until = time.monotonic() + 0.4
        await asyncio.sleep(max(0.0, stalled_until - time.monotonic()))
        return response()

    samples = await drive(await start_server(answer), constant(200, 200), 200, connections=100)
    assert samples.ok.all()
    assert np.sum(samples.latency > 0.1) >= 50
    assert percentile(samples.latency, 99) > 0.35


async def test_a_closed_loop_keeps_the_batch_in_flight(start_server: StartServer) -> None:
    """Never more than the batch, and each answer lets the next request go."""
    outstanding = most = 0

    async def answer(number: int, head: bytes) -> bytes:
        nonlocal outstanding, most
        outstanding += 1
        most = max(most, outstanding)
        await asyncio.sleep(0.001 * (number % 3))
        outstanding -= 1
        return response()

    samples = await drive(await start_server(answer), closed(5, 60), 60)
    assert len(samples) == 60
    assert most == 5
    freed = np.sort(samples.ended_at)[:55]
    assert np.allclose(np.sort(samples.scheduled_at[5:]), freed, atol=1e-3)


async def test_failures_are_recorded_by_kind(start_server: StartServer) -> None:
    """A broken connection, an error status, a timeout; the rest succeeds."""

    async def answer(number: int, head: bytes) -> bytes | None:
        if b"test-1\r" in head:
            return None
        if b"test-2\r" in head:
            return response(503)
        if b"test-3\r" in head:
            await asyncio.sleep(3600)
        return response()

    samples = await drive(await start_server(answer), [0.0] * 6, 6, timeout=0.2)
    assert [Kind(kind) for kind in samples.kind] == [
        Kind.OK,
        Kind.RESET,
        Kind.ERROR_STATUS,
        Kind.TIMEOUT,
        Kind.OK,
        Kind.OK,
    ]
    assert samples.status.tolist() == [200, 0, 503, 0, 200, 200]
    assert samples.worker[1] == -1
    assert samples.latency[3] >= 0.2


async def test_an_answer_after_the_timeout_is_a_failure(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it comes before the next sweep for requests that are overdue."""
    monkeypatch.setattr("experiments.generator.generator.SWEEP", 60.0)

    async def late(number: int, head: bytes) -> bytes:
        await asyncio.sleep(0.1)
        return response(503 if number else 200)

    samples = await drive(await start_server(late), [0.0] * 3, 3, timeout=0.05)
    assert samples.kind.tolist() == [Kind.TIMEOUT] * 3
    assert sorted(samples.status) == [200, 503, 503]


async def test_requests_to_a_vanished_server_are_failures(start_server: StartServer) -> None:
    """Every request has an end."""
    address = await start_server(lambda number, head: asyncio.sleep(0, None))
    samples = await drive(address, constant(1000, 30), 30, connections=1)
    assert len(samples) == 30
    assert not samples.ok.any()
    assert not np.isnan(samples.ended_at).any()


async def test_cancellation_keeps_the_requests_that_were_sent(start_server: StartServer) -> None:
    """Ended rows stay, open ones end as unfinished, and requests that were not due have none."""

    fourth = asyncio.Event()

    async def answer(number: int, head: bytes) -> bytes:
        if number == 3:
            fourth.set()
            await asyncio.sleep(3600)
        return response()

    address = await start_server(answer)
    generator = Generator(address, "test", PLACES, closed(1, 10), 10, timeout=60.0)
    running = asyncio.create_task(generator.run(1))
    await fourth.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    samples = generator.ledger.samples()
    assert [Kind(kind) for kind in samples.kind] == [Kind.OK, Kind.OK, Kind.OK, Kind.UNFINISHED]
