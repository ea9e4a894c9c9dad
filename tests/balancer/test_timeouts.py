"""Deadlines, told by the test's own clock: nothing here waits for time to pass."""

from __future__ import annotations

import asyncio
import json

import pytest

from balancer.downstream.timeouts import SLICE, Sweep
from tests.balancer.conftest import Message, Stage, Wire, answering, get, post, response


async def never(wire: Wire) -> None:
    """Reads whatever comes, answers nothing."""
    await wire.closed()


def check(answer: Message, status: int, reason: str) -> None:
    assert (answer.status, json.loads(answer.body)["error"]) == (status, reason)


async def test_a_worker_that_does_not_answer(stage: Stage) -> None:
    """504 when the first byte is late; charged as a timeout, not asked again, its connection closed."""
    worker = await stage.worker(never)
    await stage.serve(worker, timeouts={"first_byte": 5})
    client = await stage.client()
    await client.send(get())
    await stage.eventually(lambda: worker.received)
    stage.advance(4.9)
    await stage.turn()
    assert stage.proxy.in_flight == 1
    stage.advance(0.2)
    check(await client.response(), 504, "response_timeout")
    assert stage.outcomes() == {"timeout": 1}
    assert len(worker.connections) == 1
    assert stage.pool().idle == 0


async def test_the_first_bytes_time_runs_from_the_requests_end(stage: Stage) -> None:
    """A client that uploads for long does not spend the worker's time."""
    worker = await stage.worker(never)
    await stage.serve(worker, timeouts={"first_byte": 5, "request_idle": 100})
    client = await stage.client()
    await client.send(post(b"x" * 10)[:-5])
    await stage.eventually(lambda: worker.received)
    stage.advance(50)
    await client.send(b"x" * 5)
    await stage.eventually(lambda: worker.received.endswith(b"x" * 10))
    stage.advance(4.9)
    assert stage.proxy.in_flight == 1
    stage.advance(0.2)
    check(await client.response(), 504, "response_timeout")


async def test_a_response_that_stalls(stage: Stage) -> None:
    """Its client is cut off, whatever the length it was promised; what moves does not time out."""
    more = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(response(b"x" * 20_050)[:-20_000])
        await more.wait()
        await wire.send(b"x")
        await wire.closed()

    await stage.serve(await stage.worker(script), timeouts={"body_idle": 5})
    client = await stage.client()
    await client.send(get())
    await client.until(b"x" * 50)
    stage.advance(4)
    more.set()
    await client.exactly(1)
    stage.advance(4)
    await stage.turn()
    stage.advance(1.5)
    with pytest.raises(ConnectionResetError):
        await client.rest()
    assert stage.outcomes() == {"timeout": 1}


async def test_a_client_that_takes_nothing(stage: Stage) -> None:
    """A slow reader has its time; one that reads no byte at all for that long is cut off, and nobody is blamed."""
    await stage.serve(await stage.worker(response(b"x" * (8 << 20))), timeouts={"body_idle": 5})
    client = await stage.client(receive_buffer=4096)
    await client.send(get())
    await stage.eventually(lambda: [d for d in stage.proxy.downstreams if d.is_write_paused])
    await stage.turn(500)
    stage.advance(4)  # notes how much is unsent
    stage.advance(4)
    await stage.turn()
    assert len(stage.proxy.downstreams) == 1
    stage.advance(2)
    await stage.eventually(lambda: not stage.proxy.downstreams)
    assert stage.outcomes() == {"abandoned": 1}
    client.reset()


async def test_a_head_that_does_not_end(stage: Stage) -> None:
    """408, from its first byte on, however diligently it is dripped."""
    worker = await stage.worker(response())
    await stage.serve(worker, timeouts={"head": 5})
    client = await stage.client()
    stage.advance(50)
    for piece in (b"GET / HT", b"TP/1.1\r\n", b"Host: "):
        await client.send(piece)
        await stage.turn()
        stage.advance(1.6)
    await stage.turn()
    assert not client.received
    await client.send(b"a")
    await stage.turn()
    stage.advance(0.4)
    answer = await client.response()
    check(answer, 408, "head_timeout")
    assert answer.value(b"Connection") == b"close"
    client.half_close()
    await client.closed()
    assert worker.connections == []


async def test_a_request_body_that_stalls(stage: Stage) -> None:
    """408, and the worker's connection is closed before it could take the request for whole."""
    worker = await stage.worker(never)
    await stage.serve(worker, timeouts={"request_idle": 5})
    client = await stage.client()
    await client.send(post(b"x" * 100)[:-50])
    await stage.eventually(lambda: b"x" * 50 in worker.received)
    stage.advance(4.9)
    await client.send(b"x")
    await stage.eventually(lambda: b"x" * 51 in worker.received)
    stage.advance(4.9)
    await stage.turn()
    assert stage.proxy.in_flight == 1
    stage.advance(0.2)
    check(await client.response(), 408, "body_timeout")
    client.half_close()
    await client.closed()
    assert stage.outcomes() == {"abandoned": 1}


