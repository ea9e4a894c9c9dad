"""500 slow readers of long responses on five HTTP/2 connections: the memory of the balancer process.

Slow means that they stand still, or go on when the test lets them, so that nothing depends on time.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import pytest

from balancer.http.h2.limits import Http2Limits
from tests.support.http2_client import Http2Client, fields
from tests.support.programs import Program, Start, memory
from tests.support.wire import ScriptedWorker, answering, get, response

pytestmark = [
    pytest.mark.second_tier,
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc"),
]

MIB = 1 << 20
CONNECTIONS, STREAMS = 5, 100
WINDOW = 65_535
RESPONSE = bytes(range(256)) * (5 * MIB // 256)
MOST_MEMORY = 120 * MIB
"""Of the whole process, the pure source included, of which some 67 MiB are there before the first request."""

ROUNDS = 5
STILL = 5
"""Observations in a row without a change after which the worker sends no more."""


@pytest.fixture
async def worker() -> AsyncIterator[ScriptedWorker]:
    """A worker that answers `RESPONSE` to /long."""
    of_short = response(b"ok")
    of_long = response(RESPONSE)
    script = answering(lambda request: of_long if request.line.startswith(b"GET /long ") else of_short)
    async with ScriptedWorker(script) as worker:
        yield worker


async def slow_client(program: Program, window: int) -> Http2Client:
    """A client with a small receive buffer, and windows of streams that it does not open."""
    wire = await program.client(receive_buffer=4096)
    client = Http2Client(wire, Http2Limits(streams=STREAMS, stream_window=window))
    client.is_slow = True
    for _ in range(STREAMS):
        client.begin(fields(b"/long"), is_last=True)
    return client


async def until_worker_stands_still(program: Program, worker: ScriptedWorker) -> None:
    """Until nothing moves between worker and balancer, which serves a normal client meanwhile."""
    normal = await program.client()
    seen: list[int] = []
    while len(seen) < STILL or len(set(seen[-STILL:])) > 1 or len(worker.connections) < CONNECTIONS * STREAMS:
        answer = await normal.ask(get())
        assert answer.body == b"ok", answer.body
        seen.append(sum(wire.unsent for wire in worker.connections))
    await normal.close()
    assert seen[-1] > CONNECTIONS * STREAMS * MIB


async def take_windows(client: Http2Client) -> None:
    """Read on every stream until its window is used up, and open it for the next time."""
    expected = {number: answer.size + WINDOW for number, answer in client.answers.items()}
    await client.until(lambda: all(client.answers[number].size == size for number, size in expected.items()))
    client.wire.received.clear()
    for answer in client.answers.values():
        assert answer.body == RESPONSE[answer.size - WINDOW : answer.size]
        answer.pieces.clear()


def open_windows(client: Http2Client) -> None:
    for number in client.answers:
        client.engine.acknowledge(number, WINDOW)
    client.flush()


@pytest.mark.parametrize("window", [WINDOW, MIB], ids=["windows", "socket"])
async def test_slow_readers_need_little_memory(start: Start, worker: ScriptedWorker, window: int) -> None:
    """They withhold the windows of their streams, or leave what has come in the socket."""
    program = await start("--policy", "random", "--worker", f"r={worker.url}", "--port", "0")
    status = await program.status()
    pid = status["pid"]
    base = memory(pid, "VmRSS")
    clients = [await slow_client(program, window) for _ in range(CONNECTIONS)]
    await until_worker_stands_still(program, worker)
    if window == WINDOW:
        for _ in range(ROUNDS):
            await asyncio.gather(*map(take_windows, clients))
            await until_worker_stands_still(program, worker)
            for client in clients:
                open_windows(client)
        await until_worker_stands_still(program, worker)
    status = await program.status()
    assert status["in_flight"] == CONNECTIONS * STREAMS
    assert status["errors"] == {}
    peak = memory(pid, "VmHWM")
    print(f"\nmemory {base / MIB:.0f} MiB at the start and {peak / MIB:.0f} MiB at most", end="")
    assert peak < MOST_MEMORY
    for client in clients:
        client.wire.reset()
