"""Upgrades and CONNECT: who gets a tunnel, what passes through it, and how it ends.

Rule of this file: both ends are raw sockets, so every byte is ours. A tunnel here speaks no protocol; that real
WebSockets live through it stands in test_websockets.py.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from balancer.admin.metrics import metrics_text
from balancer.admin.status import proxy_status
from tests.balancer.conftest import Message, ScriptedWorker, Stage, Wire, get, post, response

MIB = 1 << 20
OFFER = (b"Connection: Upgrade", b"Upgrade: chat/2, chat/1", b"Sec-Chat-Key: a b")
SWITCHED = b"HTTP/1.1 101 Go On\r\nConnection: upgrade\r\nUpgrade: chat/1\r\nSec-Chat-Accept: x\r\n\r\n"
CONNECT = get(b"a:80", method=b"CONNECT")

Ends = tuple[Wire, Wire]


class Party:
    """A stage with one worker that answers a request with `answer`, and then leaves its connection to the test."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.worker: ScriptedWorker
        self.over = asyncio.Event()

    async def serve(self, answer: bytes = SWITCHED, **settings: Any) -> None:
        async def script(wire: Wire) -> None:
            await wire.request()
            wire.write(answer)
            await self.over.wait()

        self.worker = await self.stage.worker(script)
        await self.stage.serve(self.worker, http={"allow": ["CONNECT"]}, **settings)

    async def meet(
        self, request: bytes = get(b"/", *OFFER), *, early: bytes = b"", receive_buffer: int | None = None
    ) -> Ends:
        """Open a tunnel: the client's end and the worker's."""
        client = await self.stage.client(receive_buffer=receive_buffer)
        await client.send(request + early)
        assert (await client.head()).status in (101, 200)
        return client, self.worker.connections[-1]

    async def part(self) -> None:
        """Whoever is left has been closed on."""
        self.over.set()
        await self.stage.eventually(lambda: not self.stage.proxy.tunnels)


@pytest.fixture
def party(stage: Stage) -> Party:
    return Party(stage)


def tunnelled(stage: Stage, number: int = 1) -> bool:
    """Whether so many tunnels were settled, nothing else, and nothing is in flight."""
    proxy = stage.proxy
    return stage.outcomes() == {"tunnelled": number} and not stage.state().in_flight and not proxy.tunnels


# --- who gets one


async def test_an_offer_goes_on_and_so_does_its_answer(stage: Stage, party: Party) -> None:
    """RFC 9110 § 7.8: Upgrade and Connection on both legs, all else untouched, the worker's own reason phrase."""
    await party.serve()
    client = await stage.client()
    await client.send(get(b"/room", *OFFER))
    head = await client.head()
    assert head == Message(
        b"HTTP/1.1 101 Go On",
        ((b"Connection", b"Upgrade"), (b"Upgrade", b"chat/1"), (b"Sec-Chat-Accept", b"x")),
    )
    asked = party.worker.requests[0]
    assert asked.line == b"GET /room HTTP/1.1"
    assert [asked.value(name) for name in (b"Connection", b"Upgrade", b"Sec-Chat-Key")] == [
        b"Upgrade",
        b"chat/2, chat/1",
        b"a b",
    ]
    worker = party.worker.connections[0]
    await client.send(b"\x00GET / HTTP/1.1\r\n\r\n")
    assert await worker.exactly(19) == b"\x00GET / HTTP/1.1\r\n\r\n"
    await worker.send(b"HTTP/1.1 200 OK\r\n\r\n\xff")
    assert await client.exactly(20) == b"HTTP/1.1 200 OK\r\n\r\n\xff"
    assert stage.state().in_flight == stage.proxy.in_flight == len(stage.proxy.tunnels) == 1
    await client.close()
    await party.part()
    assert tunnelled(stage)