async def test_an_idle_client(stage: Stage) -> None:
    """Closed in good order after the keep-alive time, whether or not it ever asked for anything."""
    await stage.serve(await stage.worker(response()), timeouts={"keep_alive": 95})
    mute, client = await stage.client(), await stage.client()
    assert (await client.ask(get())).status == 200
    stage.advance(94)
    await stage.turn()
    assert len(stage.proxy.downstreams) == 2
    stage.advance(2)
    assert await mute.rest() == await client.rest() == b""


async def test_a_request_renews_the_keep_alive_time(stage: Stage) -> None:
    """It runs from the end of the last answer."""
    await stage.serve(await stage.worker(response()), timeouts={"keep_alive": 95})
    client = await stage.client()
    for _ in range(3):
        assert (await client.ask(get())).status == 200
        stage.advance(60)
    assert (await client.ask(get())).status == 200


async def test_waiting_for_an_endpoint_ends(stage: Stage) -> None:
    """503 with Retry-After when every endpoint stayed full for too long."""
    worker = await stage.worker(never)
    await stage.serve(worker, max_in_flight=1, timeouts={"queue": 5, "first_byte": 100})
    first, second = await stage.client(), await stage.client()
    await first.send(get())
    await stage.eventually(lambda: worker.received)
    await second.send(get())
    await stage.eventually(lambda: len(stage.proxy.queue) == 1)
    stage.advance(5.1)
    answer = await second.response()
    check(answer, 503, "queue_timeout")
    assert answer.value(b"Retry-After") == b"1"
    assert len(stage.proxy.queue) == 0
    first.reset()


async def test_a_handshake_that_nobody_completes(stage: Stage) -> None:
    """504 after the connect timeout and one more attempt; nothing was sent, so a POST is tried elsewhere."""
    worker = await stage.worker(response(b"fine"))
    await stage.serve(stage.deaf_port(), worker, timeouts={"connect": 0.05})
    for _ in range(2):
        assert (await stage.ask(post(b"body"))).body == b"fine"
    assert stage.outcomes("w0") == {"refused": stage.proxy.counts.retried}


async def test_only_handshakes_that_nobody_completes(stage: Stage) -> None:
    """Then the client is told so."""
    await stage.serve(stage.deaf_port(), timeouts={"connect": 0.05})
    check(await stage.ask(get()), 504, "connect_timeout")


async def test_pooled_connections_age(stage: Stage) -> None:
    """Idle ones are closed after the idle limit, the oldest first; the next request opens another."""
    worker = await stage.worker(response())
    await stage.serve(worker, pool={"idle_timeout": 4, "max_age": 300})
    client = await stage.client()
    await client.ask(get())
    stage.advance(3.9)
    assert stage.pool().idle == 1
    stage.advance(0.2)
    assert stage.pool().idle == 0
    await client.ask(get())
    assert len(worker.connections) == 2


async def test_busy_connections_age(stage: Stage) -> None:
    """One that is never idle for long is given up after its greatest age, between two requests."""
    worker = await stage.worker(answering(response()))
    await stage.serve(worker, pool={"idle_timeout": 4, "max_age": 10})
    client = await stage.client()
    for _ in range(6):  # at 0, 3, 6, 9, 12 s, where it is given up, and 15 s
        await client.ask(get())
        stage.advance(3)
    assert len(worker.connections) == 2


async def test_a_sweep_lets_others_through(stage: Stage) -> None:
    """More connections than a turn of the loop looks at: all have their end, and in between the loop turns."""
    await stage.serve(await stage.worker(response()), timeouts={"head": 2})
    clients = [await stage.client() for _ in range(2 * SLICE + 1)]
    for client in clients:
        await client.send(b"GET / HT")
    await stage.eventually(lambda: len(stage.proxy.downstreams) == len(clients))
    await stage.turn()
    stage.clock.at += 3
    sweep = Sweep(stage.proxy, lambda now: None)
    refused: list[int] = []
    asyncio.get_running_loop().call_soon(lambda: refused.append(stage.proxy.counts.errors["head_timeout"]))
    sweep.run()
    assert stage.proxy.counts.errors["head_timeout"] == SLICE
    await stage.eventually(lambda: stage.proxy.counts.errors["head_timeout"] == len(clients))
    assert refused[0] < len(clients)
    sweep.stop()
    for client in clients:
        assert (await client.response()).status == 408
