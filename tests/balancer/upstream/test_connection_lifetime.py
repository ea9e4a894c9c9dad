"""Lifetime of worker connections: requests per connection, closing, preconnect, heartbeats, failed dials."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter

import pytest

from balancer.control.admin.status import proxy_status
from balancer.upstream.connector import FAILURES
from policies.facts import AdminState
from tests.support.scripted_transports import Play, hello, over, serve_over
from tests.support.stage import Stage
from tests.support.wire import Script, Wire, answering, answering_after, get, post, response
from tests.support.wireless import Escaped, Peer, Wireless, sends

KEPT = b"Keep-Alive: timeout=10"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def replying(*fields: bytes) -> Script:
    """Answer every request with 200, without a body for HEAD."""
    answer = response(b"ok", *fields)
    return answering(lambda request: answer[:-2] if request.line.startswith(b"HEAD") else answer)


def sweep_for(stage: Stage, seconds: float) -> None:
    for _ in range(round(seconds / 0.25)):
        stage.advance(0.25)


@pytest.mark.parametrize("transport", ["native", "http2"])
async def test_connection_serves_max_requests(stage: Stage, transport: str) -> None:
    """`max_requests` is 10, less a random 0 or 1; then the connection ends with its last response, and another is
    opened."""
    plays: list[Play] = []
    await serve_over(stage, over(transport, hello, plays), transport, pool={"max_requests": 10})
    for _ in range(30):
        assert (await stage.ask(get())).body == b"hello"
    *full, last = Counter(id(play.wire) for play in plays).values()
    assert (min(full) >= 9, max(full) <= 10, sum(full) + last) == (True, True, 30)
    counts = stage.pool().counts
    closed = len(full) + (stage.pool().idle == 0)
    await stage.eventually(lambda: (counts.closed_by_balancer, counts.closed) == (closed, closed))


async def test_preconnected_connection_serves_its_one_request(stage: Stage) -> None:
    """A preconnected connection has served no request yet."""
    await stage.serve(await stage.worker(replying()), pool={"max_requests": 1, "preconnect": 1})
    for number in range(1, 4):
        stage.advance(0.25)
        await stage.eventually(lambda: stage.pool().idle == 1)
        assert stage.pool().counts.opened == number
        await stage.ask(get())
    assert stage.pool().counts.cold == 0


async def test_announced_idle_timeout_is_used(stage: Stage) -> None:
    """Keep-Alive: timeout=10 means reuse after 8 s, not after 11 s; status shows the estimate."""
    worker = await stage.serve_worker(replying(KEPT))
    await stage.ask(get())
    sweep_for(stage, 8)
    await stage.ask(get())
    assert len(worker.connections) == 1
    sweep_for(stage, 11)
    assert (stage.pool().idle, stage.connection_pool().idle_connections.idle_probe is not None) == (1, True)
    await stage.ask(get())
    assert len(worker.connections) == 2
    connections = proxy_status(stage.control_plane)["endpoints"][0]["connections"]
    assert (connections["learned"], connections["cold"], connections["reused"]) == (True, 2, 1)
    assert 9 < connections["idle_timeout"] <= 10
    idle_probe, newer = connections["each"]
    assert (idle_probe["requests"], idle_probe["age"], idle_probe["idle"]) == (2, 19, 11)
    assert (newer["requests"], newer["age"], newer["idle"]) == (1, 0, 0)
    assert idle_probe["name"] == f"127.0.0.1:{worker.connections[0].peer_port}" != newer["name"]


async def test_idle_timeout_estimate_survives_reload(stage: Stage) -> None:
    """The pool keeps its estimate; `pool.idle_timeout` remains the upper bound."""
    await stage.serve(await stage.worker(replying(KEPT)))
    await stage.ask(get())
    sweep_for(stage, 2)
    learned = stage.connection_pool().idle_timeout
    await stage.reload(pool={"idle_timeout": 7})
    assert stage.connection_pool().idle_timeout is learned
    assert (learned.age, stage.connection_pool().idle_connections.limit) == (10, 7)
    sweep_for(stage, 6)
    assert stage.pool().idle == 0


async def test_idle_probe_raises_the_estimate(stage: Stage) -> None:
    """The estimate starts at four seconds; a connection kept idle for `pool.idle_timeout` raises it."""
    worker = await stage.serve_worker(replying(), pool={"idle_timeout": 20})
    await stage.ask(get())
    sweep_for(stage, 10)
    assert stage.pool().idle == 1
    await stage.ask(get())
    assert len(worker.connections) == 2, "the probed connection was leased"
    sweep_for(stage, 11)
    await stage.ask(get())
    sweep_for(stage, 15)
    assert stage.connection_pool().idle_connections.limit > 15
    opened = len(worker.connections)
    await stage.ask(get())
    assert len(worker.connections) == opened


async def test_closes_are_counted_by_cause(stage: Stage) -> None:
    """Closed by the worker while idle, by the balancer for its age, or as an error after unsolicited bytes."""
    unsolicited: list[bytes | None] = [None, b"HTTP/1.1 408 Request Timeout\r\n\r\n", b""]
    go = [asyncio.Event() for _ in unsolicited]

    async def script(wire: Wire) -> None:
        number = len(worker.connections) - 1
        await wire.request()
        await wire.send(response())
        await go[number].wait()
        if (data := unsolicited[number]) is not None:
            await wire.send(data)
            await wire.closed()

    worker = await stage.serve_worker(script, pool={"idle_timeout": 4})
    counts = stage.pool().counts
    for number in range(2):
        await stage.ask(get())
        go[number].set()
        await stage.eventually(lambda: not stage.pool().idle)
    await stage.ask(get())
    stage.advance(5)
    assert (counts.closed_by_worker, counts.closed_by_error, counts.closed_by_balancer) == (1, 1, 1)
    assert (counts.lost_idle, sum(counts.lost_ages), counts.died) == (2, 2, 0)
    go[2].set()


async def test_connection_closed_by_worker_under_a_request_is_retried(stage: Stage) -> None:
    """The worker reads the second request and closes: the GET is sent again and the estimate sinks."""

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(response())
        if len(worker.connections) == 1:
            await wire.request()
            wire.cut()
        else:
            await wire.closed()

    worker = await stage.serve_worker(script)
    await stage.ask(get())
    sweep_for(stage, 2)
    assert (await stage.ask(get())).status == 200
    counts = stage.pool().counts
    assert (counts.died, counts.closed_by_worker, counts.lost_idle) == (1, 1, 0)
    sweep_for(stage, 1.25)
    assert stage.connection_pool().idle_timeout.age < 2


async def test_preconnect_follows_recent_load(stage: Stage) -> None:
    """`preconnect` counts beside the recent peak of connections in use."""
    go = asyncio.Event()
    script = answering_after(go, response(b"ok", b"Keep-Alive: timeout=600"))
    await stage.serve(await stage.worker(script), pool={"preconnect": 2, "idle_timeout": 600})
    stage.advance(0.25)
    await stage.eventually(lambda: stage.pool().idle == 2)
    clients = [await stage.client() for _ in range(3)]
    for client in clients:
        await client.send(get())
    await stage.eventually(lambda: (stage.pool().leased, stage.pool().opening) == (3, 0))
    stage.advance(0.25)
    await stage.eventually(lambda: stage.pool().idle == 2)
    assert stage.pool().counts.cold == 1
    go.set()
    for client in clients:
        assert (await client.response()).status == 200
    sweep_for(stage, 2)
    assert repr(stage.pool()) == "<Pool w0 idle=5 leased=0 opening=0>"
    stage.pool().close_idle()
    stage.advance(0.25)
    await stage.eventually(lambda: (stage.pool().idle, stage.pool().opening) == (3, 0))


async def test_preconnect_keeps_within_the_connection_limit(stage: Stage) -> None:
    """It opens nothing beyond the limit and closes no connection of another pool."""
    workers = [await stage.worker(replying()) for _ in range(2)]
    await stage.serve(*workers, pool={"preconnect": 3})
    stage.cluster.pools.limit = 4
    for _ in range(4):
        stage.advance(0.25)
        await stage.eventually(lambda: not any(stage.pool(id_).opening for id_ in ("w0", "w1")))
    assert [stage.pool(id_).idle for id_ in ("w0", "w1")] == [3, 1]


async def test_endpoint_in_maintenance_is_not_preconnected(stage: Stage) -> None:
    """Idle connections are closed, and none is opened until the endpoint is ready again."""
    await stage.serve(await stage.worker(replying()), await stage.worker(replying()), pool={"preconnect": 1})
    stage.control_plane.registry.change("w0", state=AdminState.MAINTENANCE)
    for _ in range(4):
        stage.advance(0.25)
        await stage.turn()
    assert (stage.pool("w0").counts.opened, stage.pool("w1").counts.opened) == (0, 1)
    stage.control_plane.registry.change("w0", state=AdminState.READY)
    stage.advance(0.25)
    await stage.eventually(lambda: stage.pool("w0").idle == 1)


async def test_unanswered_heartbeat_is_counted(stage: Stage) -> None:
    """It ends with its connection after the connect timeout; no request fails."""
    is_answered = asyncio.Event()

    async def script(wire: Wire) -> None:
        while (await wire.request()).line.startswith(b"GET / "):
            await wire.send(response(b"ok", KEPT))
        await is_answered.wait()

    worker = await stage.worker(script)
    pool = {"preconnect": 1, "heartbeat": "/alive", "heartbeat_method": "GET"}
    await stage.serve(worker, pool=pool, timeouts={"connect": 2})
    await stage.ask(get())
    sweep_for(stage, 9.75)
    counts = stage.pool().counts
    await stage.eventually(lambda: worker.requests[-1].line == b"GET /alive HTTP/1.1")
    assert (counts.heartbeats, counts.heartbeats_failed, stage.pool().leased) == (1, 0, 1)
    sweep_for(stage, 2.25)
    assert (counts.heartbeats, counts.heartbeats_failed, counts.died) == (1, 1, 0)
    assert stage.cluster.counts.requests == stage.cluster.router.routed == 1
    is_answered.set()


def send_gets(stage: Wireless, times: int) -> list[Peer]:
    clients = []
    for _ in range(times):
        client = stage.client()
        client.send(get())
        clients.append(client)
    stage.turn()
    return clients


def test_unneeded_dial_serves_the_next_request() -> None:
    """The first request got a connection given back sooner; two waiting requests need two dials."""
    with Wireless(retries=0) as stage:
        pool = stage.cluster.pools.by_id["w0"]
        (first,) = send_gets(stage, 1)
        stage.dialling = "hang"
        (second,) = send_gets(stage, 1)
        sends(stage, stage.workers[0], ANSWER)
        assert first.received
        assert pool.opening == 1
        (third,) = send_gets(stage, 1)
        assert pool.opening == 1
        send_gets(stage, 1)
        assert (pool.opening, len(stage.workers)) == (2, 1)
        for client in (second, third):
            sends(stage, stage.workers[0], ANSWER)
            assert client.received
        stage.leave()
        assert pool.opening == 0


def test_failed_dial_fails_the_request_that_waits_now() -> None:
    with Wireless(retries=0) as stage:
        pool = stage.cluster.pools.by_id["w0"]
        send_gets(stage, 1)
        stage.dialling = "hang"
        send_gets(stage, 1)
        sends(stage, stage.workers[0], ANSWER)
        (third,) = send_gets(stage, 1)
        stage.advance(3)
        assert third.received.startswith(b"HTTP/1.1 504 ")
        assert (pool.opening, pool.counts.failed) == (0, 1)
        stage.leave()


@pytest.mark.parametrize("transport", ["native", "http2"])
async def test_last_error_keeps_no_references(stage: Stage, transport: str) -> None:
    """Neither the failed request nor the frames of its traceback."""
    address = f"http://127.0.0.1:{stage.dead_port()}"
    await stage.serve(endpoints=[{"id": "w0", "address": address, "transport": transport}], retries=0)
    assert (await stage.ask(get())).status == 502
    error = stage.pool().connector.last_error
    assert error is not None
    assert (error.__traceback__, error.__context__, error.__cause__) == (None, None, None)
    assert "refused" in (stage.pool().last_fault or "")


def test_backoff_allows_one_dial_at_a_time() -> None:
    """After `FAILURES` failures one request at a time dials, after a pause; others fail, until a dial succeeds."""
    with Wireless(retries=0, seed=1) as stage:
        stage.control_plane.checks.stop()  # they also dial while an endpoint is unreachable
        pool = stage.cluster.pools.by_id["w0"]
        stage.dialling = "refuse"
        send_gets(stage, FAILURES)
        assert (pool.counts.failed, pool.counts.spared) == (FAILURES, 0)
        refused = send_gets(stage, 1000)
        assert (pool.counts.failed, pool.counts.spared) == (FAILURES, 1000)
        assert all(client.received.startswith(b"HTTP/1.1 502 ") for client in refused)
        stage.advance(1)
        stage.dialling = "hang"
        waiting = send_gets(stage, 10)
        assert (pool.opening, pool.counts.spared) == (1, 1009)
        assert sum(not client.received for client in waiting) == 1
        stage.advance(3)
        assert (pool.opening, pool.counts.failed) == (0, FAILURES + 1)
        stage.advance(1)
        stage.dialling = "accept"
        send_gets(stage, 1)
        send_gets(stage, 5)
        assert (pool.leased, pool.connector.backoff.is_backing_off) == (6, False)
        stage.leave()
        assert not stage.left_behind()


def test_internal_fault_while_dialling_fails_the_requests() -> None:
    """Every waiting request and the event loop get the exception; the pool goes on."""
    with Wireless(retries=0) as stage:
        pool = stage.cluster.pools.by_id["w0"]
        stage.dialling = "fault"
        clients = [stage.client() for _ in range(2)]
        for client in clients:
            client.send(get())
        for _ in clients:
            with pytest.raises(Escaped) as escaped:
                stage.turn()
            assert repr(escaped.value.__cause__) == "RuntimeError('out of order')"
            del escaped
            gc.collect()  # on CPython 3.13 its frames keep the other task, which tells of its fault when it goes
        for client in clients:
            assert client.received.startswith(b"HTTP/1.1 502 ")
            assert b'"connect_failed"' in client.received
        assert (pool.opening, pool.counts.failed, stage.cluster.pools.open_connections) == (0, 2, 0)
        assert (pool.last_fault, pool.route.faults) == ("RuntimeError: out of order", {"other": 2})
        stage.dialling = "accept"
        stage.worker_script = lambda peer: peer.send(ANSWER)
        (client,) = send_gets(stage, 1)
        assert client.received.startswith(b"HTTP/1.1 200 ")
        stage.leave()


def test_backoff_sends_requests_to_another_endpoint() -> None:
    """Nothing was sent, so even a POST goes to the other endpoint."""
    with Wireless(2, retries=2, outlier_detection=(("failures", 0),), seed=1) as stage:
        troubled = stage.cluster.pools.by_id["w0"]
        for _ in range(FAILURES):
            troubled.connector.backoff.failed(stage.loop.now())
        stage.worker_script = lambda peer: peer.send(ANSWER)
        client = stage.client()
        sends(stage, client, post(b"once"))
        assert client.received.startswith(b"HTTP/1.1 200 ")
        assert (troubled.counts.spared, len(stage.workers)) == (1, 1)
        stage.leave()


def test_close_cancels_dials_of_removed_endpoints() -> None:
    """An endpoint is removed while a connection to it is being opened; then the balancer stops."""
    with Wireless(2) as stage:
        stage.dialling = "hang"
        send_gets(stage, 2)
        gone = stage.cluster.pools.by_id["w0"]
        stage.control_plane.replace_endpoints([stage.cluster.router.states[1].endpoint])
        assert repr(gone) == "<Pool w0 idle=0 leased=0 opening=1>"
        closing = stage.loop.create_task(stage.cluster.pools.close())
        stage.turn()
        assert closing.done()
        assert (gone.opening, stage.cluster.pools.open_connections) == (0, 0)
        stage.leave()