@pytest.mark.parametrize("step", [None, 1, 7])
async def test_bytes_behind_both_heads(stage: Stage, party: Party, step: int | None) -> None:
    """A client need not wait for the 101, and a worker may speak first: nothing is lost, and nothing parsed."""
    early = b"GET /not-http HTTP/1.1\r\n\r\n"
    await party.serve(b"HTTP/1.1 103 Early Hints\r\n\r\n" + SWITCHED + b"\r\n\r\nwelcome")
    client = await stage.client()
    data = get(b"/", *OFFER) + early
    for at in range(0, len(data), step or len(data)):
        await client.send(data[at : at + (step or len(data))])
        await stage.turn(1)
    assert (await client.head()).status == 103
    assert (await client.head()).status == 101
    assert await client.exactly(11) == b"\r\n\r\nwelcome"
    assert await party.worker.connections[0].exactly(len(early)) == early
    assert len(party.worker.requests) == 1
    await client.close()
    await party.part()
    assert (stage.proxy.tunnels.bytes_in, stage.proxy.tunnels.bytes_out) == (len(early), 11)


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
async def test_connect(stage: Stage, party: Party, answer: bytes, version: bytes, first: bytes) -> None:
    """RFC 9110 § 9.3.6: any 2xx makes a tunnel; what such a response says of a body is not listened to."""
    await party.serve(answer + first)
    client = await stage.client()
    await client.send(get(b"a:80", method=b"CONNECT", version=version) + b"early")
    head = await client.head()
    assert (head.status, head.names) == (int(answer[9:12]), [])
    assert await client.exactly(len(first)) == first
    worker = party.worker.connections[0]
    assert await worker.exactly(5) == b"early"
    assert party.worker.requests[0].line == b"CONNECT a:80 HTTP/1.1"
    await client.close()
    await party.part()
    assert tunnelled(stage)


async def test_connect_that_is_declined(stage: Stage) -> None:
    """A response like any other, and the connection goes on in HTTP."""
    worker = await stage.worker(response(b"no", status=b"403 Forbidden"))
    await stage.serve(worker, http={"allow": ["CONNECT"]})
    client = await stage.client()
    await client.send(CONNECT + get(b"/next"))
    assert [(await client.response()).body for _ in range(2)] == [b"no", b"no"]
    assert [request.line for request in worker.requests] == [b"CONNECT a:80 HTTP/1.1", b"GET /next HTTP/1.1"]
    assert (stage.pool().idle, stage.outcomes()) == (1, {"ok": 2})


async def test_trace_where_it_is_allowed(stage: Stage) -> None:
    """A request like any other."""
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
async def test_an_offer_that_is_declined(stage: Stage, answer: bytes, step: int | None) -> None:
    """Both connections stay HTTP, and what came behind the offer is a request; further offers may follow."""
    worker = await stage.worker(answer)
    await stage.serve(worker)
    client = await stage.client()
    data = get(b"/", *OFFER) * 3 + post(b"body") + get(b"/last")
    for at in range(0, len(data), step or len(data)):
        await client.send(data[at : at + (step or len(data))])
        await stage.turn(1)
    answers = [await client.response() for _ in range(5)]
    assert [answer.body for answer in answers] == [b"plain"] * 5
    assert {b"upgrade", b"connection"}.isdisjoint(answers[0].names)
    assert [request.body for request in worker.requests] == [b"", b"", b"", b"body", b""]
    assert worker.requests[-1].line == b"GET /last HTTP/1.1"
    assert (len(worker.connections), stage.pool().idle) == (1, 1)


