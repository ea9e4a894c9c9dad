"""Requests that a worker refuses as busy (`retry.busy`): another endpoint gets them, also POSTs."""

from __future__ import annotations

import gc
from dataclasses import replace
from datetime import UTC, datetime
from math import inf
from typing import Any, cast

import pytest

from balancer.downstream.connection import Http1Connection
from balancer.exchange.exchange import Exchange
from balancer.http.h1.request_reader import RequestReader
from balancer.http.h1.response_head import retry_after
from policies.overload.rests import LONGEST_REST, USUAL_REST, Rests
from tests.support.wireless import Peer, Wireless, sends

BODY = b'{"prompt":"hello"}'
REQUEST = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def refusal(status: bytes = b"429 Too Many Requests", *lines: bytes, body: bytes = b"full") -> bytes:
    fields = b"".join(line + b"\r\n" for line in lines)
    return b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, fields, len(body), body)


def stage_of(endpoints: int, **options: Any) -> Wireless:
    return Wireless(endpoints, **{"kind": "inference", "policy": "round-robin", **options})


def asked(stage: Wireless) -> tuple[Peer, Peer]:
    """A client that has sent a request, and the worker that has got it."""
    client, before = stage.client(), [len(worker.received) for worker in stage.workers]
    sends(stage, client, REQUEST)
    old = [one for one, size in zip(stage.workers, before, strict=False) if len(one.received) > size]
    return client, (old or stage.workers[len(before) :])[0]


def outcomes(stage: Wireless) -> list[dict[str, int]]:
    found = [state.outcomes for state in stage.cluster.router.states]
    return [{kind.value: number for kind, number in each.items() if number} for each in found]


@pytest.mark.parametrize("status", [b"429 Too Many Requests", b"503 Service Unavailable"])
def test_post_goes_elsewhere_whole(status: bytes) -> None:
    """Its refusal is no failure of the endpoint, and nothing of it reaches the client."""
    with stage_of(2) as stage:
        client, first = asked(stage)
        sends(stage, first, refusal(status))
        second = stage.workers[1]
        assert second.received.endswith(b"\r\n\r\n" + BODY)
        sends(stage, second, OK)
        assert client.received.startswith(b"HTTP/1.1 200")
        assert client.received.endswith(b"ok")
        assert outcomes(stage) == [{"busy": 1}, {"ok": 1}]
        assert stage.cluster.router.states[0].failures == 0
        assert stage.cluster.counts.retried == 1


def test_body_of_a_refusal_may_come_later() -> None:
    """The head says so; the connection, on which the body would come, is closed."""
    with stage_of(2) as stage:
        _, first = asked(stage)
        sends(stage, first, refusal(body=b"")[: -len(b"0\r\n\r\n")] + b"9\r\n\r\n")
        assert not first.is_open
        assert stage.workers[1].received.endswith(BODY)


@pytest.mark.parametrize("is_read", [True, False])
def test_connection_of_a_refused_body_stays_if_it_was_read(is_read: bool) -> None:
    """A worker that refuses a request before it has read the body may close, and the next request would be lost."""
    with stage_of(2) as stage:
        _, first = asked(stage)
        sends(stage, first, OK)
        if not is_read:
            first.stall()
        client = stage.client()
        sends(stage, stage.client(), REQUEST)
        sends(stage, client, REQUEST)
        sends(stage, first, refusal())
        assert first.is_open == is_read


