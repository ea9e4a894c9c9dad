"""Ends of HTTP/2 connections: drain, idle connections, timeouts, floods; and what takes a stream over."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from balancer.clients.turns import Turns
from balancer.downstream.http2.connection import Http2Connection
from balancer.http.h2.events import CANCEL, ENHANCE_YOUR_CALM, HTTP_1_1_REQUIRED, NO_ERROR
from balancer.http.h2.limits import Http2Limits
from balancer.http.h2.reset_counts import (
    CLIENTS,
    FREE_PER_SECOND,
    MAX_DELAYED_REFUSALS,
    MAX_RESETS,
    REFUSAL_DELAY_S,
    REFUSAL_S,
    ResetCounts,
    refusal_delay,
)
from tests.support import frames, wireless
from tests.support.frames import END_HEADERS, block, frame, frames_of, head, rst
from tests.support.http2_client import (
    WEBSOCKET,
    Answer,
    Http2Client,
    RawClient,
    accept_of,
    fields,
    http2_client,
    raw_client,
)
from tests.support.scripted_transports import hello, serve_plays
from tests.support.stage import Stage
from tests.support.wire import Script, Wire, answering_after, get, playing, response

# --- leaving


async def test_drain_finishes_streams_and_loses_no_request(stage: Stage) -> None:
    """RFC 9113 § 6.8: requests sent before the client has seen the first GOAWAY are answered."""
    go = asyncio.Event()
    await stage.serve(await stage.worker(answering_after(go)))
    client = await http2_client(stage)
    first = client.request()
    await stage.eventually(lambda: stage.state().in_flight == 1)
    stage.cluster.process.drain()
    stage.advance(0.3)
    late = client.request()
    await client.until(lambda: client.goaways)
    assert client.goaways[0] == (2**31 - 1, NO_ERROR)
    await client.until(lambda: len(client.goaways) == 2)
    assert client.goaways[1] == (late, NO_ERROR)
    go.set()
    assert [(await client.answer(stream)).status for stream in (first, late)] == [200, 200]
    await client.end()
    assert not stage.downstreams


async def test_stop_ends_idle_connections_at_once(stage: Stage) -> None:
    await stage.serve(await stage.worker(response()))
    client = await http2_client(stage)
    await client.ask()
    stopping = asyncio.ensure_future(stage.running.stop())
    await client.end()
    assert await stopping
    assert client.goaways[0] == (2**31 - 1, NO_ERROR)


async def test_client_that_answers_nothing_while_it_is_left(stage: Stage) -> None:
    await stage.serve(await stage.worker(response()), timeouts={"linger": 1.0})
    client = await raw_client(stage)
    await client.send(head(1, *fields()))
    await client.until(frames.DATA, 1)
    stage.cluster.process.drain()
    stage.advance(0.3)
    stage.advance(1.1)
    await client.end()
    assert not stage.downstreams


def has(answer: Answer, size: int) -> bool:
    return answer.size == size


@pytest.mark.parametrize("taken", [5000, 3000])
async def test_client_that_is_left_takes_the_end_of_its_response(stage: Stage, taken: int) -> None:
    """A short response that waits for the client's window is not cut off as long as the client takes some of it."""
    await stage.serve(await stage.worker(response(bytes(5000))), timeouts={"linger": 1.0})
    client = await http2_client(stage, Http2Limits(stream_window=1000))
    client.is_slow = True
    stream = client.request()
    answer = client.answers[stream]
    await client.until(lambda: answer.size == 1000)
    stage.cluster.process.drain()
    for size in range(2000, taken + 1, 1000):
        stage.advance(0.8)
        client.engine.acknowledge(stream, 1000)
        client.flush()
        await client.until(partial(has, answer, size))
    stage.advance(0.8)
    stage.advance(1.1)
    await client.end()
    assert (answer.size, answer.has_ended) == (taken, taken == 5000)
    assert not stage.downstreams


