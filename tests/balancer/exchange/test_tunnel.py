"""Tunnels after an upgrade or CONNECT: opening, back-pressure, closing.

Both ends are raw sockets; test_websockets.py has a real protocol in the tunnel.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from balancer.control.admin.metrics import metrics_text
from balancer.control.admin.status import proxy_status
from balancer.exchange.tunnel import Tunnel
from tests.support.scripts import SWITCHED, UPGRADE_FIELDS
from tests.support.stage import Stage
from tests.support.wire import Message, ScriptedWorker, Wire, get, playing, post, response

MIB = 1 << 20
CONNECT = get(b"a:80", method=b"CONNECT")

Ends = tuple[Wire, Wire]


class TunnelStage:
    """A stage whose one worker answers a request with `answer` and then leaves its connection to the test."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.worker: ScriptedWorker
        self.over = asyncio.Event()

    async def serve(self, answer: bytes = SWITCHED, **settings: Any) -> None:
        self.worker = await self.stage.worker(playing(Wire.request, answer, self.over))
        await self.stage.serve(self.worker, http={"allow": ["CONNECT"]}, **settings)

    async def open_tunnel(
        self,
        request: bytes = get(b"/", *UPGRADE_FIELDS),
        *,
        early: bytes = b"",
        receive_buffer: int | None = None,
    ) -> Ends:
        """Open a tunnel; return the client's end and the worker's."""
        client = await self.stage.client(receive_buffer=receive_buffer)
        await client.send(request + early)
        assert (await client.head()).status in (101, 200)
        return client, self.worker.connections[-1]

    async def serve_tunnel(self, *, receive_buffer: int | None = None, **settings: Any) -> Ends:
        """Serve, and open a tunnel."""
        await self.serve(**settings)
        return await self.open_tunnel(receive_buffer=receive_buffer)

    async def close_rest(self, *clients: Wire, number: int = 1) -> None:
        """Close clients, end the worker's script and wait until no tunnel is left; `number` must have been settled."""
        for client in clients:
            await client.close()
        self.over.set()
        await self.stage.eventually(lambda: not self.stage.cluster.tunnels)
        assert are_settled(self.stage, number)


@pytest.fixture
def tunnel_stage(stage: Stage) -> TunnelStage:
    return TunnelStage(stage)


def are_settled(stage: Stage, number: int = 1) -> bool:
    """Whether `number` tunnels were settled and nothing is in flight."""
    cluster = stage.cluster
    return stage.outcomes() == {"tunnelled": number} and not stage.state().in_flight and not cluster.tunnels


# --- opening


async def test_upgrade_request_and_101_are_forwarded(stage: Stage, tunnel_stage: TunnelStage) -> None:
    """RFC 9110 § 7.8: Upgrade and Connection on both legs, other fields unchanged, the worker's reason phrase."""
    await tunnel_stage.serve()
    client = await stage.sending(get(b"/room", *UPGRADE_FIELDS))
    head = await client.head()
    assert head == Message(
        b"HTTP/1.1 101 Go On",
        ((b"Connection", b"Upgrade"), (b"Upgrade", b"chat/1"), (b"Sec-Chat-Accept", b"x")),
    )
    arrived = tunnel_stage.worker.requests[0]
    assert arrived.line == b"GET /room HTTP/1.1"
    fields = {b"Connection": b"Upgrade", b"Upgrade": b"chat/2, chat/1", b"Sec-Chat-Key": b"a b"}
    fields |= {b"X-Forwarded-For": b"127.0.0.1"}
    assert {name: arrived.value(name) for name in fields} == fields
    worker = tunnel_stage.worker.connections[0]
    await client.send(b"\x00GET / HTTP/1.1\r\n\r\n")
    assert await worker.exactly(19) == b"\x00GET / HTTP/1.1\r\n\r\n"
    await worker.send(b"HTTP/1.1 200 OK\r\n\r\n\xff")
    assert await client.exactly(20) == b"HTTP/1.1 200 OK\r\n\r\n\xff"
    assert stage.state().in_flight == stage.cluster.process.in_flight == len(stage.cluster.tunnels) == 1
    await tunnel_stage.close_rest(client)