def test_client_gets_the_refusal_when_no_other_endpoint_is_free() -> None:
    with stage_of(2) as stage:
        client, first = asked(stage)
        sends(stage, first, refusal())
        sends(stage, stage.workers[1], refusal(b"503 Service Unavailable", b"Retry-After: 3", body=b"last"))
        assert client.received.startswith(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 3\r\n")
        assert client.received.endswith(b"last")
        assert outcomes(stage) == [{"busy": 1}, {"busy": 1}]
        assert client.is_open


def test_resting_endpoint_is_tried_last_instead_of_never() -> None:
    """It has refused one request, and may take the next one before its rest is over."""
    with stage_of(3) as stage:
        _, first = asked(stage)
        sends(stage, first, refusal(b"503 Service Unavailable", b"Retry-After: 30"))
        sends(stage, stage.workers[1], OK)
        client = stage.client()
        sends(stage, client, REQUEST)
        for worker, answer in zip((2, 1, 0), (refusal(), refusal(), OK), strict=True):
            assert not client.received
            sends(stage, stage.workers[worker], answer)
        assert client.received.endswith(b"ok")
        assert outcomes(stage) == [{"busy": 1, "ok": 1}, {"ok": 1, "busy": 1}, {"busy": 1}]


def test_refusals_are_not_bounded_by_the_number_of_retries() -> None:
    """Each costs a worker nothing, as a refused connection does: every endpoint is asked, once."""
    with stage_of(4, retries=1) as stage:
        client, _ = asked(stage)
        for worker in range(3):
            sends(stage, stage.workers[worker], refusal())
        sends(stage, stage.workers[3], OK)
        assert client.received.endswith(b"ok")


def test_a_small_load_finds_the_engine_that_is_free_among_many() -> None:
    """Those that rest for a second are asked again after it, however few the requests are."""
    with stage_of(30) as stage:
        for _ in range(5):
            stage.advance(USUAL_REST + 0.1)
            sizes: dict[Peer, int] = {worker: len(worker.received) for worker in stage.workers}
            client = stage.client()
            sends(stage, client, REQUEST)
            for answer in [refusal()] * 29 + [OK]:
                (worker,) = [one for one in stage.workers if len(one.received) > sizes.get(one, 0)]
                sizes[worker] = len(worker.received)
                sends(stage, worker, answer)
            assert client.received.endswith(b"ok")


def test_full_endpoints_are_not_free() -> None:
    """The other endpoint has as many requests as it may hold: the client gets the refusal, and does not wait."""
    with stage_of(2) as stage:
        for state in stage.cluster.router.states:
            stage.cluster.router.put(replace(state.endpoint, max_in_flight=1))
        asked(stage)
        client, second = asked(stage)
        sends(stage, second, refusal())
        assert client.received.startswith(b"HTTP/1.1 429")


BOUNDS: dict[str, tuple[int, dict[str, Any]]] = {
    "no budget": (0, {"retry": (("share", 0.0), ("per_second", 0.0))}),
    "a budget of one": (1, {"retry": (("share", 0.0), ("per_second", 0.1))}),
    "no further try": (0, {"retries": 0}),
    "a body longer than what is kept": (0, {"buffering": (("request", 4),)}),
}


@pytest.mark.parametrize("bound", BOUNDS)
def test_further_tries_are_bounded(bound: str) -> None:
    """Then the client gets the refusal."""
    number, options = BOUNDS[bound]
    with stage_of(3, **options) as stage:
        client, _ = asked(stage)
        for worker in (0, 1)[: number + 1]:
            assert not client.received
            sends(stage, stage.workers[worker], refusal())
        assert client.received.startswith(b"HTTP/1.1 429")
        assert stage.cluster.counts.retried == number


def test_kind_http_forwards_a_refused_post() -> None:
    """And takes 503 for a failure, as before."""
    with Wireless(2, policy="round-robin") as stage:
        for status in (b"429 Too Many Requests", b"503 Service Unavailable"):
            client, worker = asked(stage)
            sends(stage, worker, refusal(status))
            assert client.received.startswith(b"HTTP/1.1 " + status)
        assert outcomes(stage) == [{"ok": 1}, {"error_status": 1}]
        assert not stage.cluster.rests.until


# --- rests


def places(stage: Wireless, number: int) -> list[str]:
    """Where so many requests go, each answered at once."""
    found = []
    for _ in range(number):
        before = [state.sent for state in stage.cluster.router.states]
        _, worker = asked(stage)
        sends(stage, worker, OK)
        after = [state.sent for state in stage.cluster.router.states]
        found += [f"w{at}" for at, sent in enumerate(after) if sent > before[at]]
    return found


def test_retry_after_keeps_the_endpoint_out_of_picks() -> None:
    with stage_of(3) as stage:
        _, first = asked(stage)
        sends(stage, first, refusal(b"429 Too Many Requests", b"Retry-After: 4"))
        sends(stage, stage.workers[1], OK)
        assert set(places(stage, 6)) == {"w1", "w2"}
        stage.advance(3.9)
        assert set(places(stage, 6)) == {"w1", "w2"}
        stage.advance(0.2)
        assert set(places(stage, 6)) == {"w0", "w1", "w2"}
        assert not stage.cluster.rests.until


@pytest.mark.parametrize("is_called", [False, True])
def test_rest_sends_nothing_to_a_backup(is_called: bool) -> None:
    """Where the others are full or rest, the resting endpoint is asked after all, and where that is full the queue is
    joined; also while the backup takes a request that has failed."""
    with stage_of(3) as stage:
        for at, state in enumerate(stage.cluster.router.states):
            stage.cluster.router.put(replace(state.endpoint, max_in_flight=1, priority=at // 2))
        client, first = asked(stage)
        sends(stage, first, refusal(b"429 Too Many Requests", b"Retry-After: 20"))
        if is_called:
            sends(stage, stage.workers[1], refusal())
            sends(stage, stage.workers[2], OK)
        else:
            sends(stage, stage.workers[1], OK)
        assert client.received.endswith(b"ok")
        before = stage.cluster.router.find("w2").sent
        for _ in range(2 if is_called else 3):
            sends(stage, stage.client(), REQUEST)
        assert [state.in_flight for state in stage.cluster.router.states] == [1, 1, 0]
        assert (stage.cluster.router.find("w2").sent, len(stage.cluster.queue)) == (before, not is_called)


def test_where_all_rest_none_does() -> None:
    """A worker may have refused one client: the others are still served, as if nothing rested."""
    with stage_of(2) as stage:
        _, first = asked(stage)
        sends(stage, first, refusal(b"429 Too Many Requests", b"Retry-After: 20"))
        sends(stage, stage.workers[1], refusal(b"429 Too Many Requests", b"Retry-After: 20"))
        assert set(places(stage, 4)) == {"w0", "w1"}


def test_length_of_a_rest() -> None:
    rests = Rests()
    for endpoint, stated in {"none": None, "some": 5.0, "over": 0.0, "most": 1e8}.items():
        rests.begin(endpoint, stated, 100.0)
    rests.begin("some", 1.0, 100.0)
    assert rests.resting(100.0) == {"none", "some", "most"}
    assert rests.resting(100.0 + USUAL_REST) == {"some", "most"}
    assert rests.resting(105.0) == {"most"}
    assert not rests.resting(100.0 + LONGEST_REST)
    assert not rests.until


STATED: dict[bytes, float | None] = {
    b"7": 7.0,
    b"0": 0.0,
    b"Sun, 29 Nov 2026 12:00:30 GMT": 30.0,
    b"Sun, 29 Nov 2026 11:00:00 GMT": 0.0,
    b"9" * 400: inf,
    **dict.fromkeys((b"-1", b"1.5", b"soon", b"\xff\xfe", b""), None),
    b"Sun, 29 Nov %b 12:00:30 GMT" % (b"9" * 20): None,
    b"Sun, 29 Nov 2026 12:00:30 +%b" % (b"9" * 20): None,
}


@pytest.mark.parametrize("value", STATED)
def test_retry_after(value: bytes) -> None:
    today = datetime(2026, 11, 29, 12, tzinfo=UTC)
    assert retry_after(b"\r\nServer: x\r\nretry-after: %b\r\n" % value, today) == STATED[value]


# --- bound on what is kept


def test_body_beyond_the_bound_is_not_kept() -> None:
    """Of bodies that come in one read `buffering.total` bounds what is kept for another try, as of all others."""
    body = b'{"prompt":"%b"}' % (b"x" * 100_000)
    request = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    with stage_of(3, buffering=(("total", 150_000),)) as stage:
        clients = [stage.client(), stage.client()]
        for client in clients:
            sends(stage, client, request)
        assert not any(each.rest for each in gc.get_objects() if isinstance(each, RequestReader))
        budget = stage.cluster.process.buffer_budget
        assert (budget.kept, budget.requests_streamed) == (len(body), 1)
        for worker in stage.workers[:2]:
            assert worker.received.endswith(body)
            sends(stage, worker, refusal())
        assert not clients[0].received
        assert clients[1].received.startswith(b"HTTP/1.1 429")
        assert stage.workers[2].received.endswith(body)
        sends(stage, stage.workers[2], OK)
        assert clients[0].received.endswith(b"ok")
        assert budget.kept == 0


# --- attempts whose answer no client gets


@pytest.mark.parametrize("order", ["before", "after"])
def test_refusal_beside_a_hedge_is_no_failure(order: str) -> None:
    """Before the other attempt is answered, and after it: the endpoint rests."""
    get = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"
    with stage_of(2, hedging=(("enabled", True),)) as stage:
        client = stage.client()
        sends(stage, client, get)
        (downstream,) = stage.cluster.process.downstreams
        cast(Exchange, cast(Http1Connection, downstream)._answering).hedge()
        stage.turn()
        first, second = stage.workers
        for worker, answer in ((first, refusal()), (second, OK))[:: 1 if order == "before" else -1]:
            sends(stage, worker, answer)
        assert client.received.endswith(b"ok")
        assert outcomes(stage) == [{"busy": 1}, {"ok": 1}]
        assert list(stage.cluster.rests.until) == ["w0"]


def test_refusal_of_a_copy_is_no_failure() -> None:
    with Wireless(1, mirror=(("methods", ("POST",)),), retry=(("busy", (503,)),)) as stage:
        _, worker = asked(stage)
        sends(stage, worker, OK)
        sends(stage, stage.copies_to[0], refusal(b"503 Service Unavailable"))
        (mirrored,) = (one.cluster for one in stage.named_clusters.every)
        assert mirrored.router.states[0].failures == 0
        assert list(mirrored.rests.until) == ["m0"]