@pytest.mark.parametrize("closes", [True, False])
async def test_connection_that_is_left_amid_an_upload_lingers(stage: Stage, closes: bool) -> None:
    """A reset would discard the response, which came before the end of the request; a client that stays is closed."""
    await stage.serve(await stage.worker(early), timeouts={"linger": 4.0})
    client = await http2_client(stage)
    stream = client.begin(fields(b"/", method=b"POST"))
    client.send(stream, b"x")
    assert (await client.answer(stream)).status == 200
    stage.cluster.process.drain()
    for _ in range(3):
        stage.advance(1)
    await client.end()
    assert stage.downstreams
    if closes:
        client.wire.leave()
    else:
        stage.advance(4.1)
    await stage.eventually(lambda: not stage.downstreams)


early = playing(Wire.head, response())
"""Answer as soon as the head has come."""


async def test_crowded_connections_are_left(stage: Stage) -> None:
    """While clients wait for a descriptor, a connection ends after its streams."""
    await stage.serve(await stage.worker(response()))
    client = await http2_client(stage)
    stage.cluster.process.set_crowded(True)
    assert (await client.ask()).status == 200
    await client.end()
    assert client.goaways


async def test_reload_changes_the_limits_of_open_connections(stage: Stage) -> None:
    await stage.serve(await stage.worker(response()))
    client = await http2_client(stage)
    await client.ask()
    await stage.reload(limits={"target": 64})
    assert (await client.ask(path=b"/" + b"x" * 70)).status == 414


# --- timeouts and limits of streams


@pytest.mark.parametrize("is_stated", [True, False])
async def test_body_above_the_limit(stage: Stage, is_stated: bool) -> None:
    await stage.serve(await stage.worker(response()), limits={"body": 10})
    client = await http2_client(stage)
    stated = ((b"content-length", b"11"),) if is_stated else ()
    assert (await client.ask(*stated, body=b"x" * 11, method=b"POST")).status == 413
    assert (await client.ask(body=b"x" * 10, method=b"POST")).status == 200


async def test_fault_of_a_stream_is_handled_when_a_full_transport_has_sent_it(stage: Stage) -> None:
    """Its request ends then, and not with the next read or a timeout."""

    async def script(wire: Wire) -> None:
        head = await wire.head()
        if b"/big" in head.line:
            await wire.send(response(bytes(8_000_000)))
        else:
            await wire.closed()

    await stage.serve(await stage.worker(script))
    client = await raw_client(stage, receive_buffer=4096)
    window = frame(frames.WINDOW_UPDATE, struct.pack("!I", 1 << 25))
    await client.send(frame(frames.SETTINGS, struct.pack("!HI", 4, 1 << 25)) + window)
    await client.send(head(1, *fields(b"/big")))
    await stage.eventually(lambda: stage.cluster.process.counts.http2_streams)
    (downstream,) = stage.downstreams
    await stage.eventually(lambda: downstream.is_write_paused)
    post = fields(b"/", (b"content-length", b"5"), method=b"POST")
    await client.send(head(3, *post, flags=END_HEADERS) + frame(frames.DATA, bytes(10), 3))
    await stage.eventually(lambda: stage.state().in_flight == 2)
    await client.until(frames.RST_STREAM, 3)
    await stage.eventually(lambda: stage.state().in_flight < 2)


# --- floods


def connections(stage: Stage) -> list[Http2Connection]:
    return [each for each in stage.downstreams if isinstance(each, Http2Connection)]


async def test_rapid_reset_over_several_connections(stage: Stage) -> None:
    """A client that begins anew is refused, until its count has fallen; a flood ends in its course, without a sweep."""
    server = await stage.serve(await stage.worker(response()))
    assert server._sweep is not None
    server._sweep.stop()  # it runs in real time
    flood = b"".join(head(stream, *fields()) + rst(stream) for stream in range(1, 1801, 2))
    for _ in range(2):
        client = await raw_client(stage)
        await client.send(flood)
        await stage.eventually(lambda: 900 in [of.engine.resets for of in connections(stage)])
        client.wire.leave()
        await stage.eventually(lambda: not stage.downstreams)
    client = await raw_client(stage)
    await client.send(flood)
    assert await client.goaway() == ENHANCE_YOUR_CALM
    client.wire.leave()
    await stage.eventually(lambda: not stage.downstreams)
    assert await is_refused(stage)
    counts = stage.cluster.process.counts
    assert counts.http2_floods == 2
    await stage.eventually(lambda: not stage.downstreams)
    opened, floods = counts.http2_connections, counts.http2_floods
    clients = [await raw_client(stage) for _ in range(4)]
    await stage.eventually(lambda: counts.http2_connections == opened + len(clients))
    await stage.eventually(lambda: counts.http2_floods == floods + len(clients))
    for client in clients:
        client.wire.leave()
    stage.jump(REFUSAL_S)
    assert (await (await http2_client(stage)).ask()).status == 200


