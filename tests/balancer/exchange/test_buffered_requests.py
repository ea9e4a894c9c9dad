"""Request bodies that are received whole before an endpoint is asked, and those that are streamed after all."""

from __future__ import annotations

import sys
from functools import partial
from itertools import pairwise
from typing import Any, cast

import pytest

from balancer.clients.client_usage import ByteBudget
from balancer.exchange.buffering import BLOCK, KeptBody
from balancer.http.h1.field_list import FieldList
from balancer.http.h1.response_head import ResponseHeads
from balancer.tracing.tracing import Tracing
from balancer.upstream.internal_request import InternalRequest
from balancer.upstream.request import RequestBody, whole_body
from balancer.upstream.stream import UpstreamStream
from tests.support.wireless import Wireless, buffering, sends

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LENGTH = 1000
TOTAL = 2000


def head(length: int, *lines: bytes, method: bytes = b"PUT") -> bytes:
    """A request's head that announces a body."""
    fields = b"".join(line + b"\r\n" for line in lines)
    return b"%b / HTTP/1.1\r\nHost: a\r\n%bContent-Length: %d\r\n\r\n" % (method, fields, length)


CHUNKED = b"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


buffered = partial(buffering, buffering=(("request", LENGTH), ("total", TOTAL)))
"""A balancer that keeps bodies of up to `LENGTH` bytes, `TOTAL` in all."""


def errors(stage: Wireless) -> dict[str, int]:
    return dict(stage.cluster.counts.errors)


@pytest.mark.parametrize("cuts", [[0], [70], [60, 66, 70]])
@pytest.mark.parametrize("trailer", [b"", b"X: 1\r\n"])
def test_kept_body_of_chunks_is_sent_with_its_length(cuts: list[int], trailer: bytes) -> None:
    """However it is cut; chunks stay where trailers follow them, and where the body is longer than what may be kept."""
    whole = CHUNKED + chunk(b"abc") + chunk(b"def") + b"0\r\n" + trailer + b"\r\n"
    with buffered() as stage:
        client = stage.client()
        sends(stage, client, *(whole[at:to] for at, to in pairwise([0, *filter(None, cuts), len(whole)])))
        (worker,) = stage.workers
        sent, _, body = worker.received.partition(b"\r\n\r\n")
        assert (b"\r\nContent-Length: 6" in sent, b"chunked" in sent) == (not trailer, bool(trailer))
        assert bytes(body) == (b"6\r\nabcdef\r\n0\r\nX: 1\r\n\r\n" if trailer else b"abcdef")
    with buffered() as stage:
        sends(stage, stage.client(), CHUNKED, chunk(b"x" * (LENGTH + 1)), b"0\r\n\r\n")
        assert b"chunked" in stage.workers[0].received


def test_worker_is_asked_once_the_body_is_whole() -> None:
    """Until then there is no connection, no request in flight and none in the queue; then there is one write."""
    with buffered() as stage:
        client, budget = stage.client(), stage.cluster.process.buffer_budget
        sends(stage, client, head(LENGTH), b"x" * 600, b"y" * 399)
        assert not stage.workers
        assert (stage.cluster.router.in_flight, len(stage.cluster.queue)) == (0, 0)
        assert (budget.kept, stage.cluster.process.in_flight) == (999, 1)
        sends(stage, client, b"z")
        (worker,) = stage.workers
        assert worker.received.endswith(b"\r\n\r\n" + b"x" * 600 + b"y" * 399 + b"z")
        assert worker.writes == [0]
        sends(stage, worker, ANSWER)
        assert client.received.endswith(b"ok")
        assert (budget.kept, budget.requests, budget.requests_streamed) == (0, 1, 0)


def test_chunks_are_kept_with_their_trailers() -> None:
    with buffered() as stage:
        client = stage.client()
        sends(stage, client, CHUNKED, chunk(b"abc"), chunk(b"de"), b"0\r\nX-Sum: 1\r\n")
        assert not stage.workers
        sends(stage, client, b"\r\n")
        (worker,) = stage.workers
        assert worker.received.endswith(b"\r\n\r\n5\r\nabcde\r\n0\r\nX-Sum: 1\r\n\r\n")


