"""A connection's life: how many requests it serves, who ends it, and what is opened ahead or not at all."""

from __future__ import annotations

import asyncio

import pytest

from balancer.admin.status import proxy_status
from balancer.upstream.backoff import FAILURES
from policies.facts import AdminState
from tests.balancer.conftest import Script, Stage, Wire, get, post, response
from tests.balancer.wireless import Escaped, Peer, Wireless

KEPT = b"Keep-Alive: timeout=10"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def answering(*fields: bytes) -> Script:
    """200 to everything, without a body to HEAD."""

    async def script(wire: Wire) -> None:
        while True:
            request = await wire.request()
            answer = response(b"ok", *fields)
            await wire.send(answer[:-2] if request.line.startswith(b"HEAD") else answer)

    return script


def sweeps(stage: Stage, seconds: float) -> None:
    for _ in range(round(seconds / 0.25)):
        stage.advance(0.25)


async def test_a_connection_serves_so_many_requests(stage: Stage) -> None:
    """Ten, less at most one by lot, and then another is opened."""
    worker = await stage.worker(answering())
    await stage.serve(worker, pool={"max_requests": 10})
    for _ in range(30):
        assert (await stage.ask(get())).status == 200
    await stage.turn()
    served = [len(wire.requests) for wire in worker.connections]
    assert all(9 <= number <= 10 for number in served[:-1]), served
    assert sum(served) == 30
    counts = stage.pool().counts
    assert (counts.closed_by_balancer, counts.closed) == (len(served) - (stage.pool().idle == 1),) * 2


async def test_one_request_each_and_one_ahead(stage: Stage) -> None:
    """A connection opened ahead has served nobody: it waits for its one request."""
    await stage.serve(await stage.worker(answering()), pool={"max_requests": 1, "preconnect": 1})
    for number in range(1, 4):
        stage.advance(0.25)
        await stage.eventually(lambda: stage.pool().idle == 1)
        assert stage.pool().counts.opened == number
        await stage.ask(get())
    assert stage.pool().counts.cold == 0


async def test_without_keep_alive(stage: Stage) -> None:
    """Each request has a connection of its own; the other endpoint's are kept. A reload may change it."""
    workers = [await stage.worker(answering()) for _ in range(2)]
    endpoints = [
        {"id": f"w{i}", "address": f"http://127.0.0.1:{worker.port}", "region": "r", "keep_alive": i == 1}
        for i, worker in enumerate(workers)
    ]
    await stage.serve(endpoints=endpoints, pool={"preconnect": 1})
    for _ in range(8):
        await stage.ask(get())
    sweeps(stage, 1)
    await stage.turn()
    assert [stage.pool(id_).counts.reused for id_ in ("w0", "w1")] == [0, 3]
    assert [stage.pool(id_).idle for id_ in ("w0", "w1")] == [0, 1]
    await stage.reload(endpoints=[one | {"keep_alive": not one["keep_alive"]} for one in endpoints])
    assert stage.pool("w1").idle == 0
    for _ in range(4):
        await stage.ask(get())
    assert [stage.pool(id_).counts.reused for id_ in ("w0", "w1")] == [1, 3]


async def test_what_is_announced_is_believed(stage: Stage) -> None:
    """The first response says ten seconds: used again after eight, not after eleven, and the status says so."""
    worker = await stage.worker(answering(KEPT))
    await stage.serve(worker)
    await stage.ask(get())
    sweeps(stage, 8)
    await stage.ask(get())
    assert len(worker.connections) == 1
    sweeps(stage, 11)
    assert (stage.pool().idle, stage.connection_pool().idle_connections.idle_probe is not None) == (1, True)
    await stage.ask(get())
    assert len(worker.connections) == 2
    told = proxy_status(stage.control_plane)["endpoints"][0]["connections"]
    assert (told["learned"], told["cold"], told["reused"]) == (True, 2, 1)
    assert 9 < told["idle_timeout"] <= 10
    idle_probe, newer = told["each"]
    assert (idle_probe["requests"], idle_probe["age"], idle_probe["idle"]) == (2, 19, 11)
    assert (newer["requests"], newer["age"], newer["idle"]) == (1, 0, 0)
    assert idle_probe["name"] == f"127.0.0.1:{worker.connections[0].peer_port}" != newer["name"]


