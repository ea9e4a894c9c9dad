"""Bounds of one client over all its connections and streams, and what is left for others: requests, turns in the queue,
bytes that wait, descriptors and tunnels."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.clients.client_usage import ClientUsages, PendingBytes
from tests.support.admin_requests import metrics, status
from tests.support.example_counts import examples
from tests.support.http2_client import WEBSOCKET, Http2Client, accept_of, fields, http2_client
from tests.support.programs import PATIENCE, starting, workers
from tests.support.stage import Stage, pool_of
from tests.support.wire import ScriptedWorker, Wire, get, response

OTHER = "127.0.0.2"


class Gate:
    """A worker that answers once it `opens`; `order` has the targets as they come, and `ends` closes each connection
    after its response."""

    def __init__(self, *, ends: bool = False) -> None:
        self.opens = asyncio.Event()
        self.order: list[bytes] = []
        self._ends = ends

    async def __call__(self, wire: Wire) -> None:
        while True:
            request = await wire.request()
            self.order.append(request.line.split(b" ")[1])
            await self.opens.wait()
            await wire.send(response(b"ok", *((b"Connection: close",) if self._ends else ())))
            if self._ends:
                return


async def serve_gate(stage: Stage, number: int = 1, *, ends: bool = False, **settings: Any) -> Gate:
    gate = Gate(ends=ends)
    workers: list[ScriptedWorker | int] = [await stage.worker(gate) for _ in range(number)]
    await stage.serve(*workers, **settings)
    return gate


async def flood(
    stage: Stage, number: int, path: bytes = b"/flood", size: int = 0, source: str = ""
) -> Http2Client:
    """Begin requests on one connection of HTTP/2, each with a head of `size` bytes."""
    client = await http2_client(stage, source=source)
    padding = tuple((b"cookie", b"%04d" % number * 250) for number in range(size // 1000))
    for _ in range(number):
        client.request(*padding, path=path)
    return client


async def all_of(client: Http2Client) -> list[int]:
    """The statuses of all requests of a client."""
    return [(await client.answer(stream)).status for stream in client.answers]


# --- the number of requests


@pytest.mark.parametrize("protocol", ["http1", "http2"])
async def test_requests_of_one_client_are_bounded(stage: Stage, protocol: str) -> None:
    """Over all its connections; one more gets 429, other clients and the admin interface are served, and an answered
    request makes room."""
    gate = await serve_gate(stage, limits={"client_requests": 3})
    first = [await flood(stage, number) for number in (1, 2) if protocol == "http2"]
    if first:
        await stage.eventually(lambda: len(gate.order) == 3)
        assert (await first[0].ask()).status == 429
    wires = [await stage.client() for _ in range(3) if protocol == "http1"]
    for wire in wires:
        wire.write(get(b"/flood"))
    await stage.eventually(lambda: len(gate.order) == 3)
    refused = await stage.ask(get())
    assert (refused.status, json.loads(refused.body)["error"]) == (429, "client_busy")
    assert (await stage.ask(get(b"/-/live"))).status == 200
    other = await stage.client(source=OTHER)
    other.write(get(b"/other"))
    await stage.eventually(lambda: b"/other" in gate.order)
    gate.opens.set()
    assert (await other.response()).status == 200
    assert [(await wire.response()).status for wire in wires] == [200] * len(wires)
    assert [await all_of(one) for one in first] == ([[200, 429], [200, 200]] if first else [])
    assert (await stage.ask(get())).status == 200


async def test_limit_of_a_cluster_counts_its_own_requests(stage: Stage) -> None:
    """Those at other clusters leave all of it; of its own one more gets 429, and an answered one makes room. A limit
    that is that of the top level is of all requests."""
    gate, files = Gate(), await stage.worker(response(b"files"))
    clusters = {"dl": pool_of(files, limits={"client_requests": 2})}
    routes = [{"prefix": "/dl", "cluster": "dl"}, {"prefix": "/slow", "cluster": "slow"}]
    slow = pool_of(await stage.worker(gate))
    await stage.serve(endpoints=[], clusters={**clusters, "slow": slow}, routes=routes)
    busy = [await stage.sending(get(b"/slow")) for _ in range(3)]
    await stage.eventually(lambda: len(gate.order) == 3)
    for _ in range(4):
        assert (await stage.ask(get(b"/dl"))).status == 200
    slow = {**slow, "limits": {"client_requests": 4}}
    await stage.reload(clusters={**clusters, "slow": slow})
    busy += [await stage.sending(get(b"/slow")) for _ in range(4)]
    await stage.eventually(lambda: len(gate.order) == 7)
    assert (await stage.ask(get(b"/slow"))).status == 429
    assert (await stage.ask(get(b"/dl"))).status == 200
    gate.opens.set()
    assert [(await each.response()).status for each in busy] == [200] * 7
    assert (await stage.ask(get(b"/slow"))).status == 200
    own = stage.control_plane.named["slow"].cluster.own_requests
    await stage.eventually(lambda: own == {})
    await stage.reload(clusters={"dl": pool_of(files), "slow": slow}, limits={"client_requests": 4})
    assert stage.control_plane.named["slow"].cluster.own_requests is None


async def test_requests_of_a_trusted_proxy_are_not_counted_together(stage: Stage) -> None:
    """They wait by forwarded address: that of one client does not delay another's."""
    gate = await serve_gate(
        stage, trusted_proxies=["127.0.0.1"], limits={"client_requests": 1}, max_in_flight=1
    )
    cluster = await http2_client(stage)
    for number, client in enumerate((b"192.0.2.1",) * 4 + (b"192.0.2.2",)):
        cluster.request((b"x-forwarded-for", client), path=b"/%d" % number)
    await stage.eventually(lambda: len(stage.cluster.queue) == 4)
    assert len(stage.cluster.process.usages) == 3
    gate.opens.set()
    assert await all_of(cluster) == [200] * 5
    assert gate.order == [b"/0", b"/1", b"/4", b"/2", b"/3"]