async def test_client_that_leaves_open_streams_is_counted(stage: Stage) -> None:
    """As if it had reset them, since the worker gets as many requests for nothing; what the balancer ends is not."""
    await stage.serve(await stage.worker(answering_after(asyncio.Event())))
    address = b"127.0.0.1"
    for _ in range(MAX_RESETS // 90 + 1):
        assert not stage.cluster.process.resets.refuses(address, stage.clock.at)
        client = await raw_client(stage)
        await client.send(b"".join(head(stream, *fields()) for stream in range(1, 181, 2)))
        await stage.eventually(lambda: stage.cluster.process.in_flight == 90)
        client.wire.leave()
        await stage.eventually(lambda: not stage.cluster.process.in_flight)
    assert stage.cluster.process.resets.refuses(address, stage.clock.at)


async def asking_in_http2(stage: Stage) -> RawClient:
    """Open a connection that has asked, so that the server has decided whether to refuse it."""
    before = stage.cluster.process.counts.http2_connections
    client = await raw_client(stage)
    await client.send(head(1, *fields()))
    await stage.eventually(lambda: stage.cluster.process.counts.http2_connections > before)
    return client


async def is_refused(stage: Stage) -> bool:
    """Open a connection, wait, and return whether it was refused HTTP/2."""
    return await learns_of_refusal(await asking_in_http2(stage))


async def learns_of_refusal(client: RawClient) -> bool:
    """Whether the connection was refused, which takes half a second of real time."""
    while not {frames.GOAWAY, frames.HEADERS} & {kind for kind, *_ in client.seen}:
        client._take(await client.wire.some())
    client.wire.leave()
    if frames.HEADERS in {kind for kind, *_ in client.seen}:
        return False
    assert await client.goaway() == HTTP_1_1_REQUIRED
    return True


async def floods(stage: Stage, times: int = 3) -> None:
    for _ in range(times):
        client = await raw_client(stage)
        await client.send(frame(frames.PING, b"12345678") * 1100)
        assert await client.goaway() == ENHANCE_YOUR_CALM
        await client.end()


async def test_floods_cost_others_of_the_address_nothing_but_http2(stage: Stage) -> None:
    """And that for a stated time, however often the client tries; what is open stays open."""
    await stage.serve(await stage.worker(response()), timeouts={"head": 60.0})
    plain, neighbour = await stage.client(), await http2_client(stage)
    await floods(stage)
    begun, tries = stage.clock.at, list[RawClient]()
    while stage.clock.at < begun + REFUSAL_S:
        tries.append(await asking_in_http2(stage))
        assert (await plain.ask(get())).status == 200
        assert (await stage.ask(get())).status == 200
        assert (await stage.ask(get(b"/-/live"))).status == 200
        neighbour.engine.reset(neighbour.request(), CANCEL)
        neighbour.flush()
        assert (await neighbour.ask()).status == 200
        stage.advance(0.25)
    assert all(await asyncio.gather(*map(learns_of_refusal, tries)))
    assert not await is_refused(stage)
    await floods(stage, 1)
    assert await is_refused(stage)


async def test_addresses_that_are_exempt_are_not_refused(stage: Stage) -> None:
    """Each of their connections has its limits; a reload applies the networks."""
    await stage.serve(await stage.worker(response()), http2={"flood_exempt": ["127.0.0.0/8"]})
    await floods(stage, 5)
    assert not await is_refused(stage)
    await stage.reload(http2={"flood_exempt": ["10.0.0.0/8"]})
    await floods(stage)
    assert await is_refused(stage)


LIMITED: dict[str, Any] = {"limits": (("head", 4096), ("target", 100), ("body", 10))}
UPLOAD = fields(method=b"POST")
REFUSED = {
    "path": fields(b"/#"),
    "long path": fields(b"/" + b"a" * 100),
    "method": fields(method=b"GRAB"),
    "method that is not allowed": fields(method=b"TRACE"),
    "host": fields(b"/", (b"host", b"other")),
    "repeated": fields(b"/", *[(b"x", b"a" * 1400)] * 5),
    "many fields": fields(b"/", *[(b"x", b"a")] * 101),
    "long head": fields(b"/", (b"x", b"a" * 5000)),
    "oversized": fields(b"/", (b"x", b"a" * 8000)),
    "timeout": (*UPLOAD, (b"content-type", b"application/grpc"), (b"grpc-timeout", b"x")),
    "stated body": (*UPLOAD, (b"content-length", b"11")),
    "body": UPLOAD,
}
"""Heads that are refused by the client's fault, and one whose body is."""


def refused(kind: str, stream: int) -> bytes:
    body = frame(frames.DATA, bytes(11), stream, frames.END_STREAM) * ("body" in kind)
    return head(stream, *REFUSED[kind], flags=END_HEADERS | ("body" not in kind)) + body


def opened(stage: wireless.Wireless) -> wireless.Peer:
    client = stage.client()
    client.send(frames.PREFACE + frame(frames.SETTINGS) + frame(frames.WINDOW_UPDATE, b"\x3f\0\0\0"))
    return client


@pytest.mark.parametrize("kind", REFUSED)
def test_requests_that_are_refused_count_as_resets(kind: str) -> None:
    """Each costs more than a reset, and the client some bytes."""
    with wireless.Wireless(**LIMITED) as stage:
        stage.cluster.process.turns = Turns(at_once=1 << 30)
        client, sent = opened(stage), 0
        while client.is_open and sent < 2000:
            client.send(refused(kind, 2 * sent + 1))
            stage.turn()
            sent += 1
        assert sent == Http2Limits().resets + 2
        *_, (last, _, _, payload) = frames_of(client.received)
        assert (last, payload[7]) == (frames.GOAWAY, ENHANCE_YOUR_CALM)
        assert stage.cluster.process.resets.add(
            wireless.CLIENTS.encode(), MAX_RESETS - Http2Limits().resets, stage.loop.now()
        )
        stage.leave()


@pytest.mark.parametrize(("rate", "trusted"), [(33, ()), (60, (wireless.CLIENTS,))], ids=["client", "proxy"])
def test_requests_that_are_refused_now_and_then(rate: int, trusted: tuple[str, ...]) -> None:
    """Two connections with 33 a second each cost nothing, nor do more of a proxy, whose connections many share."""
    with wireless.Wireless(**LIMITED, trusted_proxies=frozenset(trusted)) as stage:
        clients = [opened(stage) for _ in range(2)]
        for second in range(60):
            for client in clients:
                client.send(b"".join(refused("path", 2 * (second * rate + at) + 1) for at in range(rate)))
            stage.advance(1.0)
        assert [client.is_open for client in clients] == [True, True]
        assert stage.cluster.process.counts.http2_streams == 2 * 60 * rate
        stage.leave()


async def test_floods_of_continuation_over_several_connections(stage: Stage) -> None:
    """Connections that end by a flood count for their client, and those of other clients go on."""
    await stage.serve(await stage.worker(response()))
    other = await http2_client(stage, source="127.0.0.2")
    flood = frame(frames.HEADERS, block(*fields()), 1, 1) + 200 * frame(
        frames.CONTINUATION, block((b"a", b"b")), 1
    )
    for _ in range(3):
        client = await raw_client(stage)
        await client.send(flood)
        assert await client.goaway() == ENHANCE_YOUR_CALM
        await client.end()
    assert await is_refused(stage)
    assert stage.cluster.process.counts.http2_floods == 4
    assert (await other.ask()).status == 200
    assert (await (await http2_client(stage, source="127.0.0.2")).ask()).status == 200


async def test_connection_that_is_refused_behind_a_proxy_counts_once(stage: Stage) -> None:
    """Its address comes with its first bytes."""
    await stage.serve(await stage.worker(response()), proxy_protocol=["127.0.0.0/8"])
    stage.cluster.process.resets.add(b"203.0.113.7", 3000, stage.cluster.now())
    client = RawClient(await stage.client())
    await client.send(
        b"PROXY TCP4 203.0.113.7 127.0.0.1 56324 80\r\n" + frames.PREFACE + frame(frames.SETTINGS)
    )
    assert await client.goaway() == HTTP_1_1_REQUIRED
    await client.end()
    assert stage.cluster.process.counts.http2_floods == 1


def test_refusals_of_a_client_are_late_and_not_at_the_same_time() -> None:
    delays = [refusal_delay(number, MAX_DELAYED_REFUSALS) for number in range(50)]
    assert len(set(delays)) == len(delays)
    assert all(REFUSAL_DELAY_S <= delay < 2 * REFUSAL_DELAY_S for delay in delays)
    assert refusal_delay(1, MAX_DELAYED_REFUSALS + 1) == 0.0


def test_reset_counts_are_bounded_and_fall() -> None:
    counts = ResetCounts()
    assert not counts.add(b"a", MAX_RESETS, 0.0)
    assert counts.add(b"a", 1, 0.0)
    assert counts.refuses(b"a", 0.0)
    assert counts.refuses(b"a", REFUSAL_S - 0.1)
    assert not counts.refuses(b"a", REFUSAL_S)
    assert not counts.refuses(b"b", 0.0)
    for number in range(2 * CLIENTS):
        counts.add(b"%d" % number, 1000, 1.0)
    assert len(counts) <= CLIENTS
    counts.add(b"last", 1, 1.0 + 1001 / FREE_PER_SECOND)
    assert counts.refuses(b"last", 100.0) is False


def test_a_client_that_floods_whenever_it_may_is_mostly_refused() -> None:
    """Attempts do not count; a flood in each second that is allowed is one in ten seconds."""
    counts = ResetCounts()
    counts.add(b"a", MAX_RESETS + 1, 0.0)
    allowed = [second for second in range(600) if not counts.refuses(b"a", second)]
    assert allowed == [*range(int(REFUSAL_S), 600)]
    floods = 0
    for second in range(600):
        if not counts.refuses(b"a", second):
            floods += 1
            counts.add(b"a", 1000, second)
    assert floods <= 600 / REFUSAL_S


# --- tunnels


def websocket_worker(answer: bytes = b"") -> tuple[Script, asyncio.Event]:
    over = asyncio.Event()

    async def script(wire: Wire) -> None:
        request = await wire.request()
        accept = answer or accept_of(request.value(b"Sec-WebSocket-Key") or b"")
        await wire.send(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Protocol: chat\r\nSec-WebSocket-Accept: %b\r\n\r\nearly" % accept
        )
        while data := await wire.some():
            await wire.send(data.upper())
        wire.half_close()
        await over.wait()

    return script, over


async def test_websocket_by_extended_connect(stage: Stage) -> None:
    """RFC 8441 § 5: 200, without the fields of the handshake in HTTP/1.1."""
    script, over = websocket_worker()
    worker = await stage.serve_worker(script)
    client = await http2_client(stage)
    await client.ask(path=b"/-/live")
    assert client.engine.has_connect
    stream = client.begin(WEBSOCKET)
    answer = client.answers[stream]
    await client.until(lambda: answer.body == b"early")
    assert answer.head == {b":status": b"200", b"sec-websocket-protocol": b"chat"}
    (request,) = worker.requests
    assert request.line == b"GET /chat HTTP/1.1"
    assert (request.value(b"Upgrade"), request.value(b"Connection")) == (b"websocket", b"Upgrade")
    client.send(stream, b"hello")
    await client.until(lambda: answer.body == b"earlyHELLO")
    client.send(stream, b"", is_last=True)
    await client.answer(stream)
    over.set()
    await stage.eventually(lambda: not stage.cluster.tunnels)
    assert stage.outcomes() == {"tunnelled": 1}
    assert answer.reset is None


async def test_websocket_with_a_wrong_answer(stage: Stage) -> None:
    script, over = websocket_worker(b"evil")
    await stage.serve(await stage.worker(script), retries=0)
    client = await http2_client(stage)
    await client.ask(path=b"/-/live")
    assert (await client.answer(client.begin(WEBSOCKET))).status == 502
    over.set()


@pytest.mark.parametrize(
    "answer",
    [
        response(b"page"),
        response(bytes(100_000)),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
    ],
    ids=["whole", "long", "chunked", "204"],
)
async def test_websocket_that_is_declined_by_a_success(stage: Stage, answer: bytes) -> None:
    """A 2xx would tell the client that the tunnel is open (RFC 8441 § 5). The endpoint is not blamed."""
    worker = await stage.worker(answer)
    await stage.serve(worker)
    client = await http2_client(stage)
    await client.ask(path=b"/-/live")
    declined = await client.answer(client.begin(WEBSOCKET))
    assert (declined.status, json.loads(declined.body)["error"]) == (501, "not_carried")
    assert len(worker.requests) == 1
    assert stage.outcomes() == {"abandoned": 1}
    assert stage.cluster.counts.responses[501] == 1


async def test_websocket_to_what_answers_itself(stage: Stage, tmp_path: Path) -> None:
    """A route's answer, and a probe: neither is a tunnel, nor logged as one."""
    await stage.serve(
        await stage.worker(response(b"")),
        routes=[{"prefix": "/chat", "answer": {"body": "x"}}],
        log={"access": "json", "path": str(tmp_path / "access.log")},
    )
    client = await http2_client(stage)
    assert (await client.ask(path=b"/chat")).status == 200
    for path in (b"/chat", b"/-/live"):
        pairs = tuple((name, path if name == b":path" else value) for name, value in WEBSOCKET)
        assert (await client.answer(client.begin(pairs))).status == 501
    await stage.eventually(lambda: (tmp_path / "access.log").read_bytes().count(b"\n") == 3)
    lines = (tmp_path / "access.log").read_text().splitlines()
    assert [json.loads(line)["status"] for line in lines] == [200, 501, 501]
    counts = stage.cluster.counts.responses
    assert (counts[200], counts[501]) == (1, 1)


async def test_websocket_to_a_worker_over_http2(stage: Stage) -> None:
    """It gets the request without the offer, and an ordinary answer of it is none for the client."""
    await serve_plays(stage, hello)
    client = await http2_client(stage)
    await client.ask(path=b"/-/live")
    assert (await client.answer(client.begin(WEBSOCKET))).status == 501


async def slow_after_a_declined_websocket(stage: Stage, body: bytes) -> tuple[Http2Client, int]:
    """A client that has taken 16 KiB of a long response, and does not renew its window."""
    await stage.serve(await stage.worker(response(body, status=b"403 No")), limits={"buffer": 1024})
    client = await http2_client(stage, Http2Limits(stream_window=16_384))
    await client.ask(path=b"/-/live")
    client.is_slow = True
    stream = client.begin(WEBSOCKET)
    await client.until(lambda: client.answers[stream].size == 16_384)
    return client, stream


async def test_long_response_to_a_declined_websocket(stage: Stage) -> None:
    """It comes at the client's pace, and resumes when the client does."""
    body = bytes(range(256)) * 8000
    client, stream = await slow_after_a_declined_websocket(stage, body)
    client.is_slow = False
    client.engine.acknowledge(stream, 16_384)
    client.flush()
    answer = await client.answer(stream)
    assert (answer.status, answer.body) == (403, body)
    assert (await client.ask(path=b"/-/live")).status == 200


async def test_declined_websocket_whose_client_stalls(stage: Stage) -> None:
    client, stream = await slow_after_a_declined_websocket(stage, bytes(1 << 20))
    for _ in range(2):
        stage.advance(61.0)
    await client.until(lambda: client.answers[stream].reset is not None)
    assert not stage.state().in_flight


async def test_client_that_reads_slowly_is_not_reset(stage: Stage) -> None:
    """While the transport is full, what it sends is progress, though the stream behind it has none."""
    size = 4 << 20
    await stage.serve(await stage.worker(response(bytes(size))))
    client = await http2_client(stage, Http2Limits(stream_window=1 << 30), receive_buffer=4096)
    await client.ask(path=b"/-/live")
    (connection,) = stage.downstreams
    connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    answer = client.answers[client.request()]
    await stage.eventually(lambda: connection.is_write_paused)
    unsent = connection.transport.get_write_buffer_size
    for _ in range(3):
        left = unsent()
        while unsent() == left:
            assert await client.read()
        assert connection.is_write_paused
        stage.advance(40.0)
    await client.until(lambda: answer.has_ended or answer.reset is not None)
    assert (answer.size, answer.reset) == (size, None)


async def test_client_that_takes_nothing_of_a_tunnel_that_has_ended(stage: Stage) -> None:
    """What its worker sent last waits for it as the end of a response does: until it takes nothing for too long."""

    async def script(wire: Wire) -> None:
        request = await wire.request()
        accept = accept_of(request.value(b"Sec-WebSocket-Key") or b"")
        await wire.send(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Accept: %b\r\n\r\n" % accept + bytes(272_144)
        )
        wire.half_close()
        await wire.closed()

    await stage.serve(await stage.worker(script), timeouts={"body_idle": 5.0})
    client = await http2_client(stage)
    await client.ask(path=b"/-/live")
    client.is_slow = True
    stream = client.begin(WEBSOCKET)
    await client.until(lambda: client.answers[stream].size == 262_144)
    client.send(stream, b"", is_last=True)
    await stage.eventually(lambda: not stage.cluster.tunnels)
    for _ in range(3):
        stage.advance(3.0)
    assert (await client.answer(stream)).reset is not None


async def test_tunnel_with_back_pressure(stage: Stage) -> None:
    """A mebibyte each way at the pace of the slower side."""
    script, over = websocket_worker()
    await stage.serve(await stage.worker(script))
    client = await http2_client(stage)
    await client.ask(path=b"/-/live")
    stream = client.begin(WEBSOCKET)
    answer = client.answers[stream]
    await client.until(lambda: answer.body)
    client.send(stream, b"x" * (1 << 20))
    await client.until(lambda: answer.size == 5 + (1 << 20))
    assert answer.body == b"early" + b"X" * (1 << 20)
    client.send(stream, b"", is_last=True)
    await client.answer(stream)
    over.set()
    await stage.eventually(lambda: not stage.cluster.tunnels)


async def test_connect_where_it_is_allowed(stage: Stage) -> None:
    script = playing(Wire.head, b"HTTP/1.1 200 OK\r\n\r\n", lambda wire: wire.exactly(3), b"def")
    worker = await stage.serve_worker(script, http={"allow": ["CONNECT"]})
    client = await http2_client(stage)
    stream = client.begin(((b":method", b"CONNECT"), (b":authority", b"a:80")))
    client.send(stream, b"abc")
    answer = await client.answer(stream)
    assert (answer.status, answer.body) == (200, b"def")
    assert worker.received.startswith(b"CONNECT a:80 HTTP/1.1\r\n")
    assert worker.received.endswith(b"\r\n\r\nabc")


# --- the admin interface on the port for traffic


TOKEN = ((b"authorization", b"Bearer secret-of-the-tests"),)


async def test_admin_requests_need_the_token(stage: Stage) -> None:
    await stage.serve(await stage.worker(response()), admin={"token": "secret-of-the-tests"})
    client = await http2_client(stage)
    assert (await client.ask(path=b"/-/status")).status == 404
    answer = await client.ask(*TOKEN, path=b"/-/status")
    assert answer.status == 200
    assert json.loads(answer.body)["http2"]["clients"] == 1
    assert (await client.ask(*TOKEN, path=b"/-/nothing")).status == 404
    post = await client.ask(*TOKEN, path=b"/-/endpoints/w0/drain", method=b"POST", body=b"")
    assert post.status in (200, 404, 405)
    assert (await client.ask(*TOKEN, path=b"/-/metrics")).body.startswith(b"#")


async def test_live_page_does_not_delay_a_drain(stage: Stage) -> None:
    await stage.serve(await stage.worker(response()), admin={"token": "secret-of-the-tests"})
    client = await http2_client(stage)
    stream = client.request(*TOKEN, path=b"/-/stream")
    answer = client.answers[stream]
    await client.until(lambda: answer.head)
    assert answer.status == 200
    stage.cluster.process.drain()
    stage.advance(0.3)
    await client.end()


# --- the log


async def test_access_log_has_the_version(stage: Stage, tmp_path: Path) -> None:
    path = tmp_path / "log"
    log: dict[str, Any] = {"access": "text", "path": str(path)}
    await stage.serve(await stage.worker(response()), log=log)
    client = await http2_client(stage)
    await client.ask(path=b"/a")
    await client.ask(path=b"/" + b"x" * 9000)
    assert stage.cluster.process.access_log is not None
    await stage.close()
    lines = path.read_text().splitlines()
    assert ["version=2.0" in line for line in lines] == [True, True]
    assert 'path="/a" host=example.org' in lines[0]
    assert "status=414" in lines[1]