async def test_what_was_learned_outlasts_a_reload(stage: Stage) -> None:
    """The horizon, and the limits' own change: `idle` is still the upper bound."""
    await stage.serve(await stage.worker(answering(KEPT)))
    await stage.ask(get())
    sweeps(stage, 2)
    learned = stage.connection_pool().idle_timeout
    await stage.reload(pool={"idle_timeout": 7})
    assert stage.connection_pool().idle_timeout is learned
    assert (learned.age, stage.connection_pool().idle_connections.limit) == (10, 7)
    sweeps(stage, 6)
    assert stage.pool().idle == 0


async def test_a_lookout_tells_of_a_longer_time(stage: Stage) -> None:
    """Four seconds are assumed; one connection stays unused for `idle`, and from then on that is what is known."""
    worker = await stage.worker(answering())
    await stage.serve(worker, pool={"idle_timeout": 20})
    await stage.ask(get())
    sweeps(stage, 10)
    assert stage.pool().idle == 1
    await stage.ask(get())
    assert len(worker.connections) == 2, "it was not leased"
    sweeps(stage, 11)
    await stage.ask(get())
    sweeps(stage, 15)
    assert stage.connection_pool().idle_connections.limit > 15
    opened = len(worker.connections)
    await stage.ask(get())
    assert len(worker.connections) == opened


async def test_who_closed(stage: Stage) -> None:
    """The worker one that was idle, we one that is too old, and one that was spoken on unasked is an error."""
    acts: list[bytes | None] = [None, b"HTTP/1.1 408 Request Timeout\r\n\r\n", b""]
    go = [asyncio.Event() for _ in acts]

    async def script(wire: Wire) -> None:
        number = len(worker.connections) - 1
        await wire.request()
        await wire.send(response())
        await go[number].wait()
        if (said := acts[number]) is not None:
            await wire.send(said)
            await wire.closed()

    worker = await stage.worker(script)
    await stage.serve(worker, pool={"idle_timeout": 4})
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


async def test_dead_in_the_race(stage: Stage) -> None:
    """The worker reads the second request and is gone: counted, learned, and the GET is sent again."""

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(response())
        if len(worker.connections) == 1:
            await wire.request()
            wire.cut()
        else:
            await wire.closed()

    worker = await stage.worker(script)
    await stage.serve(worker)
    await stage.ask(get())
    sweeps(stage, 2)
    assert (await stage.ask(get())).status == 200
    counts = stage.pool().counts
    assert (counts.died, counts.closed_by_worker, counts.lost_idle) == (1, 1, 0)
    sweeps(stage, 1.25)
    assert stage.connection_pool().idle_timeout.age < 2


async def test_a_floor_that_follows_the_load(stage: Stage) -> None:
    """Two beside those in use; five stood at once of late, so three do not go when three requests have ended."""
    go = asyncio.Event()

    async def script(wire: Wire) -> None:
        while True:
            await wire.request()
            await go.wait()
            await wire.send(response(b"ok", b"Keep-Alive: timeout=600"))

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
    sweeps(stage, 2)
    assert repr(stage.pool()) == "<Pool w0 idle=5 leased=0 opening=0>"


async def test_warmth_keeps_within_the_limit(stage: Stage) -> None:
    """Descriptors are bounded: nothing is opened ahead beyond, and nobody else's connection gives way."""
    workers = [await stage.worker(answering()) for _ in range(2)]
    await stage.serve(*workers, pool={"preconnect": 3})
    stage.proxy.pools.limit = 4
    for _ in range(4):
        stage.advance(0.25)
        await stage.eventually(lambda: not any(stage.pool(id_).opening for id_ in ("w0", "w1")))
    assert [stage.pool(id_).idle for id_ in ("w0", "w1")] == [3, 1]