# --- the queue


async def test_clients_take_turns_in_the_queue(stage: Stage) -> None:
    gate = await serve_gate(stage, max_in_flight=1)
    attacker = await flood(stage, 50)
    await stage.eventually(lambda: len(stage.cluster.queue) == 49)
    other = await flood(stage, 2, b"/other", source=OTHER)
    await stage.eventually(lambda: len(stage.cluster.queue) == 51)
    gate.opens.set()
    assert await all_of(other) == [200, 200]
    assert b"/other" in gate.order[:3]
    assert gate.order[:5].count(b"/other") == 2
    assert await all_of(attacker) == [200] * 50


async def test_full_queue_has_room_for_another_client(stage: Stage) -> None:
    """The client with most waiting requests loses its last one, and gets no other's place."""
    gate = await serve_gate(stage, max_in_flight=1, limits={"queue": 10})
    attacker = await flood(stage, 12)
    await stage.eventually(lambda: len(stage.cluster.queue) == 10)
    other = await flood(stage, 3, b"/other", source=OTHER)
    await stage.eventually(lambda: stage.cluster.queue.dropped["queue_full"] == 4)
    more = await flood(stage, 5)
    await stage.eventually(lambda: stage.cluster.queue.dropped["queue_full"] == 9)
    gate.opens.set()
    assert await all_of(other) == [200] * 3
    assert await all_of(attacker) == [200] * 8 + [503] * 4
    assert await all_of(more) == [503] * 5


# --- bytes


@pytest.mark.parametrize("settings", [{"max_in_flight": 1}, {}], ids=["waiting", "in flight"])
async def test_large_heads_are_bounded(stage: Stage, settings: dict[str, Any]) -> None:
    """Of 100 heads of 31 KB a client gets a part of the bytes; another one gets the same. All are given back."""
    gate = await serve_gate(stage, limits={"pending": 1 << 20}, **settings)
    budget = stage.cluster.process.usages.budget
    attacker = await flood(stage, 100, size=31_000)
    await attacker.until(lambda: sum(answer.status == 503 for answer in attacker.answers.values()) > 80)
    assert 0.4 * (1 << 20) < budget.kept <= 0.5 * (1 << 20)
    assert (await status(stage))["pending_bytes"] == budget.kept
    assert f"steelyard_pending_bytes {budget.kept}.0" in (await metrics(stage)).splitlines()
    other = await flood(stage, 2, b"/other", size=31_000, source=OTHER)
    small = await stage.client(source="127.0.0.3")
    small.write(get(b"/small"))
    await stage.eventually(lambda: len(stage.cluster.process.usages) == 3)
    gate.opens.set()
    assert await all_of(other) == [200, 200]
    assert (await small.response()).status == 200
    assert set(await all_of(attacker)) == {200, 503}
    assert budget.kept == 0