@pytest.mark.parametrize("step", [None, 1, 7])
async def test_bytes_after_both_heads_are_tunnelled(
    stage: Stage, tunnel_stage: TunnelStage, step: int | None
) -> None:
    """A client need not wait for the 101, and a worker may send first."""
    early = b"GET /not-http HTTP/1.1\r\n\r\n"
    await tunnel_stage.serve(b"HTTP/1.1 103 Early Hints\r\n\r\n" + SWITCHED + b"\r\n\r\nwelcome")
    client = await stage.client()
    data = get(b"/", *UPGRADE_FIELDS) + early
    for at in range(0, len(data), step or len(data)):
        await client.send(data[at : at + (step or len(data))])
        await stage.turn(1)
    assert (await client.head()).status == 103
    assert (await client.head()).status == 101
    assert await client.exactly(11) == b"\r\n\r\nwelcome"
    assert await tunnel_stage.worker.connections[0].exactly(len(early)) == early
    assert len(tunnel_stage.worker.requests) == 1
    await tunnel_stage.close_rest(client)
    assert (stage.cluster.tunnels.bytes_in, stage.cluster.tunnels.bytes_out) == (len(early), 11)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 Connected\r\n\r\n",
        b"HTTP/1.1 200 Connected\r\nContent-Length: 7\r\n\r\n",
        b"HTTP/1.1 200 Connected\r\nContent-Length: 3\r\n\r\n",
        b"HTTP/1.1 299 Connected\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 Connected\r\nConnection: close\r\n\r\n",
    ],
)
@pytest.mark.parametrize("version", [b"HTTP/1.1", b"HTTP/1.0"])
@pytest.mark.parametrize("first", [b"", b"welcome", b"5\r\nhello\r\n0\r\n\r\n"])
async def test_connect_opens_a_tunnel(
    stage: Stage, tunnel_stage: TunnelStage, answer: bytes, version: bytes, first: bytes
) -> None:
    """RFC 9110 § 9.3.6: any 2xx opens a tunnel, and its framing fields are ignored."""
    await tunnel_stage.serve(answer + first)
    client = await stage.sending(get(b"a:80", method=b"CONNECT", version=version) + b"early")
    head = await client.head()
    assert (head.status, head.names) == (int(answer[9:12]), [])
    assert await client.exactly(len(first)) == first
    worker = tunnel_stage.worker.connections[0]
    assert await worker.exactly(5) == b"early"
    assert tunnel_stage.worker.requests[0].line == b"CONNECT a:80 HTTP/1.1"
    await tunnel_stage.close_rest(client)


async def test_declined_connect_is_a_response(stage: Stage) -> None:
    """The client's connection goes on in HTTP."""
    worker = await stage.serve_worker(response(b"no", status=b"403 Forbidden"), http={"allow": ["CONNECT"]})
    client = await stage.sending(CONNECT + get(b"/next"))
    assert [(await client.response()).body for _ in range(2)] == [b"no", b"no"]
    assert [request.line for request in worker.requests] == [b"CONNECT a:80 HTTP/1.1", b"GET /next HTTP/1.1"]
    assert (stage.pool().idle, stage.outcomes()) == (1, {"ok": 2})


async def test_trace_is_forwarded_if_allowed(stage: Stage) -> None:
    await stage.serve(await stage.worker(response(b"seen")), http={"allow": ["TRACE"]})
    assert (await stage.ask(get(method=b"TRACE"))).body == b"seen"
    assert (await stage.ask(CONNECT)).status == 405


@pytest.mark.parametrize(
    "answer",
    [
        response(b"plain"),
        response(b"plain", b"Connection: Upgrade", b"Upgrade: chat/1"),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nplain\r\n0\r\n\r\n",
        response(b"plain", status=b"503 Not Now"),
    ],
)
@pytest.mark.parametrize("step", [None, 1])
async def test_declined_upgrade_is_a_response(stage: Stage, answer: bytes, step: int | None) -> None:
    """Both connections go on in HTTP, and bytes after the upgrade request are requests."""
    worker = await stage.serve_worker(answer)
    client = await stage.client()
    data = get(b"/", *UPGRADE_FIELDS) * 3 + post(b"body") + get(b"/last")
    for at in range(0, len(data), step or len(data)):
        await client.send(data[at : at + (step or len(data))])
        await stage.turn(1)
    answers = [await client.response() for _ in range(5)]
    assert [answer.body for answer in answers] == [b"plain"] * 5
    assert {b"upgrade", b"connection"}.isdisjoint(answers[0].names)
    assert [request.body for request in worker.requests] == [b"", b"", b"", b"body", b""]
    assert worker.requests[-1].line == b"GET /last HTTP/1.1"
    assert (len(worker.connections), stage.pool().idle) == (1, 1)