async def test_an_endpoint_that_is_down_is_left_alone(stage: Stage) -> None:
    """Its idle connections are closed, and none is opened ahead until it is up again."""
    await stage.serve(
        await stage.worker(answering()), await stage.worker(answering()), pool={"preconnect": 1}
    )
    stage.control_plane.registry.change("w0", state=AdminState.MAINTENANCE)
    for _ in range(4):
        stage.advance(0.25)
        await stage.turn()
    assert (stage.pool("w0").counts.opened, stage.pool("w1").counts.opened) == (0, 1)
    stage.control_plane.registry.change("w0", state=AdminState.READY)
    stage.advance(0.25)
    await stage.eventually(lambda: stage.pool("w0").idle == 1)


async def test_a_heartbeat_without_an_answer(stage: Stage) -> None:
    """It is given up with its connection after the time to connect, and counted; no request was there to fail."""
    silent = asyncio.Event()

    async def script(wire: Wire) -> None:
        while (await wire.request()).line.startswith(b"GET / "):
            await wire.send(response(b"ok", KEPT))
        await silent.wait()

    worker = await stage.worker(script)
    await stage.serve(worker, pool={"preconnect": 1, "heartbeat": "/alive", "heartbeat_method": "GET"})
    await stage.ask(get())
    sweeps(stage, 9.75)
    counts = stage.pool().counts
    await stage.eventually(lambda: worker.requests[-1].line == b"GET /alive HTTP/1.1")
    assert (counts.heartbeats, counts.heartbeats_failed, stage.pool().leased) == (1, 0, 1)
    sweeps(stage, 2.25)
    assert (counts.heartbeats, counts.heartbeats_failed, counts.died) == (1, 1, 0)
    assert stage.proxy.counts.requests == stage.proxy.router.routed == 1
    silent.set()


def asked(stage: Wireless, times: int) -> list[Peer]:
    clients = []
    for _ in range(times):
        client = stage.client()
        client.send(get())
        clients.append(client)
    stage.turn()
    return clients


def test_what_is_being_opened_for_nobody_any_more_is_for_the_next() -> None:
    """Who it was opened for got one that was given back sooner; two who wait need two."""
    with Wireless(retries=0) as stage:
        pool = stage.proxy.pools.by_id["w0"]
        (first,) = asked(stage, 1)
        stage.dialling = "hang"
        (second,) = asked(stage, 1)
        stage.workers[0].send(ANSWER)
        stage.turn()
        assert first.received
        assert pool.opening == 1
        (third,) = asked(stage, 1)
        assert pool.opening == 1
        asked(stage, 1)
        assert (pool.opening, len(stage.workers)) == (2, 1)
        for client in (second, third):
            stage.workers[0].send(ANSWER)
            stage.turn()
            assert client.received
        stage.leave()
        assert pool.opening == 0


def test_an_opening_that_fails_is_told_to_who_waits_now() -> None:
    with Wireless(retries=0) as stage:
        pool = stage.proxy.pools.by_id["w0"]
        asked(stage, 1)
        stage.dialling = "hang"
        asked(stage, 1)
        stage.workers[0].send(ANSWER)
        stage.turn()
        (third,) = asked(stage, 1)
        stage.advance(3)
        assert third.received.startswith(b"HTTP/1.1 504 ")
        assert (pool.opening, pool.counts.failed) == (0, 1)
        stage.leave()


@pytest.mark.parametrize("transport", ["native", "http2"])
async def test_a_failure_that_is_remembered_keeps_nobody(stage: Stage, transport: str) -> None:
    """Neither the request that it failed nor the frames that it passed."""
    address = f"http://127.0.0.1:{stage.dead_port()}"
    await stage.serve(endpoints=[{"id": "w0", "address": address, "transport": transport}], retries=0)
    assert (await stage.ask(get())).status == 502
    error = stage.pool().connector.last_error
    assert error is not None
    assert (error.__traceback__, error.__context__, error.__cause__) == (None, None, None)
    assert "refused" in (stage.pool().last_fault or "")


