"""Pool of connections to a worker: leasing, closing, counting, backoff and what a worker says about keep-alive."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import pytest

from balancer.errors import ConnectFailed
from balancer.http.h1.response_head import keep_alive_timeout
from balancer.upstream.connector import FAILURES, MIN_PAUSE_S, Backoff
from balancer.upstream.dial.phases import DialTimes
from balancer.upstream.request import UpstreamRequest
from tests.support.stage import Stage
from tests.support.wire import Script, Wire, answering, get, playing, post, response


def numbered(go: asyncio.Event) -> Script:
    """Answer with the connection's number once `go` is set."""
    seen: list[Wire] = []

    async def script(wire: Wire) -> None:
        seen.append(wire)
        number = len(seen)
        while True:
            await wire.request()
            await go.wait()
            await wire.send(response(b"%d" % number))

    return script


class Waiter:
    """A `LeaseWaiter` that keeps what it gets."""

    needs_own = False

    def __init__(self) -> None:
        self.got: list[UpstreamRequest] = []

    def connected(self, upstream: UpstreamRequest) -> None:
        self.got.append(upstream)

    def connect_failed(self, error: ConnectFailed) -> None:
        raise error


async def test_newest_idle_connection_is_leased_first(stage: Stage) -> None:
    """The connection given back last is the least likely to be closed; the others age out."""
    go = asyncio.Event()
    worker = await stage.serve_worker(numbered(go), pool={"idle_timeout": 4})
    clients = [await stage.client() for _ in range(3)]
    for client in clients:
        await client.send(get())
    await stage.eventually(lambda: len(worker.requests) == 3)
    go.set()
    numbers = [(await client.response()).body for client in clients]
    assert sorted(numbers) == [b"1", b"2", b"3"]
    assert repr(stage.pool()) == "<Pool w0 idle=3 leased=0 opening=0>"
    newest = (await stage.ask(get())).body
    assert [(await stage.ask(get())).body for _ in range(5)] == [newest] * 5
    stage.advance(3)
    await stage.ask(get())
    stage.advance(1.5)
    assert repr(stage.pool()) == "<Pool w0 idle=1 leased=0 opening=0>"
    assert (await stage.ask(get())).body == newest


async def test_post_is_not_sent_on_a_connection_closed_unread(stage: Stage) -> None:
    """A POST cannot be sent again, so a close that has arrived unread must be seen before the lease."""
    worker = await stage.serve_worker(response())
    client = await stage.client()
    await client.ask(get())
    pool = stage.pool()
    assert pool.idle == 1
    worker.connections[0].cut()  # the kernel has the close; the event loop has not read it
    assert pool.lease_quiet() is None
    assert (pool.idle, pool.leased, pool.counts.closed) == (0, 0, 1)
    assert (await client.ask(post(b"once"))).status == 200
    assert [request.line for request in worker.requests].count(b"POST / HTTP/1.1") == 1


async def test_connections_too_old_for_a_post_do_not_pile_up(stage: Stage) -> None:
    """A worker that closes at random: each POST opens a connection, in place of the oldest idle one."""
    worker = await stage.serve_worker(response())
    client = await stage.client()
    await client.ask(get())
    stage.connection_pool().idle_connections.strict_limit = 0.0
    for _ in range(5):
        assert (await client.ask(post(b"once"))).status == 200
        assert stage.pool().idle <= 2
    assert len(worker.connections) == 6


async def test_waiter_gets_no_connection_closed_unread(stage: Stage) -> None:
    """A worker that closes right after its response, without having said so: a POST may wait for a connection."""
    worker = await stage.serve_worker(response())
    await stage.ask(get())
    pool = stage.connection_pool()
    upstream = pool.lease()
    assert upstream is not None
    waiter = Waiter()
    pool.wait(waiter)
    worker.connections[0].cut()
    upstream.release()
    assert (waiter.got, upstream.is_closed, pool.counts.closed) == ([], True, 1)
    await stage.eventually(lambda: waiter.got)
    waiter.got[0].release()
    assert (len(worker.connections), pool.idle, pool.leased) == (2, 1, 0)


async def test_idle_connection_makes_way_at_the_limit(stage: Stage) -> None:
    """The pool with the most idle connections closes its oldest."""
    workers = [await stage.worker(response()) for _ in range(2)]
    await stage.serve(*workers)
    stage.cluster.pools.limit = 1
    for _ in range(4):
        assert (await stage.ask(get())).status == 200
    assert stage.cluster.pools.open_connections == 1
    assert [len(worker.connections) for worker in workers] == [2, 2]
    assert sum(pool.counts.lost_idle for pool in stage.cluster.pools.by_id.values()) == 0


async def test_configured_round_trip_counts_where_handshakes_do_not_show_it(stage: Stage) -> None:
    """It does from the start and after a reload, for opening a connection too. A longer handshake counts."""
    await stage.serve(await stage.worker(response()))
    pool = stage.pool()
    for stated in (0.25, 0.125):
        stage.cluster.pools.put(replace(pool.endpoint, round_trip=stated))
        assert stage.pool() is pool
        assert (pool.round_trip, pool.connect_time) == (stated, stated)
        await stage.ask(get())
        assert (pool.round_trip, pool.connect_time) == (stated, stated)
    stage.control_plane.put_endpoint(replace(pool.endpoint, id="farther"))
    farther = stage.cluster.pools.by_id["farther"]
    farther.connector.record_opened(DialTimes(0.0, 0.5, 0.5), 0.5)
    assert (farther.round_trip, farther.connect_time) == (0.5, 0.5)


