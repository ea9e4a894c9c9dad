"""Pool of multiplexed connections: lifetime, counters, preconnect. HTTP/2 stands for all; the last tests add others."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from h2.errors import ErrorCodes
from hyperframe.frame import GoAwayFrame, SettingsFrame

from balancer.config.schema.named_clusters import ClusterSettings
from balancer.control.admin.status import proxy_status
from balancer.errors import ConnectFailed
from balancer.http.h2.limits import PING_AFTER, PING_WAIT
from balancer.tls.contexts import ClientTls
from balancer.upstream.connector import FAILURES
from balancer.upstream.http2.pool import MultiplexedPool
from balancer.upstream.pools import Pools
from balancer.upstream.request import UpstreamRequest
from balancer.upstream.stream import MultiplexedConnection
from policies.facts import AdminState, Endpoint
from tests.support import frames
from tests.support.admin_requests import status
from tests.support.scripted_transports import (
    TRANSPORTS,
    Http2,
    Play,
    hello,
    hello_after,
    over,
    serve_frames,
    serve_over,
    serve_plays,
)
from tests.support.stage import ManualClock, Stage, endpoint, quiet_loop
from tests.support.wire import ScriptedWorker, Wire, fault_of, get, post


class RecordingWaiter:
    """A `LeaseWaiter` that records its calls and leases again `times` times."""

    needs_own = False

    def __init__(self, pool: MultiplexedPool, times: int = 0) -> None:
        self.heard: list[UpstreamRequest | ConnectFailed] = []
        self._pool = pool
        self._times = times

    def connected(self, upstream: UpstreamRequest) -> None:
        self.heard.append(upstream)

    def connect_failed(self, error: ConnectFailed) -> None:
        self.heard.append(error)
        if self._times:
            self._times -= 1
            self._pool.wait(self)


def pool_of(opener: Any) -> MultiplexedPool:
    pools = Pools(0.0, ClusterSettings(), seed=1, now=ManualClock().now)
    return MultiplexedPool(Endpoint("w0", "http://192.0.2.1", "r"), pools, opener)


async def test_internal_fault_fails_all_waiters() -> None:
    """Every waiter and the event loop get the exception; nothing is left behind."""

    async def opener(pool: MultiplexedPool, tls: ClientTls | None) -> MultiplexedConnection:
        await asyncio.sleep(0)
        raise RuntimeError("out of order")

    pool = pool_of(opener)
    waiters = [RecordingWaiter(pool) for _ in range(3)]
    with quiet_loop() as complaints:
        for waiter in waiters:
            pool.wait(waiter)
        for _ in range(5):
            await asyncio.sleep(0)
    assert [str(complaint["exception"]) for complaint in complaints] == ["out of order"]
    for waiter in waiters:
        (error,) = waiter.heard
        assert isinstance(error, ConnectFailed)
        assert (str(error), error.inside) == (
            "the connection could not be opened",
            "RuntimeError: out of order",
        )
    assert (pool.opening, pool.pools.open_connections, pool.route.faults) == (0, 0, {"other": 1})


async def test_backoff_allows_one_dial_at_a_time() -> None:
    """Repeated leases do not dial again during back-off; a trial may, and its success ends the back-off."""
    opened = 0

    async def opener(pool: MultiplexedPool, tls: ClientTls | None) -> MultiplexedConnection:
        nonlocal opened
        opened += 1
        raise ConnectFailed("refused")

    pool = pool_of(opener)
    waiter = RecordingWaiter(pool, times=20)
    pool.wait(waiter)
    for _ in range(100):
        await asyncio.sleep(0)
    assert (opened, pool.connector.backoff.is_backing_off, pool.counts.spared) == (
        FAILURES,
        True,
        21 - FAILURES,
    )
    assert len(waiter.heard) == 21
    pool.open(RecordingWaiter(pool), is_trial=True)
    await asyncio.sleep(0)
    assert (opened, pool.counts.cold) == (FAILURES + 1, 21)


async def test_status(stage: Stage) -> None:
    """Transport, concurrent streams in all and per connection, and durations of the set-up."""
    gate = asyncio.Event()
    plays = await serve_plays(stage, hello_after(gate))
    asking = [asyncio.ensure_future(stage.ask(get())) for _ in range(5)]
    await stage.eventually(lambda: len(plays) == 5)
    (endpoint,) = (await status(stage))["endpoints"]
    connections = endpoint["connections"]
    assert (endpoint["transport"], connections["streams"], connections["leased"], connections["idle"]) == (
        "http2",
        5,
        1,
        0,
    )
    (one,) = connections["each"]
    assert (one["streams"], one["requests"], one["idle"]) == (5, 5, None)
    assert one["name"].startswith("127.0.0.1:")
    assert set(one["setup"]) == {"namelookup", "connect", "appconnect"}
    assert (connections["opened"], connections["idle_timeout"], connections["learned"]) == (1, 30.0, False)
    assert 1 <= connections["cold"] <= 5
    gate.set()
    await asyncio.gather(*asking)
    (one,) = proxy_status(stage.control_plane)["endpoints"][0]["connections"]["each"]
    assert (one["streams"], one["idle"]) == (0, 0)


async def test_closes_by_cause(stage: Stage) -> None:
    """By the worker (GOAWAY, or end while idle), by the balancer (age), or by a protocol error."""
    acts = ["goaway", "end", "rubbish", "old"]

    async def script(play: Play) -> None:
        assert isinstance(play, Http2)
        act = acts.pop(0)
        await hello(play)
        if act == "goaway":
            play.peer.writer.write(GoAwayFrame(0, last_stream_id=2**31 - 1).serialize())
        elif act == "end":
            play.peer.writer.close()
        elif act == "rubbish":
            play.peer.writer.write(b"\xff" * 100)

    await serve_plays(stage, script, pool={"idle_timeout": 60, "max_age": 5})
    for _ in range(3):
        await stage.ask(get())
        await stage.eventually(lambda: not stage.pool().idle)
    await stage.ask(get())
    stage.advance(6.0)
    await stage.eventually(lambda: not stage.pool().idle)
    counts = stage.pool().counts
    assert (counts.closed_by_worker, counts.closed_by_error, counts.closed_by_balancer) == (2, 1, 1)
    assert (counts.lost_idle, sum(counts.lost_ages)) == (2, 2)


@pytest.mark.parametrize(("refusals", "status"), [(3, 200), (4, 502)])
async def test_refused_request_is_sent_again_as_often_as_retries_allow(
    stage: Stage, refusals: int, status: int
) -> None:
    """To the only endpoint, on new connections: no worker has processed it."""

    async def script(play: Play) -> None:
        assert isinstance(play, Http2)
        if len(plays) > refusals:
            await hello(play)
        else:
            play.peer.writer.write(GoAwayFrame(0, last_stream_id=0).serialize())

    plays = await serve_plays(stage, script, retries=3)
    assert (await stage.ask(post(b"x"))).status == status
    assert (len(plays), stage.pool().counts.opened) == (4, 4)


async def refuse(play: Play) -> None:
    assert isinstance(play, Http2)
    play.reset(ErrorCodes.REFUSED_STREAM)


async def test_request_that_endpoints_refuse_again_ejects_none(stage: Stage) -> None:
    """At each endpoint it has failed once; further refusals of it show nothing more."""
    plays: list[Play] = []
    workers = [over("http2", refuse, plays), over("http2", refuse, plays)]
    for worker in workers:
        await stage.start(worker)
    endpoints = [endpoint(worker, f"w{at}", transport="http2") for at, worker in enumerate(workers)]
    await stage.serve(endpoints=endpoints, retries=4, policy="round-robin")
    assert fault_of(await stage.ask(post(b"x")))[:2] == (502, "stream_refused")
    assert len(plays) == 5
    assert stage.outcomes() == {"reset": 1, "busy": 2}  # of the first worker


async def test_budget_bounds_how_often_an_endpoint_that_refuses_is_asked_again(stage: Stage) -> None:
    """Beyond the first repetition, which gRPC makes, too (gRFC A6)."""
    plays = await serve_plays(stage, refuse, retries=5, retry={"share": 0.0, "per_second": 0.2})
    for attempts in (4, 2):
        plays.clear()
        assert fault_of(await stage.ask(post(b"x")))[:2] == (502, "stream_refused")
        assert len(plays) == attempts


async def test_worker_that_allows_no_request_for_a_while(stage: Stage) -> None:
    """No request waits unsent: each is refused and moves. One connection at a time asks again, with one request."""
    streams = list[int]()  # of all connections

    async def script(wire: Wire) -> None:
        await wire.send(SettingsFrame(0, {SettingsFrame.MAX_CONCURRENT_STREAMS: 0}).serialize())
        seen = len(frames.PREFACE)
        while await wire.some():
            came = [
                stream
                for kind, stream, *_ in frames.frames_of(wire.received[seen:])
                if kind == frames.HEADERS
            ]
            seen = len(wire.received)
            streams.extend(came)
            await wire.send(b"".join(frames.rst(stream, code=7) for stream in came))

    await serve_over(stage, ScriptedWorker(script), "http2", retries=1)
    answers = await asyncio.gather(*(stage.ask(get()) for _ in range(4)))
    assert {json.loads(answer.body)["error"] for answer in answers} <= {"stream_refused", "connect_failed"}
    streams.clear()
    await stage.ask(get())
    assert streams == [1, 1]


async def test_pings_count_as_heartbeats(stage: Stage) -> None:
    """Counted as heartbeats, and as failed without a reply."""
    worker = await serve_frames(stage, timeouts={"first_byte": 100})
    asking = asyncio.ensure_future(stage.ask(post(b"")))
    await stage.eventually(lambda: worker.connections and len(worker.received) > 150)
    stage.advance(PING_AFTER + 1)
    counts = stage.pool().counts
    assert (counts.heartbeats, counts.heartbeats_failed) == (1, 0)
    stage.advance(PING_WAIT + 1)
    assert (await asking).status == 502
    assert (counts.heartbeats, counts.heartbeats_failed, counts.closed_by_error) == (1, 1, 1)


async def test_preconnect(stage: Stage) -> None:
    """Opened in advance, not closed for being idle, replaced when lost, and not opened in maintenance."""
    plays = await serve_plays(stage, hello, pool={"preconnect": 1, "idle_timeout": 5})
    stage.advance(0.25)
    await stage.eventually(lambda: stage.pool().idle == 1)
    for _ in range(8):
        stage.advance(1.0)
    await stage.ask(get())
    counts = stage.pool().counts
    assert (counts.opened, counts.cold, len(plays)) == (1, 0, 1)
    stage.control_plane.registry.change("w0", state=AdminState.MAINTENANCE)
    await stage.eventually(lambda: not stage.pool().standing)
    stage.advance(0.25)
    assert stage.pool().opening == 0
    stage.control_plane.registry.change("w0", state=AdminState.READY)
    stage.advance(0.25)
    await stage.eventually(lambda: stage.pool().idle == 1)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_keep_alive_disabled(stage: Stage, transport: str) -> None:
    """Each request has its own connection, also concurrent ones; a reload may change it."""
    wires: list[Wire] = []
    gate = asyncio.Event()

    async def script(play: Play) -> None:
        wires.append(play.wire)
        if play.target == b"/wait":
            await gate.wait()
        await hello(play)

    worker = over(transport, script, [])
    await serve_over(stage, worker, transport)
    own = endpoint(worker, transport=transport)
    await stage.reload(endpoints=[own | {"keep_alive": False}])
    for _ in range(3):
        assert (await stage.ask(get())).body == b"hello"
    asking = [asyncio.ensure_future(stage.ask(get(b"/wait"))) for _ in range(3)]
    await stage.eventually(lambda: len(wires) == 6)
    gate.set()
    await asyncio.gather(*asking)
    assert len(set(map(id, wires))) == 6
    assert (stage.pool().counts.opened, stage.pool().counts.reused) == (6, 0)
    await stage.reload(endpoints=[own])
    for _ in range(3):
        await stage.ask(get())
    assert len(set(map(id, wires))) == 7