async def test_426_keeps_its_upgrade_field(stage: Stage) -> None:
    """RFC 9110 § 15.5.22."""
    answer = response(b"", b"Upgrade: chat/9", b"Connection: upgrade, close", status=b"426 Upgrade Required")
    await stage.serve(await stage.worker(answer))
    reply = await stage.ask(get(b"/", *UPGRADE_FIELDS))
    assert (reply.status, reply.value(b"Upgrade"), reply.value(b"Connection")) == (426, b"chat/9", b"Upgrade")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 101 Go On\r\n\r\n",
        b"HTTP/1.1 101 Go On\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 101 Go On\r\nUpgrade: chat/1\r\n\r\n",
        b"HTTP/1.1 101 Go On\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
        b"HTTP/1.1 101 Go On\r\nConnection: upgrade\r\nUpgrade: chat/1, other\r\n\r\n",
        b"HTTP/1.1 101 Go On\r\nConnection: upgrade\r\nUpgrade: chat/1\r\nUpgrade: other\r\n\r\n",
    ],
)
@pytest.mark.parametrize("early", [b"", get(b"/next")])
async def test_101_to_another_protocol_is_answered_502(stage: Stage, answer: bytes, early: bytes) -> None:
    """502; the worker's connection is closed, the client's goes on in HTTP."""
    worker = await stage.serve_worker(answer + b"garbage")
    client = await stage.sending(get(b"/", *UPGRADE_FIELDS) + early)
    for _ in range(2 if early else 1):
        assert (await client.response()).status == 502
    assert stage.outcomes() == {"reset": 2 if early else 1}
    assert len(worker.connections) == (2 if early else 1)
    assert (stage.pool().idle, len(stage.cluster.tunnels), stage.cluster.tunnels.opened) == (0, 0, 0)


@pytest.mark.parametrize(
    "request_bytes",
    [
        get(),
        get(b"/", *UPGRADE_FIELDS, version=b"HTTP/1.0"),
        post(b"body", *UPGRADE_FIELDS),
        get(b"/", b"Connection: Upgrade", b"Upgrade: h2c"),
        get(b"/", b"Upgrade: chat/1"),
    ],
)
async def test_unrequested_101_is_answered_502(stage: Stage, request_bytes: bytes) -> None:
    """502, also after a request that was not forwarded as an upgrade."""
    await stage.serve(await stage.worker(SWITCHED + b"garbage"))
    assert (await stage.ask(request_bytes)).status == 502
    assert stage.outcomes() == {"reset": 1}


async def test_upgrade_is_retried_at_another_endpoint(stage: Stage, tunnel_stage: TunnelStage) -> None:
    """The client's early bytes were not sent yet, so the next endpoint gets them."""
    over = asyncio.Event()
    gone = await stage.worker(playing(Wire.request))
    script = playing(Wire.request, SWITCHED, lambda wire: wire.exactly(len(b"early")), over)
    switching = await stage.worker(script)
    await stage.serve(gone, switching)
    client = await stage.sending(get(b"/", *UPGRADE_FIELDS) + b"early")
    assert (await client.head()).status == 101
    assert gone.connections[0].received.endswith(b"\r\n\r\n")
    await stage.eventually(lambda: switching.received.endswith(b"\r\n\r\nearly"))
    assert stage.cluster.tunnels.bytes_in == 5
    over.set()
    assert await client.rest() == b""
    await client.close()
    await stage.eventually(lambda: not stage.cluster.tunnels)
    assert (stage.outcomes("w0"), stage.outcomes("w1")) == ({"reset": 1}, {"tunnelled": 1})


async def test_failed_upgrade_is_answered_502(stage: Stage) -> None:
    """The client's connection goes on in HTTP."""
    await stage.serve(stage.dead_port())
    client = await stage.sending(get(b"/", *UPGRADE_FIELDS) * 200)
    for _ in range(200):
        assert (await client.response()).status == 502