def test_one_connect_at_a_time_to_an_endpoint_in_trouble() -> None:
    """After three failures a thousand requests fail at once, none of them by a connect; later one tries, and when that
    succeeds all may."""
    with Wireless(retries=0, seed=1) as stage:
        pool = stage.proxy.pools.by_id["w0"]
        stage.dialling = "refuse"
        asked(stage, FAILURES)
        assert (pool.counts.failed, pool.counts.spared) == (FAILURES, 0)
        refused = asked(stage, 1000)
        assert (pool.counts.failed, pool.counts.spared) == (FAILURES, 1000)
        assert all(client.received.startswith(b"HTTP/1.1 502 ") for client in refused)
        stage.advance(1)
        stage.dialling = "hang"
        waiting = asked(stage, 10)
        assert (pool.opening, pool.counts.spared) == (1, 1009)
        assert sum(not client.received for client in waiting) == 1
        stage.advance(3)
        assert (pool.opening, pool.counts.failed) == (0, FAILURES + 1)
        stage.advance(1)
        stage.dialling = "accept"
        asked(stage, 1)
        asked(stage, 5)
        assert (pool.leased, pool.connector.backoff.is_backing_off) == (6, False)
        stage.leave()
        assert not stage.left_behind()


def test_a_fault_of_ours_is_told_at_once() -> None:
    """What is neither refused nor slow but a fault here: whoever waits hears of it, each of them, and so does the loop;
    the pool goes on."""
    with Wireless(retries=0) as stage:
        pool = stage.proxy.pools.by_id["w0"]
        stage.dialling = "fault"
        clients = [stage.client() for _ in range(2)]
        for client in clients:
            client.send(get())
        for _ in clients:
            with pytest.raises(Escaped) as escaped:
                stage.turn()
            assert repr(escaped.value.__cause__) == "RuntimeError('out of order')"
        for client in clients:
            assert client.received.startswith(b"HTTP/1.1 502 ")
            assert b"the connection could not be opened" in client.received
        assert (pool.opening, pool.counts.failed, stage.proxy.pools.open_connections) == (0, 2, 0)
        assert (pool.last_fault, pool.route.faults) == ("RuntimeError: out of order", {"other": 2})
        stage.dialling = "accept"
        stage.worker_script = lambda peer: peer.send(ANSWER)
        (client,) = asked(stage, 1)
        assert client.received.startswith(b"HTTP/1.1 200 ")
        stage.leave()


def test_trouble_at_one_sends_requests_to_the_other() -> None:
    """They are as good as refused: nothing was sent, so even a POST goes elsewhere."""
    with Wireless(2, retries=2, outlier_detection=(("failures", 0),), seed=1) as stage:
        troubled = stage.proxy.pools.by_id["w0"]
        for _ in range(FAILURES):
            troubled.connector.backoff.failed(stage.loop.now())
        stage.worker_script = lambda peer: peer.send(ANSWER)
        client = stage.client()
        client.send(post(b"once"))
        stage.turn()
        assert client.received.startswith(b"HTTP/1.1 200 ")
        assert (troubled.counts.spared, len(stage.workers)) == (1, 1)
        stage.leave()


def test_what_a_retired_pool_opens_is_closed_with_the_others() -> None:
    """An endpoint goes while a connection to it is being opened, and then the unit ends."""
    with Wireless(2) as stage:
        stage.dialling = "hang"
        asked(stage, 2)
        gone = stage.proxy.pools.by_id["w0"]
        stage.control_plane.replace_endpoints([stage.proxy.router.states[1].endpoint])
        assert repr(gone) == "<Pool w0 idle=0 leased=0 opening=1>"
        closing = stage.loop.create_task(stage.proxy.pools.close())
        stage.turn()
        assert closing.done()
        assert (gone.opening, stage.proxy.pools.open_connections) == (0, 0)
        stage.leave()
