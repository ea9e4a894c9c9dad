"""Buffering for clients of HTTP/2: each stream is kept and charged by itself."""

from __future__ import annotations

import asyncio

import pytest

from balancer.http2.limits import Limits
from tests.balancer.conftest import Script, Stage, Wire, answering, response
from tests.balancer.http2_client import Http2Client, fields, http2_client

SIZE = 1 << 20
BODY = bytes(range(256)) * (SIZE // 256)
NARROW = Limits(stream_window=65_535)
CHUNKS = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"".join(b"10000\r\n%b\r\n" % BODY[at : at + 65_536] for at in range(0, SIZE, 65_536))
    + b"0\r\nX-Sum: 1\r\n\r\n"
)


async def slow_client(stage: Stage) -> Http2Client:
    """A client that returns no window."""
    client = await http2_client(stage, NARROW)
    client.is_slow = True
    return client


async def go_on(client: Http2Client, stream: int) -> bytes:
    """Return the window of all that has come, and read the rest of the response."""
    client.is_slow = False
    client.engine.acknowledge(stream, client.answers[stream].size)
    client.flush()
    return (await client.answer(stream)).body


async def taken_over(stage: Stage, client: Http2Client) -> int:
    """Ask for a response, and wait until the worker has ended it; return the stream."""
    before = stage.outcomes().get("ok", 0)
    stream = client.request()
    await client.until(lambda: client.answers[stream].head)
    await stage.eventually(lambda: stage.outcomes().get("ok", 0) == before + 1)
    await stage.turn()
    return stream


@pytest.mark.parametrize("message", [response(BODY), CHUNKS], ids=["length", "chunks with trailers"])
async def test_worker_is_free_while_the_client_reads(stage: Stage, message: bytes) -> None:
    await stage.serve(await stage.worker(message), buffering={"response": 2 * SIZE})
    client, budget = await slow_client(stage), stage.proxy.buffer_budget
    stream = await taken_over(stage, client)
    assert stage.pool().leased == 0
    assert budget.kept > SIZE // 2
    assert budget.responses == 1
    assert await go_on(client, stream) == BODY
    assert client.answers[stream].trailers == ({b"x-sum": b"1"} if message is CHUNKS else {})
    await stage.eventually(lambda: not budget.kept)


@pytest.mark.parametrize("how", ["reset", "connection", "timeout"])
async def test_what_is_kept_is_given_back(stage: Stage, how: str) -> None:
    """When the client resets the stream, whose response the worker has ended, closes, or takes nothing."""
    await stage.serve(await stage.worker(response(BODY)), buffering={"response": 2 * SIZE})
    client, budget = await slow_client(stage), stage.proxy.buffer_budget
    stream = await taken_over(stage, client)
    assert budget.kept
    if how == "reset":
        client.engine.reset(stream, 8)
        client.flush()
    elif how == "connection":
        client.wire.reset()
    else:
        stage.advance(1.0)
        stage.advance(62.0)
    await stage.eventually(lambda: not budget.kept)
    assert stage.outcomes() == {"ok": 1}


async def test_streams_beyond_the_bound_are_streamed(stage: Stage) -> None:
    """Of two responses one is kept; the worker of the other waits until its client takes it."""
    rules = {"response": 2 * SIZE, "total": 2 * SIZE}
    await stage.serve(await stage.worker(response(BODY + BODY[: SIZE // 2])), buffering=rules)
    client, budget = await slow_client(stage), stage.proxy.buffer_budget
    kept = await taken_over(stage, client)
    streamed = client.request()
    await client.until(lambda: client.answers[streamed].head)
    await stage.eventually(lambda: budget.responses_streamed)
    await stage.turn()
    assert (budget.responses, stage.proxy.router.in_flight) == (1, 1)
    assert budget.kept <= budget.total
    client.is_slow = False
    for stream in (kept, streamed):
        client.engine.acknowledge(stream, client.answers[stream].size)
    client.flush()
    for stream in (kept, streamed):
        assert len((await client.answer(stream)).body) == SIZE + SIZE // 2
    await stage.eventually(lambda: not budget.kept)
    assert budget.responses_streamed == 1


async def test_uploads_ask_no_endpoint_until_they_are_whole(stage: Stage) -> None:
    """Fifty streams of one connection, with and without a length; the first has expected 100 (Continue)."""
    worker = await stage.worker(answering(response()))
    await stage.serve(worker, buffering={"request": 10_000})
    client, budget = await http2_client(stage), stage.proxy.buffer_budget
    expects = ((b"content-length", b"3000"), (b"expect", b"100-continue"))
    streams = [client.begin(fields(b"/", *expects, method=b"POST"))]
    await client.until(lambda: client.answers[streams[0]].interim)
    assert client.answers[streams[0]].interim[0][b":status"] == b"100"
    streams += [client.begin(fields(method=b"POST")) for _ in range(49)]
    for stream in streams:
        client.send(stream, b"x" * 2999)
    await stage.eventually(lambda: budget.kept >= 50 * 2999)
    assert (worker.connections, stage.proxy.router.in_flight, stage.proxy.receiving) == ([], 0, 50)
    for stream in streams:
        client.send(stream, b"x", is_last=True)
        assert (await client.answer(stream)).status == 200
    assert {request.body for request in worker.requests} == {b"x" * 3000}
    assert not any(request.value(b"expect") for request in worker.requests)
    assert (budget.kept, budget.requests, stage.proxy.receiving) == (0, 50, 0)
    assert len(worker.connections) == 1


@pytest.mark.parametrize("how", ["reset", "connection", "timeout"])
async def test_upload_that_ends_early(stage: Stage, how: str) -> None:
    await stage.serve(await stage.worker(response()), buffering={"request": 10_000})
    client, budget = await http2_client(stage), stage.proxy.buffer_budget
    stream = client.begin(fields(method=b"POST"))
    client.send(stream, b"x" * 100)
    await stage.eventually(lambda: budget.kept)
    if how == "reset":
        client.engine.reset(stream, 8)
        client.flush()
    elif how == "connection":
        client.wire.reset()
    else:
        stage.advance(31.0)
        assert (await client.answer(stream)).status == 408
    await stage.eventually(lambda: not budget.kept)
    assert (stage.proxy.receiving, stage.proxy.router.routed) == (0, 0)


async def test_calls_of_grpc_are_streamed(stage: Stage) -> None:
    """The worker answers before the request has ended."""

    async def script(wire: Wire) -> None:
        await wire.head()
        await wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n")
        await asyncio.Event().wait()

    early: Script = script
    await stage.serve(await stage.worker(early), buffering={"request": 10_000})
    client = await http2_client(stage)
    stream = client.begin(fields(b"/", (b"content-type", b"application/grpc"), method=b"POST"))
    client.send(stream, b"x")
    await client.until(lambda: client.answers[stream].body == b"hi")
    assert stage.proxy.buffer_budget.kept == 0
    client.engine.reset(stream, 8)
    client.flush()