async def test_bodies_that_wait_are_bounded(stage: Stage) -> None:
    """A stream whose body is beyond the bound gets 503; one that waits with a small body is served."""
    gate = await serve_gate(stage, max_in_flight=1, limits={"pending": 1 << 20})
    ahead = await flood(stage, 1)
    await stage.eventually(lambda: gate.order)
    client = await http2_client(stage)
    for _ in range(20):
        client.send(client.begin(fields(method=b"POST")), b"b" * 60_000)
    small = client.request(body=b"small", method=b"POST")
    await client.until(lambda: sum(answer.status == 503 for answer in client.answers.values()) >= 10)
    assert stage.cluster.process.usages.budget.kept <= 1 << 19
    for stream, answer in client.answers.items():
        if not answer.status and stream != small:
            client.send(stream, b"", is_last=True)
    gate.opens.set()
    assert (await client.answer(small)).status == 200
    assert set(await all_of(client)) == {200, 503}
    assert await all_of(ahead) == [200]
    assert stage.cluster.process.usages.budget.kept == 0


async def test_request_of_a_connection_keeps_its_body_at_the_bound(stage: Stage) -> None:
    """Over HTTP/1.1 nothing more is read of a body; the request is served when it is its turn."""
    gate = await serve_gate(stage, max_in_flight=1, limits={"pending": 1 << 20})
    ahead = await flood(stage, 1)
    await stage.eventually(lambda: gate.order)
    budget = stage.cluster.process.usages.budget
    wire = await stage.client()
    wire.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n")
    await stage.eventually(lambda: len(stage.cluster.queue) == 1)
    budget.total = budget.kept
    wire.write(b"b" * 200_000)
    await stage.eventually(lambda: any(one.is_held for one in stage.downstreams))
    budget.total = 1 << 20
    gate.opens.set()
    assert (await wire.response()).status == 200
    assert await all_of(ahead) == [200]


Act = tuple[int, int]


@examples(100)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 60)), max_size=60))
def test_shares_leave_room_for_the_next_client(acts: list[Act]) -> None:
    """Whatever clients charge: the sum is within the bound, and each leaves as much for the next client as it has; a
    refused charge changes nothing."""
    usages = ClientUsages()
    usages.budget.total = 100
    charges = [PendingBytes(usages, bytes([number])) for number in range(6)]
    clients = [charge.client for charge in charges]
    for number, size in acts:
        before = [charge.size for charge in charges]
        did_fit = charges[number].resize(size)
        assert did_fit or [charge.size for charge in charges] == before
        assert usages.budget.kept == sum(charge.size for charge in charges) <= 100
        assert [client.bytes for client in clients] == [charge.size for charge in charges]
        if did_fit and size > before[number]:
            assert size <= 100 - usages.budget.kept
    for charge in charges:
        charge.close()
    assert (usages.budget.kept, sum(client.bytes for client in clients), len(usages)) == (0, 0, 0)


# --- descriptors


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("endpoints", [1, 3])
async def test_worker_connections_keep_to_their_share(stage: Stage, ends: bool, endpoints: int) -> None:
    """More requests than connections wait in the queue and are served as connections are given back or closed."""
    gate = await serve_gate(stage, endpoints, ends=ends)
    pools = stage.cluster.pools
    pools.limit = 8
    most = 0

    def note() -> bool:
        nonlocal most
        most = max(most, sum(pool.standing + pool.opening for pool in pools.by_id.values()))
        stage.advance(0.0)
        return False

    clients = [await flood(stage, 20) for _ in range(2)]
    other = await stage.client(source=OTHER)
    await stage.eventually(lambda: note() or len(stage.cluster.queue) == 33)
    other.write(get(b"/other"))
    await stage.eventually(lambda: len(stage.cluster.queue) == 34)
    assert len(gate.order) <= 7
    gate.opens.set()
    answers = [asyncio.ensure_future(all_of(client)) for client in clients]
    last = asyncio.ensure_future(other.response())
    await stage.eventually(lambda: note() or (last.done() and all(answer.done() for answer in answers)))
    assert (await last).status == 200
    assert [await answer for answer in answers] == [[200] * 20] * 2
    assert most <= 9, most  # one that closes is replaced before it has closed
    assert gate.order.index(b"/other") < 12
    stage.advance(1.0)
    assert not pools.is_short
    assert stage.cluster.router.in_flight_limit == float("inf")