# --- back-pressure


async def read_slowly(reader: Wire, size: int) -> bytes:
    """Read `size` bytes in small pieces, each with the whole patience."""
    piece = MIB // 16
    return b"".join([await reader.exactly(piece) for _ in range(size // piece)])


async def write_until_blocked(sender: Wire, stage: Stage, data: bytes) -> int:
    """Write until nothing moves any more; return the bytes left unsent."""
    sender.write(data)
    before = -1
    while before != (now := sender.unsent):
        before = now
        await stage.turn(200)
    return now


@pytest.mark.parametrize("is_upwards", [True, False])
async def test_slow_reader_pauses_the_other_side(
    stage: Stage, tunnel_stage: TunnelStage, is_upwards: bool
) -> None:
    """A bounded part is held, the other direction stays open, and all bytes arrive."""
    data = os.urandom(MIB) * (24 if is_upwards else 16)  # the kernel takes 14, and a worker's reader 2
    client, worker = await tunnel_stage.serve_tunnel(receive_buffer=None if is_upwards else 4096)
    sender, reader = (client, worker) if is_upwards else (worker, client)
    assert await write_until_blocked(sender, stage, data) > 2 * MIB
    assert max(buffered(stage)) < MIB
    await reader.send(b"still here")
    assert await sender.exactly(10) == b"still here"
    assert await read_slowly(reader, len(data)) == data
    assert max(buffered(stage)) == 0
    await tunnel_stage.close_rest(client)


def buffered(stage: Stage) -> list[int]:
    """Bytes buffered in the balancer, per side of each tunnel."""
    return [size for tunnel in stage.cluster.tunnels for size in cast(Tunnel, tunnel).unsent]


async def test_read_pause_before_the_101_continues_in_the_tunnel(stage: Stage) -> None:
    """Reading that was paused for an earlier response stays paused in the tunnel, and resumes."""
    data = os.urandom(MIB) * 8
    over = asyncio.Event()
    script = playing(Wire.request, response(data), Wire.request, SWITCHED + data, over)
    await stage.serve(await stage.worker(script))
    client = await stage.sending(get() + get(b"/", *UPGRADE_FIELDS), receive_buffer=4096)
    assert (await client.head()).status == 200
    assert await read_slowly(client, len(data)) == data
    assert (await client.head()).status == 101
    assert await read_slowly(client, len(data)) == data
    over.set()
    assert await client.rest() == b""


# --- closing


@pytest.mark.parametrize("is_client_first", [True, False])
async def test_half_close_is_passed_on(
    stage: Stage, tunnel_stage: TunnelStage, is_client_first: bool
) -> None:
    """The other direction stays open."""
    client, worker = await tunnel_stage.serve_tunnel()
    first, second = (client, worker) if is_client_first else (worker, client)
    await first.send(b"last word")
    first.half_close()
    assert await second.rest() == b"last word"
    await second.send(b"x" * MIB)
    assert await read_slowly(first, MIB) == b"x" * MIB
    assert len(stage.cluster.tunnels) == 1
    second.half_close()
    assert await first.rest() == b""
    await tunnel_stage.close_rest()


@pytest.mark.parametrize("is_unix", [False, True])
async def test_half_close_behind_one_of_the_worker_while_reading_is_paused(
    stage: Stage, tunnel_stage: TunnelStage, tmp_path: Path, is_unix: bool
) -> None:
    """The kernel reports a hang-up once both FINs are there, which is no reset: the worker gets every byte."""
    listen = f"unix:{tmp_path / 'web'}" if is_unix else "127.0.0.1:0"
    client, worker = await tunnel_stage.serve_tunnel(listen=listen)
    worker.half_close()
    assert await client.rest() == b""
    sent, piece = 0, b"x" * 4096
    [downstream] = stage.downstreams
    while downstream.transport.is_reading():
        await client.send(piece)
        sent += len(piece)
        await stage.turn(1)
    await client.send(piece)
    client.half_close()
    await stage.turn()
    assert client.unsent == 0
    stage.advance(0.0)
    assert len(await worker.rest()) == sent + len(piece)
    await tunnel_stage.close_rest()


async def test_client_half_closes_before_the_101(stage: Stage) -> None:
    """Its FIN is passed on after its early bytes, and it gets what the worker sends."""
    ended = asyncio.Event()
    worker = await stage.serve_worker(playing(Wire.request, ended, SWITCHED, Wire.rest, b"bye"))
    client = await stage.sending(get(b"/", *UPGRADE_FIELDS) + b"early")
    client.cut()
    await stage.turn()
    ended.set()
    assert (await client.head()).status == 101
    assert await client.rest() == b"bye"
    assert worker.received.endswith(b"\r\n\r\nearly")
    await stage.eventually(lambda: are_settled(stage))


@pytest.mark.parametrize("early", [b"", get(b"/next")])
async def test_client_half_closes_before_a_declined_upgrade(stage: Stage, early: bytes) -> None:
    """It gets its responses first."""
    ended = asyncio.Event()
    script = playing(Wire.request, ended, response(b"no"), Wire.request, response(b"next"), Wire.closed)
    await stage.serve(await stage.worker(script))
    client = await stage.sending(get(b"/", *UPGRADE_FIELDS) + early)
    client.cut()
    await stage.turn()
    ended.set()
    assert (await client.response()).body == b"no"
    if early:
        assert (await client.response()).body == b"next"
    assert await client.rest() == b""


@pytest.mark.parametrize("is_client", [True, False])
async def test_reset_is_passed_on(stage: Stage, tunnel_stage: TunnelStage, is_client: bool) -> None:
    client, worker = await tunnel_stage.serve_tunnel()
    breaker, other = (client, worker) if is_client else (worker, client)
    breaker.reset()
    with pytest.raises(ConnectionResetError):
        await other.rest()
    await tunnel_stage.close_rest()
    assert (stage.pool().leased, stage.cluster.counts.abandoned) == (0, 0)


async def test_idle_tunnel_is_closed(stage: Stage, tunnel_stage: TunnelStage) -> None:
    """After `tunnel_idle` without a byte in either direction; no other timeout applies."""
    client, worker = await tunnel_stage.serve_tunnel(timeouts={"tunnel_idle": 600})
    for sender, reader in ((client, worker), (worker, client)):
        stage.advance(599)
        await sender.send(b"ping")
        assert await reader.exactly(4) == b"ping"
    stage.advance(599)
    assert len(stage.cluster.tunnels) == 1
    stage.advance(2)
    assert await client.rest() == await worker.rest() == b""
    await tunnel_stage.close_rest()


async def test_tunnel_with_unread_bytes_is_closed(stage: Stage, tunnel_stage: TunnelStage) -> None:
    """Bytes for a reader that reads nothing are dropped after `body_idle`."""
    _, worker = await tunnel_stage.serve_tunnel(
        receive_buffer=4096, timeouts={"tunnel_idle": 600, "body_idle": 60}
    )
    assert await write_until_blocked(worker, stage, b"x" * 16 * MIB) > 0
    stage.advance(601)
    for _ in range(3):
        await stage.turn()
        stage.advance(61)
    await tunnel_stage.close_rest()


async def test_stalled_reader_has_tunnel_idle(stage: Stage, tunnel_stage: TunnelStage) -> None:
    """`body_idle` does not apply."""
    client, worker = await tunnel_stage.serve_tunnel(
        receive_buffer=4096, timeouts={"tunnel_idle": 600, "body_idle": 60}
    )
    assert await write_until_blocked(worker, stage, b"x" * 16 * MIB) > 0
    stage.advance(500)
    await stage.turn()
    assert await read_slowly(client, 16 * MIB) == b"x" * 16 * MIB
    await tunnel_stage.close_rest(client)


async def test_drain_keeps_tunnels_for_the_grace_period(stage: Stage, tunnel_stage: TunnelStage) -> None:
    """Tunnels live on, and more may be opened on existing connections, until the grace period ends."""
    client, worker = await tunnel_stage.serve_tunnel(timeouts={"shutdown": 0.2})
    server, stage.server = stage.running, None
    stopping = asyncio.ensure_future(server.stop())
    await stage.turn()
    await client.send(b"still")
    assert await worker.exactly(5) == b"still"
    assert await stopping is False
    assert await client.rest() == await worker.rest() == b""
    await stage.eventually(lambda: not server.cluster.tunnels and not server.cluster.process.downstreams)
    assert server.cluster.pools.open_connections == 0


async def test_drain_ends_with_the_last_tunnel(stage: Stage, tunnel_stage: TunnelStage) -> None:
    client, _ = await tunnel_stage.serve_tunnel()
    server, stage.server = stage.running, None
    stopping = asyncio.ensure_future(server.stop())
    await stage.turn()
    await client.close()
    tunnel_stage.over.set()
    assert await stopping is True


async def test_descriptor_limit_leaves_tunnels_open(stage: Stage, tunnel_stage: TunnelStage) -> None:
    """At the descriptor limit tunnels can be opened and are not closed as idle connections."""
    await tunnel_stage.serve()
    stage.cluster.process.set_crowded(True)
    client, worker = await tunnel_stage.open_tunnel()
    stage.advance(1000)
    (downstream,) = stage.downstreams
    assert not downstream.close_if_idle(stage.clock.at, longer_than=1)
    await worker.send(b"here")
    assert await client.exactly(4) == b"here"
    await tunnel_stage.close_rest(client)


async def test_tunnel_counts_against_the_endpoint_limit(stage: Stage, tunnel_stage: TunnelStage) -> None:
    """It counts in flight for its whole life, so with a limit of one the next request waits."""
    client, worker = await tunnel_stage.serve_tunnel(max_in_flight=1)
    waiting = await stage.sending(get(b"/", *UPGRADE_FIELDS))
    await stage.eventually(lambda: len(stage.cluster.queue) == 1)
    worker.reset()
    assert (await waiting.head()).status == 101
    await waiting.close()
    await client.closed()
    await tunnel_stage.close_rest(number=2)


async def test_tunnel_is_no_latency_sample(stage: Stage, tunnel_stage: TunnelStage) -> None:
    client, _ = await tunnel_stage.serve_tunnel()
    stage.advance(1000)
    await tunnel_stage.close_rest(client)
    assert stage.state().histogram.count == 0
    assert not stage.state().is_measured(stage.clock.at)


async def test_tunnels_in_status_and_metrics(stage: Stage, tunnel_stage: TunnelStage) -> None:
    """Open, opened and bytes, during and after the tunnel."""
    await tunnel_stage.serve(SWITCHED + b"hello")
    client, worker = await tunnel_stage.open_tunnel(early=b"abc")
    await worker.exactly(3)
    for is_open in (1, 0):
        status = proxy_status(stage.control_plane)["tunnels"]
        assert status == {"open": is_open, "opened": 1, "bytes_in": 3, "bytes_out": 5}
        text = metrics_text(stage.control_plane)[0].decode()
        assert f"steelyard_tunnels {is_open}.0" in text
        assert "steelyard_tunnels_opened_total 1.0" in text
        assert 'steelyard_tunnel_bytes_total{direction="out"} 5.0' in text
        if is_open:
            await tunnel_stage.close_rest(client)


Ending = Callable[[Stage, Wire, Wire], Awaitable[None]]


async def both_reset(stage: Stage, client: Wire, worker: Wire) -> None:
    client.reset()
    worker.reset()


async def both_half_close(stage: Stage, client: Wire, worker: Wire) -> None:
    client.cut()
    worker.cut()


async def reset_after_half_close(stage: Stage, client: Wire, worker: Wire) -> None:
    client.cut()
    worker.reset()


async def reset_under_load(stage: Stage, client: Wire, worker: Wire) -> None:
    worker.write(b"x" * 4 * MIB)
    client.write(b"x" * 4 * MIB)
    await stage.turn()
    client.reset()


@pytest.mark.parametrize("ending", [both_reset, both_half_close, reset_after_half_close, reset_under_load])
async def test_tunnel_is_settled_once(stage: Stage, tunnel_stage: TunnelStage, ending: Ending) -> None:
    """The stage fails if anything is in flight at its end."""
    client, worker = await tunnel_stage.serve_tunnel()
    await ending(stage, client, worker)
    tunnel_stage.over.set()
    await stage.eventually(lambda: are_settled(stage))
    assert stage.pool().leased == stage.pool().idle == 0
