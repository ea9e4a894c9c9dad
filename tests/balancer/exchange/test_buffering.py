"""Buffering as configured, reported and charged: named clusters, status, metrics, and the bound on what is kept."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.clients.client_usage import ByteBudget, Charge
from balancer.exchange.buffering import KeptBody
from balancer.upstream.http1.connection import UpstreamConnection
from balancer.upstream.request import RequestBody
from tests.support.admin_requests import metrics, status
from tests.support.example_counts import examples
from tests.support.scripted_transports import TRANSPORTS, Play, hello, over, serve_over, values
from tests.support.stage import Stage, endpoint, pool_of
from tests.support.wire import get, post, post_chunked, response

BODY = b"x" * 100


async def test_status_and_metrics(stage: Stage) -> None:
    """What is kept, its bound, and what was kept and streamed."""
    await stage.serve(
        await stage.worker(response(b"ok")), buffering={"request": 100, "response": 50, "total": 1024}
    )
    clients = [await stage.client() for _ in range(11)]
    for client in clients:
        await client.send(post(BODY)[:-1])
        await stage.turn()
    await stage.eventually(lambda: stage.cluster.router.in_flight == 1)
    document = (await status(stage))["buffering"]
    assert document == {
        "kept": 990,
        "limit": 1024,
        "requests": 0,
        "responses": 0,
        "requests_streamed": 1,
        "responses_streamed": 0,
    }
    lines = (await metrics(stage)).splitlines()
    for line in (
        "steelyard_buffered_bytes 990.0",
        "steelyard_buffered_bytes_limit 1024.0",
        'steelyard_buffered_total{body="request"} 0.0',
        'steelyard_buffering_refused_total{body="request"} 1.0',
        'steelyard_buffering_refused_total{body="response"} 0.0',
    ):
        assert line in lines
    for client in clients:
        assert (await client.ask(b"x")).body == b"ok"
    document = (await status(stage))["buffering"]
    assert (document["kept"], document["requests"]) == (0, 10)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_whole_body_has_its_length_over_every_transport(stage: Stage, transport: str) -> None:
    """Instead of chunks, from the first request on, whether it comes in one read or in two."""
    plays: list[Play] = []
    await serve_over(stage, over(transport, hello, plays), transport, buffering={"request": 100})
    sent = post_chunked(b"abc", b"def")
    assert (await stage.ask(sent)).body == b"hello"
    client = await stage.sending(sent[:-8])
    await stage.eventually(lambda: stage.cluster.receiving)
    assert (await client.ask(sent[-8:])).body == b"hello"
    for play in plays:
        assert values(play.fields, b"content-length") == [b"6"]
        assert not values(play.fields, b"transfer-encoding")


async def test_length_is_that_of_the_copy_and_of_the_route(stage: Stage) -> None:
    """Where one cluster keeps the body and another sends it on, its head and its framing agree."""
    workers = {name: await stage.worker(response(name.encode())) for name in ("main", "model", "shadow")}
    routes = [
        {"model": "m", "cluster": "model"},
        {"cluster": "default", "mirror": {"cluster": "shadow", "share": 1.0, "methods": ["POST"]}},
    ]
    clusters = {name: pool_of(workers[name], buffering={"request": 0}) for name in ("model", "shadow")}
    await stage.serve(workers["main"], routes=routes, clusters=clusters, buffering={"request": 100})
    bodies = {"model": b'{"model": "m"}', "main": b'{"model": "other"}'}
    for name, body in bodies.items():
        client = await stage.sending(post_chunked(body)[:-2])
        await stage.eventually(lambda: stage.cluster.receiving or stage.cluster.process.in_flight)
        assert (await client.ask(b"\r\n")).body == name.encode()
    await stage.eventually(lambda: workers["shadow"].requests)
    bodies["shadow"] = bodies["main"]
    for name, worker in workers.items():
        [request] = worker.requests
        assert request.body == bodies[name]
        is_stated = request.value(b"Content-Length") == b"%d" % len(request.body)
        assert (is_stated, request.value(b"Transfer-Encoding")) == (
            (False, b"chunked") if name == "model" else (True, None)
        )


async def test_pools_have_rules_of_their_own_and_one_bound(stage: Stage) -> None:
    """Here only the pool `api` is buffered, at first and after a reload; status and metrics are of the process."""
    main, worker = await stage.worker(response(b"main")), await stage.worker(response(b"api"))
    keys: dict[str, Any] = {
        "routes": [{"prefix": "/api", "cluster": "api"}],
        "clusters": {"api": {"endpoints": [endpoint(worker, "a0")], "buffering": {"request": 100}}},
        "buffering": {"total": 1024},
    }
    await stage.serve(main, **keys)
    for _ in range(2):
        streamed, kept = await stage.client(), await stage.client()
        await streamed.send(post(BODY)[:-1])
        await kept.send(post(BODY).replace(b"POST /", b"POST /api")[:-1])
        await stage.eventually(lambda: stage.cluster.process.buffer_budget.kept == 99)
        assert (stage.cluster.router.in_flight, worker.requests[1:]) == (1, [])
        document = await status(stage)
        assert (document["buffering"]["kept"], document["buffering"]["limit"]) == (99, 1024)
        assert "buffering" not in document["clusters"][0]
        assert "steelyard_buffered_bytes 99.0" in (await metrics(stage)).splitlines()
        assert [(await client.ask(b"x")).body for client in (streamed, kept)] == [b"main", b"api"]
        assert stage.cluster.process.buffer_budget.kept == 0
        await stage.running.reload()


async def test_requests_of_one_connection_go_to_buffered_and_unbuffered_pools(stage: Stage) -> None:
    """A large response of the one, and then of the other, to a client that reads slowly."""
    body = bytes(range(256)) * 4096
    main, worker = await stage.worker(response(body)), await stage.worker(response(body))
    await stage.serve(
        main,
        routes=[{"prefix": "/api", "cluster": "api"}],
        clusters={"api": {"endpoints": [endpoint(worker, "a0")], "buffering": {"response": 4 << 20}}},
    )
    client = await stage.client(receive_buffer=4096)
    for target, is_kept in ((b"/api", True), (b"/", False), (b"/api", True)):
        await client.send(get(target))
        await client.head()
        await stage.eventually(lambda: [one.is_write_paused for one in stage.downstreams] == [True])
        await stage.turn(500)
        assert bool(stage.cluster.process.buffer_budget.kept) is is_kept
        assert await client.exactly(len(body)) == body
        await stage.eventually(lambda: not stage.cluster.process.buffer_budget.kept)
    assert stage.cluster.process.buffer_budget.responses == 2


# --- what bodies are charged with

_sizes = st.integers(0, 100)
_charges = st.tuples(st.just("resize"), st.integers(0, 4), _sizes)
_bounds = st.tuples(st.just("bound"), st.just(0), _sizes)


@examples(100)
@given(st.lists(st.one_of(_charges, _charges, _charges, _bounds), max_size=40))
def test_charges_add_up(steps: list[tuple[str, int, int]]) -> None:
    """Against a model of five bodies, while the bound changes: a refused charge changes nothing."""
    budget = ByteBudget()
    budget.total = 100
    charges, sizes = [Charge(budget) for _ in range(5)], [0] * 5
    for kind, number, size in steps:
        if kind == "bound":
            budget.total = size
            continue
        after = sum(sizes) - sizes[number] + size
        fits = size <= sizes[number] or after <= budget.total
        assert charges[number].resize(size) is fits
        sizes[number] = size if fits else sizes[number]
        assert [charge.size for charge in charges] == sizes
        assert budget.kept == sum(sizes)
    for charge in charges:
        assert charge.resize(0)
    assert budget.kept == 0


class WriteBuffer:
    """A transport of which `unsent` bytes are in the write buffer."""

    unsent = 0

    def get_write_buffer_size(self) -> int:
        return self.unsent


_acts = st.sampled_from(("add", "add", "send", "write", "drain", "update", "free"))


@examples(100)
@given(st.integers(0, 300), st.integers(0, 300), st.lists(st.tuples(_acts, st.integers(1, 100)), max_size=20))
def test_body_is_charged_as_long_as_it_is_held(most: int, retried: int, acts: list[tuple[str, int]]) -> None:
    """Whatever order: kept bytes are charged, or refused at the first that does not fit; at the end nothing is left."""
    budget, written = ByteBudget(), WriteBuffer()
    budget.total = 250
    upstream = UpstreamConnection(cast(Any, None))
    upstream.transport = cast(Any, written)
    kept = KeptBody(RequestBody(retried, False), most, budget)
    received, is_sent = b"", False
    for act, size in acts:
        if act == "add" and not is_sent:
            data = bytes([size]) * size
            did_fit, received = kept.fits, received + data
            kept.add(data)
            assert kept.fits is (did_fit and len(received) <= min(most, budget.total))
            if kept.fits:
                assert budget.kept == len(received)
        elif act == "send" and not kept.is_spent:
            assert kept.between(b"head", b"end") == b"head" + received + b"end"
            kept.sent()
            written.unsent, is_sent = len(received), True
            assert kept.is_spent is (len(received) > retried)
        elif act == "drain":
            written.unsent = max(0, written.unsent - size)
        elif act == "update":
            kept.update(upstream)
            if kept.is_spent and not written.unsent:
                assert budget.kept == 0
            elif kept.fits:
                assert budget.kept == len(received)
        elif act == "free":
            kept.free()
            assert budget.kept == 0
            return
        assert budget.kept <= budget.total
    kept.free()
    assert budget.kept == 0