@pytest.mark.second_tier
async def test_process_with_1024_descriptors(stage: Stage) -> None:
    """1,200 streams that a slow worker holds leave descriptors for liveness, admin and another client, which gets one
    of the next connections to the worker."""
    gate = Gate()
    async with starting(*workers(await stage.worker(gate))) as start:
        limit = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))"
        program = await start(launcher=limit)
        stage.port = program.port

        async def are_there(number: int) -> None:
            async with asyncio.timeout(PATIENCE):
                while (await program.status())["in_flight"] < number:
                    pass

        clients = [await flood(stage, 100) for _ in range(12)]
        await are_there(1200)
        for _ in range(20):
            assert (await (await stage.client()).ask(get(b"/-/live"))).status == 200
        other = await stage.client(source=OTHER)
        other.write(get(b"/other"))
        await are_there(1201)
        await stage.eventually(lambda: len(gate.order) > 400)
        gate.opens.set()
        assert (await other.response()).status == 200
        assert [await all_of(client) for client in clients] == [[200] * 100] * 12
        assert gate.order.index(b"/other") < 512


async def offers(stage: Stage, version: str, number: int, source: str) -> list[int]:
    """The statuses of so many offers of tunnels: over HTTP/2 there are a hundred on each connection."""
    if version == "http1":
        wires = [await stage.client(source=source) for _ in range(number)]
        upgrade = get(b"/", b"Connection: upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13")
        return [(await wire.ask(upgrade, to_head=True)).status for wire in wires]
    found: list[int] = []
    for before in range(0, number, 100):
        client = await http2_client(stage, source=source)
        await client.ask(path=b"/-/live")
        answers = [client.answers[client.begin(WEBSOCKET)] for _ in range(min(100, number - before))]
        for answer in answers:
            await client.until(partial(getattr, answer, "status"))
        found += [answer.status for answer in answers]
    return found


@pytest.mark.parametrize(
    ("version", "number", "limit", "requests", "taken"),
    [("http1", 15, 23, 99, 11), ("http2", 250, 226, 999, 105), ("http2", 250, None, 113, 113)],
)
async def test_tunnels_leave_room_for_others(
    stage: Stage, version: str, number: int, limit: int | None, requests: int, taken: int
) -> None:
    """Half of the connections to workers are for other clients, whatever the number of a client's tunnels, which count
    as requests, too; all are given back after an idle hour."""

    async def tunnel(wire: Wire) -> None:
        request = await wire.request()
        if request.value(b"Upgrade") is None:
            await wire.send(response(b"ok"))
            return
        accept = accept_of(request.value(b"Sec-WebSocket-Key") or b"")
        fields = b"Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: " + accept
        await wire.send(b"HTTP/1.1 101 Go On\r\n%b\r\n\r\n" % fields)
        await wire.closed()

    await stage.serve(await stage.worker(tunnel), limits={"client_requests": requests})
    stage.cluster.pools.limit = limit
    accepted = 101 if version == "http1" else 200
    for _ in range(2):
        found = await offers(stage, version, number, "127.0.0.1")
        assert found == [accepted] * taken + [429] * (number - taken)
        assert await offers(stage, version, 1, OTHER) == [accepted]
        assert (await (await stage.client(source=OTHER)).ask(get())).status == 200
        assert (await stage.ask(get(b"/-/live"))).status == 200
        assert (await status(stage))["tunnels"]["open"] == taken + 1
        stage.advance(3700.0)
        await stage.eventually(lambda: not stage.cluster.tunnels)
