"""Buffering for streams of HTTP/2: slow uploads and slow readers occupy no worker, and nothing stays charged."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from balancer.http.h2.limits import Http2Limits
from tests.support.http2_client import Http2Client, fields, http2_client
from tests.support.stage import Stage
from tests.support.wire import Wire, answering_after, response

BODY = bytes(range(256)) * 1200
BUFFERING = {"request": 400_000, "response": 400_000, "total": 500_000}


async def serve(stage: Stage, answer: bytes, **buffering: int) -> Any:
    worker = await stage.worker(response(answer))
    await stage.serve(worker, buffering={**BUFFERING, **buffering}, limits={"buffer": 1024})
    return worker


async def slow_reader(stage: Stage) -> tuple[Http2Client, int]:
    """A client that has a window of 16 KiB, and does not renew it."""
    client = await http2_client(stage, Http2Limits(stream_window=16_384))
    client.is_slow = True
    return client, client.request()


CHUNKS = b"".join(b"2800\r\n%b\r\n" % BODY[at : at + 10_240] for at in range(0, len(BODY), 10_240))
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS + b"0\r\nX-Sum: 1\r\n\r\n"


@pytest.mark.parametrize(("message", "trailers"), [(response(BODY), {}), (CHUNKED, {b"x-sum": b"1"})])
async def test_response_is_taken_over_from_the_worker(
    stage: Stage, message: bytes, trailers: dict[bytes, bytes]
) -> None:
    await stage.serve(await stage.worker(message), buffering=BUFFERING, limits={"buffer": 1024})
    client, stream = await slow_reader(stage)
    await client.until(lambda: client.answers[stream].size == 16_384)
    await stage.eventually(lambda: not stage.state().in_flight)
    budget = stage.cluster.process.buffer_budget
    assert (stage.pool().leased, stage.pool().idle, stage.outcomes()) == (0, 1, {"ok": 1})
    assert len(BODY) - 16_384 <= budget.kept <= len(BODY)
    assert budget.responses == 1
    client.is_slow = False
    client.engine.acknowledge(stream, 16_384)
    client.flush()
    answer = await client.answer(stream)
    assert (answer.body, answer.trailers) == (BODY, trailers)
    await stage.eventually(lambda: not budget.kept)


async def test_second_stream_beyond_the_total_is_streamed(stage: Stage) -> None:
    """On the same connection; when the client takes both, both arrive. The worker sends piece by piece."""

    async def script(wire: Wire) -> None:
        while True:
            await wire.request()
            for at in range(0, len(BODY), 30_720):
                await wire.send(BODY[at : at + 30_720] if at else response(BODY)[:-276_480])
                await stage.turn(20)

    await stage.serve(await stage.worker(script), buffering=BUFFERING, limits={"buffer": 1024})
    client, kept = await slow_reader(stage)
    await client.until(lambda: client.answers[kept].size == 16_384)
    await stage.eventually(lambda: stage.outcomes() == {"ok": 1})
    streamed, budget = client.request(), stage.cluster.process.buffer_budget
    await client.until(lambda: client.answers[streamed].size == 16_384)
    await stage.eventually(lambda: budget.responses_streamed == 1)
    assert (budget.responses, stage.state().in_flight) == (1, 1)
    assert budget.kept <= budget.total
    client.is_slow = False
    for stream in (kept, streamed):
        client.engine.acknowledge(stream, 16_384)
    client.flush()
    for stream in (kept, streamed):
        assert (await client.answer(stream)).body == BODY
    await stage.eventually(lambda: not budget.kept)


@pytest.mark.parametrize("way", ["reset", "close", "stall"])
async def test_client_that_goes_away_gives_its_share_back(stage: Stage, way: str) -> None:
    await serve(stage, BODY)
    client, stream = await slow_reader(stage)
    await client.until(lambda: client.answers[stream].size == 16_384)
    budget = stage.cluster.process.buffer_budget
    await stage.eventually(lambda: budget.kept)
    if way == "reset":
        client.engine.reset(stream, 8)
        client.flush()
    elif way == "close":
        await client.wire.close()
    else:
        stage.advance(1.0)
        stage.advance(61.0)
    await stage.eventually(lambda: not budget.kept)


async def test_fifty_uploads_of_one_client_hold_no_worker(stage: Stage) -> None:
    """Every client gets 100 Continue; the request goes to an endpoint when its body is whole."""
    worker = await serve(stage, b"ok")
    client, budget = await http2_client(stage), stage.cluster.process.buffer_budget
    await client.ask()  # the window of the connection is known from now on
    head = fields(b"/", (b"expect", b"100-continue"), method=b"POST")
    streams = [client.begin(head) for _ in range(50)]
    await client.until(lambda: all(client.answers[stream].interim for stream in streams))
    for stream in streams:
        client.send(stream, b"x" * 2999)
    await stage.eventually(lambda: budget.kept >= 50 * 2999)
    assert (len(worker.requests), stage.cluster.receiving, stage.state().in_flight) == (1, 50, 0)
    for stream in streams:
        client.send(stream, b"x", is_last=True)
        assert (await client.answer(stream)).status == 200
    assert {request.body for request in worker.requests[1:]} == {b"x" * 3000}
    assert not any(request.value(b"Expect") for request in worker.requests)
    assert (budget.kept, budget.requests, stage.cluster.receiving) == (0, 50, 0)
    assert len(worker.connections) == 1


@pytest.mark.parametrize("way", ["reset", "close", "timeout"])
async def test_upload_that_does_not_end(stage: Stage, way: str) -> None:
    await serve(stage, b"ok")
    client, budget = await http2_client(stage), stage.cluster.process.buffer_budget
    stream = client.begin(fields(method=b"POST"))
    client.send(stream, b"x" * 100)
    await stage.eventually(lambda: budget.kept)
    if way == "reset":
        client.engine.reset(stream, 8)
        client.flush()
    elif way == "close":
        await client.wire.close()
    else:
        stage.advance(31.0)
        assert (await client.answer(stream)).status == 408
    await stage.eventually(lambda: not budget.kept)
    assert (stage.cluster.receiving, stage.cluster.router.routed) == (0, 0)


async def test_removed_pool_waits_for_a_body_that_it_receives(stage: Stage) -> None:
    go = asyncio.Event()
    script = answering_after(go, response(b"api"))
    api, main = await stage.worker(script), await stage.worker(response(b"main"))
    pools = {"api": {"endpoints": [{"id": "a0", "address": f"http://127.0.0.1:{api.port}"}]}}
    routes = [{"prefix": "/api", "cluster": "api"}]
    await stage.serve(main, buffering=BUFFERING, clusters=pools, routes=routes)
    client = await stage.sending(b"POST /api HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nab")
    named = stage.control_plane.named["api"]
    await stage.eventually(lambda: named.cluster.receiving)
    await stage.reload(routes=[], clusters={})
    stage.running.named_clusters.sweep(stage.clock.at)
    assert stage.running.named_clusters.every == [named]
    await client.send(b"cd")
    go.set()
    assert (await client.response()).body == b"api"
    stage.running.named_clusters.sweep(stage.clock.at)
    assert stage.running.named_clusters.every == []