async def test_upgrade_required_says_to_what(stage: Stage) -> None:
    """RFC 9110 § 15.5.22: a 426 without Upgrade would tell the client nothing."""
    answer = response(b"", b"Upgrade: chat/9", b"Connection: upgrade, close", status=b"426 Upgrade Required")
    await stage.serve(await stage.worker(answer))
    told = await stage.ask(get(b"/", *OFFER))
    assert (told.status, told.value(b"Upgrade"), told.value(b"Connection")) == (426, b"chat/9", b"Upgrade")


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
async def test_a_switch_to_what_was_not_offered(stage: Stage, answer: bytes, early: bytes) -> None:
    """502, the worker's connection is closed, and the client's goes on in HTTP."""
    worker = await stage.worker(answer + b"garbage")
    await stage.serve(worker)
    client = await stage.client()
    await client.send(get(b"/", *OFFER) + early)
    for _ in range(2 if early else 1):
        assert (await client.response()).status == 502
    assert stage.outcomes() == {"reset": 2 if early else 1}
    assert len(worker.connections) == (2 if early else 1)
    assert (stage.pool().idle, len(stage.proxy.tunnels), stage.proxy.tunnels.opened) == (0, 0, 0)


@pytest.mark.parametrize(
    "request_bytes",
    [
        get(),
        get(b"/", *OFFER, version=b"HTTP/1.0"),
        post(b"body", *OFFER),
        get(b"/", b"Connection: Upgrade", b"Upgrade: h2c"),
        get(b"/", b"Upgrade: chat/1"),
    ],
)
async def test_a_switch_that_nobody_asked_for(stage: Stage, request_bytes: bytes) -> None:
    """502; also for what looked like an offer, but was not passed on as one."""
    await stage.serve(await stage.worker(SWITCHED + b"garbage"))
    assert (await stage.ask(request_bytes)).status == 502
    assert stage.outcomes() == {"reset": 1}


async def test_an_offer_behind_others_waits_for_its_turn(stage: Stage) -> None:
    """Pipelined: answered in order, and what follows the offer belongs to the tunnel."""
    over = asyncio.Event()

    async def script(wire: Wire) -> None:
        assert (await wire.request()).line == b"GET /first HTTP/1.1"
        await wire.send(response(b"first"))
        assert (await wire.request()).line == b"GET / HTTP/1.1"
        await wire.send(SWITCHED)
        await wire.send((await wire.exactly(9)).upper())
        await over.wait()

    await stage.serve(await stage.worker(script))
    client = await stage.client()
    await client.send(get(b"/first") + get(b"/", *OFFER) + b"get /late")
    assert (await client.response()).body == b"first"
    assert (await client.head()).status == 101
    assert await client.exactly(9) == b"GET /LATE"
    over.set()
    assert await client.rest() == b""


async def test_an_offer_is_repeated_where_that_is_safe(stage: Stage, party: Party) -> None:
    """Nothing of the client's early bytes has gone anywhere, so the next endpoint gets them."""

    async def script(wire: Wire) -> None:
        await wire.request()

    gone = await stage.worker(script)
    over = asyncio.Event()

    async def switch(wire: Wire) -> None:
        await wire.request()
        await wire.send(SWITCHED)
        assert await wire.exactly(5) == b"early"
        await over.wait()

    await stage.serve(gone, await stage.worker(switch))
    client = await stage.client()
    await client.send(get(b"/", *OFFER) + b"early")
    assert (await client.head()).status == 101
    assert gone.connections[0].received.endswith(b"\r\n\r\n")
    await stage.eventually(lambda: stage.proxy.tunnels.bytes_in == 5)
    over.set()
    assert await client.rest() == b""
    await client.close()
    await stage.eventually(lambda: not stage.proxy.tunnels)
    assert (stage.outcomes("w0"), stage.outcomes("w1")) == ({"reset": 1}, {"tunnelled": 1})


async def test_nobody_takes_the_offer(stage: Stage) -> None:
    """Errors of our own are answers like others: the client may go on."""
    await stage.serve(stage.dead_port())
    client = await stage.client()
    await client.send(get(b"/", *OFFER) * 200)
    for _ in range(200):
        assert (await client.response()).status == 502


# --- flow