def test_body_that_comes_with_its_head_is_not_kept() -> None:
    """There is nothing to wait for."""
    with buffered() as stage:
        sends(stage, stage.client(), head(3) + b"abc")
        assert stage.workers[0].received.endswith(b"abc")
        budget = stage.cluster.process.buffer_budget
        assert (budget.kept, budget.requests) == (0, 0)


STREAMED = {
    "an announced length above the limit": [head(LENGTH + 1), b"x" * 10],
    "gRPC": [head(10, b"Content-Type:\tApplication/gRPC+proto"), b"x"],
    "chunks beyond the limit": [CHUNKED, chunk(b"x" * (LENGTH + 1))],
    "chunks beyond the limit in the read of the head": [CHUNKED + chunk(b"x" * (LENGTH + 1))],
}


@pytest.mark.parametrize("kind", STREAMED)
def test_bodies_that_are_streamed(kind: str) -> None:
    """The worker gets what was kept, and then every piece as it comes; the bound was not the reason."""
    with buffered() as stage:
        client = stage.client()
        sends(stage, client, *STREAMED[kind])
        (worker,) = stage.workers
        sent = b"".join(STREAMED[kind]).partition(b"\r\n\r\n")[2]
        assert worker.received.endswith(b"\r\n\r\n" + sent)
        sends(stage, client, chunk(b"abc") if b"chunked" in STREAMED[kind][0] else b"abc")
        assert b"abc" in worker.received
        assert stage.cluster.process.buffer_budget.requests_streamed == 0


def test_bodies_beyond_the_bound_are_streamed() -> None:
    """Three bodies of 600 bytes at a bound of 1500: the third is streamed from what was kept, and all arrive."""
    with buffered(buffering=(("request", LENGTH), ("total", 1500))) as stage:
        clients, budget = [stage.client() for _ in range(3)], stage.cluster.process.buffer_budget
        for client in clients:
            sends(stage, client, head(600), b"x" * 300)
        assert (len(stage.workers), budget.kept) == (0, 900)
        for client in clients:
            sends(stage, client, b"y" * 299)
        (streamed,) = stage.workers
        assert streamed.received.endswith(b"\r\n\r\n" + b"x" * 300 + b"y" * 299)
        assert (budget.kept, budget.requests_streamed) == (599 + 599 + 300, 1)
        for client in clients:
            sends(stage, client, b"z")
        assert [worker.received[-600:] for worker in stage.workers] == [b"x" * 300 + b"y" * 299 + b"z"] * 3
        for worker in stage.workers:
            worker.send(ANSWER)
        stage.turn()
        assert all(client.received.endswith(b"ok") for client in clients)
        assert (budget.kept, budget.requests, budget.requests_streamed) == (0, 2, 1)


def test_streamed_from_the_first_byte_when_nothing_is_left() -> None:
    with buffered(buffering=(("request", TOTAL), ("total", TOTAL))) as stage:
        first, second = stage.client(), stage.client()
        sends(stage, first, head(TOTAL), b"x" * (TOTAL - 1))
        sends(stage, second, head(10) + b"yy")
        (worker,) = stage.workers
        assert worker.received.endswith(b"\r\n\r\nyy")
        assert stage.cluster.process.buffer_budget.kept == TOTAL - 1


# --- ends before the body is whole


def test_malformed_chunk() -> None:
    with buffered() as stage:
        client = stage.client()
        sends(stage, client, CHUNKED, chunk(b"abc"), b"no size\r\n")
        assert client.received.startswith(b"HTTP/1.1 400 ")
        assert (stage.cluster.process.buffer_budget.kept, stage.cluster.router.routed) == (0, 0)


def test_total_timeout_counts_from_the_head() -> None:
    with buffered(timeouts=(("total", 5.0),)) as stage:
        client = stage.client()
        sends(stage, client, head(10), b"x")
        stage.advance(4.0)
        sends(stage, client, b"x")
        stage.advance(1.5)
        assert client.received.startswith(b"HTTP/1.1 504 ")
        assert stage.cluster.router.routed == 0


# --- admission and the queue