async def test_round_trip_to_a_doubted_endpoint_is_measured_anew(stage: Stage) -> None:
    """A connection is opened once, when the doubt begins, and kept for the next request."""
    await stage.serve(await stage.worker(playing(Wire.request)), policy="steelyard", retries=0)
    stage.control_plane.sweep(stage.clock.at)
    assert (await stage.ask(get())).status == 502
    pool = stage.pool()
    assert (pool.counts.opened, pool.standing) == (1, 0)
    for _ in range(2):
        stage.control_plane.sweep(stage.clock.at)
        await stage.eventually(lambda: pool.idle == 1)
    await stage.turn()
    assert (pool.counts.opened, pool.standing) == (2, 1)


# --- connections that may be used again, by the response


@pytest.mark.parametrize(
    "last",
    [
        response(b"ok", b"Connection: close"),
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    ],
)
async def test_connection_announced_as_closing_is_not_reused(stage: Stage, last: bytes) -> None:
    """Such a connection is not leased again, even if the worker has not closed it yet."""
    worker = await stage.serve_worker(last)
    client = await stage.client()
    for _ in range(3):
        answer = await client.ask(get())
        assert (answer.body, answer.value(b"Connection")) == (b"ok", None)
    assert len(worker.connections) == 3
    assert stage.pool().idle == 0


@pytest.mark.parametrize(
    ("method", "head", "connections"),
    [
        (b"HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n", 1),
        (b"HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 1),
        (b"HEAD", b"HTTP/1.1 200 OK\r\n\r\n", 2),  # it might have been until close, so it is not used again
        (b"GET", b"HTTP/1.1 204 No Content\r\n\r\n", 1),
        (b"GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 77\r\n\r\n", 1),
        (b"GET", b"HTTP/1.1 304 Not Modified\r\n\r\n", 1),
    ],
)
async def test_response_without_a_body(stage: Stage, method: bytes, head: bytes, connections: int) -> None:
    """It ends with its head, and the next request follows on the same connection."""
    script = answering(lambda request: head if b" /first " in request.line else response(b"body"))
    worker = await stage.serve_worker(script)
    client = await stage.client()
    answer = await client.ask(get(b"/first", method=method), to_head=True)
    assert answer.line == head.partition(b"\r\n")[0]
    assert (await client.ask(get())).body == b"body"
    assert len(worker.connections) == connections


# --- parts


def test_backoff_after_repeated_failures() -> None:
    """From `FAILURES` failures on, one attempt at a time after growing pauses, up to `longest`; a success ends it."""
    backoff = Backoff(Random(1), longest=1.0)
    for _ in range(FAILURES - 1):
        backoff.failed(0.0)
        assert backoff.may_try(opening=100, now=0.0)
    now, pauses = 0.0, []
    for _ in range(8):
        backoff.failed(now)
        assert not backoff.may_try(opening=0, now=now)
        begun = now
        while not backoff.may_try(opening=0, now=now):
            now += 0.01
        assert not backoff.may_try(opening=1, now=now)
        pauses.append(now - begun)
    for number, pause in enumerate(pauses):
        whole = min(1.0, MIN_PAUSE_S * 2**number)
        assert whole / 2 <= pause <= whole + 0.02
    assert len({round(pause, 3) for pause in pauses[-4:]}) > 1, "jitter"
    backoff.succeeded()
    assert backoff.may_try(opening=100, now=now)


def test_backoff_of_zero_is_off() -> None:
    backoff = Backoff(Random(1), longest=0.0)
    for _ in range(100):
        backoff.failed(0.0)
    assert backoff.may_try(opening=100, now=0.0)


@pytest.mark.parametrize(
    ("head", "seconds"),
    [
        (b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5\r\n\r\n", 5.0),
        (b"HTTP/1.1 200 OK\r\nkeep-alive:timeout=5, max=100\r\n\r\n", 5.0),
        (b"HTTP/1.1 200 OK\r\nA: b\r\nKeep-Alive: max=100, TIMEOUT = \"75\"\r\nC: d\r\n\r\nbody", 75.0),
        (b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=soon\r\n\r\n", 0.0),
        (b"HTTP/1.1 200 OK\r\nKeep-Alive: max=5\r\nX: timeout=5\r\n\r\n", 0.0),
        (b"HTTP/1.1 200 OK\r\nKeep-Alive: notimeout=5\r\n\r\n", 0.0),
        (b"HTTP/1.1 200 OK\r\n\r\nbody\r\nKeep-Alive: timeout=5\r\n\r\n", 0.0),
        (b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=7", 7.0),
        (b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\n\r\n", 0.0),
        (b"", 0.0),
    ],
)  # fmt: skip
def test_keep_alive_timeout_of_a_head(head: bytes, seconds: float) -> None:
    """Only within the head, only as a parameter of Keep-Alive."""
    assert keep_alive_timeout(head) == seconds