async def whole(reader: Wire, size: int) -> bytes:
    """So many bytes, however long they take, as long as some come."""
    piece = MIB // 16
    return b"".join([await reader.exactly(piece) for _ in range(size // piece)])


async def pushed(sender: Wire, stage: Stage, data: bytes) -> int:
    """Write until nothing moves any more; what is left unsent."""
    sender.write(data)
    before = -1
    while before != (now := sender.unsent):
        before = now
        await stage.turn(200)
    return now


@pytest.mark.parametrize("is_upwards", [True, False])
async def test_a_slow_side_makes_the_other_wait(stage: Stage, party: Party, is_upwards: bool) -> None:
    """MiBs towards one that reads nothing: a bounded part is held, the other way stays open, and all arrives."""
    data = os.urandom(MIB) * (24 if is_upwards else 16)  # the kernel takes 14, and a worker's reader 2
    await party.serve()
    client, worker = await party.meet(receive_buffer=None if is_upwards else 4096)
    sender, reader = (client, worker) if is_upwards else (worker, client)
    assert await pushed(sender, stage, data) > 2 * MIB
    assert max(buffered(stage)) < MIB
    await reader.send(b"still here")
    assert await sender.exactly(10) == b"still here"
    assert await whole(reader, len(data)) == data
    assert max(buffered(stage)) == 0
    await client.close()
    await party.part()
    assert tunnelled(stage)


def buffered(stage: Stage) -> list[int]:
    """Bytes that wait in the unit, for each side of each tunnel."""
    return [size for tunnel in stage.proxy.tunnels for size in tunnel.unsent]


async def test_a_client_that_reads_nothing_before_the_switch(stage: Stage) -> None:
    """What was paused for the sake of an earlier answer stays paused in the tunnel, and goes on."""
    data = os.urandom(MIB) * 8
    over = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(response(data))
        await wire.request()
        wire.write(SWITCHED + data)
        await over.wait()

    worker = await stage.worker(script)
    await stage.serve(worker)
    client = await stage.client(receive_buffer=4096)
    await client.send(get() + get(b"/", *OFFER))
    assert (await client.head()).status == 200
    assert await whole(client, len(data)) == data
    assert (await client.head()).status == 101
    assert await whole(client, len(data)) == data
    over.set()
    assert await client.rest() == b""


# --- ends


@pytest.mark.parametrize("is_client_first", [True, False])
async def test_half_an_end_is_passed_on(stage: Stage, party: Party, is_client_first: bool) -> None:
    """Who has said all may still listen, for as long as the other talks."""
    await party.serve()
    client, worker = await party.meet()
    first, second = (client, worker) if is_client_first else (worker, client)
    await first.send(b"last word")
    first.half_close()
    assert await second.rest() == b"last word"
    await second.send(b"x" * MIB)
    assert await whole(first, MIB) == b"x" * MIB
    assert len(stage.proxy.tunnels) == 1
    second.half_close()
    assert await first.rest() == b""
    await party.part()
    assert tunnelled(stage)


async def test_a_client_that_ends_before_the_switch(stage: Stage) -> None:
    """Its end is passed on behind what it sent; it still hears the worker out."""
    ended = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await ended.wait()
        await wire.send(SWITCHED)
        assert await wire.rest() == b"early"
        await wire.send(b"bye")

    await stage.serve(await stage.worker(script))
    client = await stage.client()
    await client.send(get(b"/", *OFFER) + b"early")
    client.cut()
    await stage.turn()
    ended.set()
    assert (await client.head()).status == 101
    assert await client.rest() == b"bye"
    await stage.eventually(lambda: tunnelled(stage))


@pytest.mark.parametrize("early", [b"", get(b"/next")])
async def test_a_client_that_ends_before_it_is_declined(stage: Stage, early: bytes) -> None:
    """It gets its answers, and then the end."""
    ended = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await ended.wait()
        await wire.send(response(b"no"))
        await wire.request()
        await wire.send(response(b"next"))
        await wire.closed()

    await stage.serve(await stage.worker(script))
    client = await stage.client()
    await client.send(get(b"/", *OFFER) + early)
    client.cut()
    await stage.turn()
    ended.set()
    assert (await client.response()).body == b"no"
    if early:
        assert (await client.response()).body == b"next"
    assert await client.rest() == b""


@pytest.mark.parametrize("is_client", [True, False])
async def test_a_reset_is_passed_on(stage: Stage, party: Party, is_client: bool) -> None:
    """Nobody may take a broken stream for a whole one."""
    await party.serve()
    client, worker = await party.meet()
    breaker, other = (client, worker) if is_client else (worker, client)
    breaker.reset()
    with pytest.raises(ConnectionResetError):
        await other.rest()
    await party.part()
    assert tunnelled(stage)
    assert (stage.pool().leased, stage.proxy.counts.abandoned) == (0, 0)


async def test_the_client_leaves_while_its_offer_is_out(stage: Stage) -> None:
    """Abandoned like any request."""
    asked = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        asked.set()
        await wire.closed()

    await stage.serve(await stage.worker(script))
    client = await stage.client()
    await client.send(get(b"/", *OFFER))
    await asked.wait()
    client.reset()
    await stage.eventually(lambda: stage.outcomes() == {"abandoned": 1})


async def test_a_worker_that_does_not_answer_an_offer(stage: Stage) -> None:
    """504 after the usual time, and HTTP goes on."""

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.closed()

    await stage.serve(await stage.worker(script), timeouts={"first_byte": 5})
    client = await stage.client()
    await client.send(get(b"/", *OFFER))
    await stage.eventually(lambda: stage.state().in_flight and stage.pool().leased)
    stage.advance(5.1)
    assert (await client.response()).status == 504
    assert stage.outcomes() == {"timeout": 1}


async def test_an_idle_tunnel_is_closed(stage: Stage, party: Party) -> None:
    """After `tunnel_idle` without a byte either way; each byte counts, and no other timeout does."""
    await party.serve(timeouts={"tunnel_idle": 600})
    client, worker = await party.meet()
    for sender, reader in ((client, worker), (worker, client)):
        stage.advance(599)
        await sender.send(b"ping")
        assert await reader.exactly(4) == b"ping"
    stage.advance(599)
    assert len(stage.proxy.tunnels) == 1
    stage.advance(2)
    assert await client.rest() == await worker.rest() == b""
    await party.part()
    assert tunnelled(stage)


async def test_a_tunnel_that_cannot_be_closed_in_good_order(stage: Stage, party: Party) -> None:
    """What waits for a reader that reads nothing is given up in the end."""
    await party.serve(timeouts={"tunnel_idle": 600, "body_idle": 60})
    _, worker = await party.meet(receive_buffer=4096)
    assert await pushed(worker, stage, b"x" * 16 * MIB) > 0
    stage.advance(601)
    for _ in range(3):
        await stage.turn()
        stage.advance(61)
    await party.part()
    assert tunnelled(stage)


async def test_a_stalled_reader_has_the_tunnels_time(stage: Stage, party: Party) -> None:
    """A client that takes nothing for minutes is no stalled response."""
    await party.serve(timeouts={"tunnel_idle": 600, "body_idle": 60})
    client, worker = await party.meet(receive_buffer=4096)
    assert await pushed(worker, stage, b"x" * 16 * MIB) > 0
    stage.advance(500)
    await stage.turn()
    assert await whole(client, 16 * MIB) == b"x" * 16 * MIB
    await client.close()
    await party.part()


async def test_draining_leaves_tunnels_until_the_end(stage: Stage, party: Party) -> None:
    """SIGTERM: they live on, and more may be opened on connections that stand; then both sides are closed."""
    await party.serve(timeouts={"shutdown": 0.2})
    client, worker = await party.meet()
    assert stage.server is not None
    server, stage.server = stage.server, None
    stopping = asyncio.ensure_future(server.stop())
    await stage.turn()
    await client.send(b"still")
    assert await worker.exactly(5) == b"still"
    assert await stopping is False
    assert await client.rest() == await worker.rest() == b""
    await stage.eventually(lambda: not server.proxy.tunnels and not server.proxy.downstreams)
    assert server.proxy.pools.open_connections == 0


async def test_a_drain_is_over_when_the_last_tunnel_is(stage: Stage, party: Party) -> None:
    await party.serve()
    client, _ = await party.meet()
    assert stage.server is not None
    server, stage.server = stage.server, None
    stopping = asyncio.ensure_future(server.stop())
    await stage.turn()
    await client.close()
    party.over.set()
    assert await stopping is True


async def test_a_crowd_leaves_tunnels_alone(stage: Stage, party: Party) -> None:
    """While clients wait for descriptors, tunnels open as ever, and a quiet one is nobody's idle connection."""
    await party.serve()
    stage.proxy.set_crowded(True)
    client, worker = await party.meet()
    stage.advance(1000)
    (downstream,) = stage.proxy.downstreams
    assert not downstream.close_if_idle(stage.clock.at, longer_than=1)
    await worker.send(b"here")
    assert await client.exactly(4) == b"here"
    await client.close()
    await party.part()
    assert tunnelled(stage)


async def test_a_tunnel_holds_its_place_at_the_endpoint(stage: Stage, party: Party) -> None:
    """In flight for its whole life: with room for one, the next waits until it is over."""
    await party.serve(max_in_flight=1)
    client, worker = await party.meet()
    waiting = await stage.client()
    await waiting.send(get(b"/", *OFFER))
    await stage.eventually(lambda: len(stage.proxy.queue) == 1)
    worker.reset()
    assert (await waiting.head()).status == 101
    await waiting.close()
    await client.closed()
    await party.part()
    assert tunnelled(stage, 2)


async def test_a_tunnel_is_no_sample_of_latency(stage: Stage, party: Party) -> None:
    """An hour's conversation says nothing of how long an answer takes."""
    await party.serve()
    client, _ = await party.meet()
    stage.advance(1000)
    await client.close()
    await party.part()
    assert stage.state().histogram.count == 0
    assert not stage.state().is_measured(stage.clock.at)


async def test_tunnels_are_shown(stage: Stage, party: Party) -> None:
    """Open, opened and the bytes both ways, while they live and after."""
    await party.serve(SWITCHED + b"hello")
    client, worker = await party.meet(early=b"abc")
    await worker.exactly(3)
    for is_open in (1, 0):
        status = proxy_status(stage.control_plane)["tunnels"]
        assert status == {"open": is_open, "opened": 1, "bytes_in": 3, "bytes_out": 5}
        text = metrics_text(stage.control_plane)[0].decode()
        assert f"steelyard_tunnels {is_open}.0" in text
        assert "steelyard_tunnels_opened_total 1.0" in text
        assert 'steelyard_tunnel_bytes_total{direction="out"} 5.0' in text
        if is_open:
            await client.close()
            await party.part()


Ending = Callable[[Stage, Wire, Wire], Awaitable[None]]


async def both_reset(stage: Stage, client: Wire, worker: Wire) -> None:
    client.reset()
    worker.reset()


async def both_end(stage: Stage, client: Wire, worker: Wire) -> None:
    client.cut()
    worker.cut()


async def reset_meets_end(stage: Stage, client: Wire, worker: Wire) -> None:
    client.cut()
    worker.reset()


async def reset_under_load(stage: Stage, client: Wire, worker: Wire) -> None:
    worker.write(b"x" * 4 * MIB)
    client.write(b"x" * 4 * MIB)
    await stage.turn()
    client.reset()


@pytest.mark.parametrize("ending", [both_reset, both_end, reset_meets_end, reset_under_load])
async def test_settled_once_however_it_ends(stage: Stage, party: Party, ending: Ending) -> None:
    """Settling twice is an error, and the stage sees to it that nothing is left."""
    await party.serve()
    client, worker = await party.meet()
    await ending(stage, client, worker)
    await party.part()
    await stage.eventually(lambda: tunnelled(stage))
    assert stage.pool().leased == stage.pool().idle == 0