def test_admission_is_decided_at_the_head() -> None:
    """A request whose deadline is over is rejected before its body has come."""
    with buffered(queue=(("timeout_header", "X-Timeout"),)) as stage:
        client = stage.client()
        sends(stage, client, head(10, b"X-Timeout: 0"), b"x")
        assert client.received.startswith(b"HTTP/1.1 503 ")
        assert errors(stage) == {"deadline_passed": 1}


def test_deadline_includes_the_time_of_the_body() -> None:
    """A request that is late when its body is whole is not sent, although an endpoint has room."""
    with buffered(queue=(("timeout_header", "X-Timeout"),)) as stage:
        late, other = stage.client(), stage.client()
        sends(stage, late, head(2, b"X-Timeout: 1000"), b"x")
        sends(stage, other, head(2, b"X-Timeout: 2000"), b"x")
        stage.advance(1.5)
        sends(stage, late, b"x")
        assert late.received.startswith(b"HTTP/1.1 503 ")
        assert (errors(stage), stage.cluster.queue.dropped) == (
            {"deadline_passed": 1},
            {"deadline_passed": 1},
        )
        sends(stage, other, b"x")
        assert len(stage.workers) == 1


def test_whole_body_waits_in_the_queue() -> None:
    """It stays charged, and is sent when there is room."""
    with buffered(limits=(("in_flight", 1),)) as stage:
        first, second = stage.client(), stage.client()
        sends(stage, first, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        sends(stage, second, head(2), b"x")
        assert len(stage.cluster.queue) == 0
        sends(stage, second, b"y")
        assert (len(stage.cluster.queue), stage.cluster.process.buffer_budget.kept) == (1, 2)
        sends(stage, stage.workers[0], ANSWER)
        assert stage.workers[0].received.endswith(b"\r\n\r\nxy")


def test_rejection_from_the_queue() -> None:
    with buffered(limits=(("in_flight", 1), ("queue", 0))) as stage:
        sends(stage, stage.client(), b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        client = stage.client()
        sends(stage, client, head(2), b"xy")
        assert client.received.startswith(b"HTTP/1.1 503 ")
        assert stage.cluster.process.buffer_budget.kept == 0
        client.received.clear()
        sends(stage, stage.workers[0], ANSWER)
        sends(stage, client, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert len(stage.workers[0].writes) == 2, "the client's connection has been kept alive"


# --- Expect


def test_expectation_is_met_before_an_endpoint_is_asked() -> None:
    """RFC 9110 § 10.1.1: the client waits for 100, and the worker is not told, because the body follows at once."""
    with buffered() as stage:
        client = stage.client()
        sends(stage, client, head(2, b"expect:100-Continue", b"X-Other: 1"))
        assert client.received == CONTINUE
        assert not stage.workers
        sends(stage, client, b"xy")
        received = bytes(stage.workers[0].received)
        assert b"expect" not in received.lower()
        assert b"\r\nX-Other: 1\r\n" in received
        assert received.startswith(b"PUT / HTTP/1.1\r\n")
        assert received.endswith(b"\r\n\r\nxy")


def test_expectation_of_a_streamed_request_is_forwarded() -> None:
    with buffered() as stage:
        client = stage.client()
        sends(stage, client, head(LENGTH + 1, b"Expect: 100-continue"))
        assert client.received == b""
        assert b"\r\nExpect: 100-continue\r\n" in stage.workers[0].received
        sends(stage, stage.workers[0], CONTINUE)
        assert client.received == CONTINUE


def test_expectation_is_removed_beside_a_trace_context() -> None:
    """From the head of each attempt; both end in a traceparent with a span of its own."""
    with buffered(2) as stage:
        stage.cluster.process.tracing = Tracing(trusts_all=True, sample=0.0)
        client = stage.client()
        sends(stage, client, head(2, b"Expect: 100-continue"), b"xy")
        stage.workers[0].vanish()
        stage.turn()
        heads = [bytes(worker.received).partition(b"\r\n\r\n")[0] for worker in stage.workers]
        assert len(heads) == 2
        assert not any(b"expect" in one.lower() for one in heads)
        assert len({one.rpartition(b"\r\ntraceparent: 00-")[2] for one in heads}) == 2


# --- what the worker does


def test_whole_body_is_repeated() -> None:
    """The worker dies with the request; up to `retry.body` bytes are kept for that."""
    with buffered(2) as stage:
        client = stage.client()
        sends(stage, client, head(LENGTH), b"x" * 400, b"y" * 600)
        stage.workers[0].vanish()
        stage.turn()
        assert stage.workers[1].received.endswith(b"\r\n\r\n" + b"x" * 400 + b"y" * 600)
        assert stage.cluster.process.buffer_budget.kept == LENGTH
        sends(stage, stage.workers[1], ANSWER)
        assert client.received.endswith(b"ok")
        assert stage.cluster.process.buffer_budget.kept == 0


def test_body_longer_than_retries_allow_is_sent_once() -> None:
    with buffered(2, retry=(("body", 100),)) as stage:
        client = stage.client()
        sends(stage, client, head(101), b"x" * 100, b"x")
        stage.workers[0].vanish()
        stage.turn()
        assert client.received.startswith(b"HTTP/1.1 502 ")
        assert len(stage.workers) == 1
        assert stage.cluster.process.buffer_budget.kept == 0


def test_unsent_body_is_repeated_whatever_its_length() -> None:
    """No connection, nothing sent: even a POST is tried elsewhere."""
    with buffered(2, retry=(("body", 0),), timeouts=(("connect", 1.0),)) as stage:
        client = stage.client()
        stage.dialling = "hang"
        sends(stage, client, head(101, method=b"POST"), b"x" * 100, b"x")
        assert stage.cluster.process.buffer_budget.kept == 101
        stage.dialling = "accept"
        stage.advance(1.5)
        (worker,) = stage.workers
        assert worker.received.endswith(b"\r\n\r\n" + b"x" * 101)
        assert (stage.cluster.counts.retried, stage.cluster.process.buffer_budget.kept) == (1, 0)


def test_whole_body_may_be_hedged() -> None:
    """A request that was received whole is complete when it is sent."""
    with buffered(2, hedging=(("enabled", True), ("minimum", 0.05), ("share", 0.5))) as stage:
        client = stage.client()
        sends(stage, client, head(2), b"x", b"y")
        stage.advance(1.5)
        assert stage.cluster.counts.hedged == 1
        assert [worker.received[-2:] for worker in stage.workers] == [b"xy", b"xy"]
        sends(stage, stage.workers[1], ANSWER)
        assert client.received.endswith(b"ok")
        assert stage.cluster.process.buffer_budget.kept == 0


def test_charge_lasts_until_the_worker_has_taken_the_body() -> None:
    """Beyond `retry.body` it is not kept for a retry, but the write buffer holds it."""
    with buffered(retry=(("body", 0),)) as stage:
        idle, client, budget = stage.client(), stage.client(), stage.cluster.process.buffer_budget
        sends(stage, idle, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        (worker,) = stage.workers
        sends(stage, worker, ANSWER)
        worker.stall()
        sends(stage, client, head(LENGTH), b"x" * 999, b"x")
        worker.take(LENGTH)
        stage.advance(0.25)
        assert (budget.kept, worker.unread > 0) == (LENGTH, True)
        worker.take()
        stage.advance(0.25)
        assert (budget.kept, worker.unread) == (0, 0)


def test_charge_ends_although_the_client_reads_nothing() -> None:
    """A body that the worker has taken is not charged while its response waits for the client."""
    rules = (("request", LENGTH), ("response", 100_000), ("total", 100_000))
    with buffered(retry=(("body", 0),), buffering=rules, limits=(("buffer", 1024),)) as stage:
        client, budget = stage.client(), stage.cluster.process.buffer_budget
        client.stall()
        sends(stage, client, head(LENGTH), b"x" * 999, b"x")
        assert budget.kept == LENGTH
        (worker,) = stage.workers
        sends(stage, worker, b"HTTP/1.1 200 OK\r\nContent-Length: 50000\r\n\r\n", b"y" * 40_000)
        assert budget.kept == client.unread > 40_000


def test_connection_with_an_unsent_body_is_not_reused() -> None:
    """The worker has answered without reading the request."""
    with buffered(retry=(("body", 0),)) as stage:
        idle, client = stage.client(), stage.client()
        sends(stage, idle, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        (worker,) = stage.workers
        sends(stage, worker, ANSWER)
        worker.stall()
        sends(stage, client, head(LENGTH), b"x" * 999, b"x")
        sends(stage, worker, ANSWER)
        assert client.received.endswith(b"ok")
        assert not worker.is_open
        assert stage.cluster.process.buffer_budget.kept == 0


# --- the client's connection


def test_pipelined_requests_are_answered_in_order() -> None:
    with buffered() as stage:
        client = stage.client()
        sends(stage, client, head(2), b"x")
        sends(stage, client, b"y" + head(3, method=b"POST") + b"ab")
        (worker,) = stage.workers
        sends(stage, worker, ANSWER)
        assert len(worker.writes) == 1
        sends(stage, client, b"cGET /last HTTP/1.1\r\nHost: a\r\n\r\n")
        assert worker.received.endswith(b"abc")
        sends(stage, worker, ANSWER)
        assert b"GET /last " in worker.received
        sends(stage, worker, ANSWER)
        assert client.received.count(b"HTTP/1.1 200 OK") == 3


def test_long_body_is_read_on_while_it_is_kept() -> None:
    """`limits.buffer` bounds what waits for an endpoint, not what is kept."""
    size = 300_000
    with buffered(limits=(("buffer", 1024),), buffering=(("request", size), ("total", size))) as stage:
        client = stage.client()
        client.send(head(size) + b"x" * 5000)
        sends(stage, client, b"x" * 100_000)
        assert stage.cluster.process.buffer_budget.kept == 105_000
        sends(stage, client, b"x" * (size - 105_000))
        assert stage.workers[0].received.endswith(b"\r\n\r\n" + b"x" * size)


def test_mirror_gets_a_kept_body_as_well() -> None:
    with buffered(mirror=(("body", LENGTH), ("methods", ("PUT",)))) as stage:
        client = stage.client()
        sends(stage, client, head(4, b"Expect: 100-continue"), b"ab")
        assert (stage.workers, stage.copies_to) == ([], [])
        sends(stage, client, b"cd")
        for peer in (*stage.workers, *stage.copies_to):
            assert peer.received.endswith(b"\r\n\r\nabcd")
            sends(stage, peer, ANSWER)
        assert len(stage.copies_to) == 1
        assert client.received.endswith(b"ok")


# --- memory


def test_small_pieces_are_joined() -> None:
    """Objects of a kept body take little more than its bytes, however small its pieces were."""
    budget = ByteBudget()
    budget.total = size = 600_000
    kept = KeptBody(RequestBody(0, False), size, budget)
    for _ in range(size // 6):
        kept.add(b"1\r\nx\r\n")
    assert (kept.size, kept.fits, budget.kept) == (size, True, size)
    held = sum(map(sys.getsizeof, [*kept._pieces, kept._tail]))
    assert len(kept._pieces) <= size / BLOCK
    assert held < 1.2 * size
    assert kept.between(b"", b"") == b"1\r\nx\r\n" * (size // 6)
    assert sum(map(sys.getsizeof, [*kept._pieces, kept._tail])) < 1000, "what was sent is kept once"


class PiecewiseStream:
    """A stream of a multiplexed connection that records the pieces of a request's body."""

    unsent = 0

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.heads = ResponseHeads()

    def begin(self, stream: UpstreamStream, outline: FieldList) -> PiecewiseStream:
        return self

    def send(self, data: bytes) -> None:
        self.pieces.append(data)

    def send_end(self, trailers: bytes) -> None:
        assert trailers == b""


def test_long_body_goes_to_a_stream_in_pieces() -> None:
    """A stream cuts its frames from a piece and copies the rest, so the time for one long piece would grow with its
    square."""
    recorded: Any = PiecewiseStream()
    body = bytes(range(256)) * 10_000
    stream = UpstreamStream(cast(Any, None), recorded)
    stream.send(head(len(body)), InternalRequest(None, print), b"PUT", whole_body(body))
    assert b"".join(recorded.pieces) == body
    assert max(map(len, recorded.pieces)) <= 65_536
