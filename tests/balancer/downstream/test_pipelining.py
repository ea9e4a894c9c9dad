"""Pipelined requests: kept as bytes, parsed in order, bounded. RFC 9112 § 9.3.2."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from balancer.downstream.pipelined import WINDOW
from balancer.http.h1.request_head import Request
from balancer.log.formats import phases
from tests.support.log_entries import RecordingLog
from tests.support.readers import Read, requests_seen, responses_seen
from tests.support.wireless import Peer, Wireless, sends

ONE_READ = 262_144
"""Bytes of one read of the event loop."""

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
OFFER = b"GET /offer HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: chat\r\n\r\n"
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: chat\r\n\r\n"


def get(target: bytes = b"/", *fields: bytes) -> bytes:
    return b"GET %b HTTP/1.1\r\nHost: a\r\n%b\r\n" % (target, b"".join(line + b"\r\n" for line in fields))


def post(body: bytes, target: bytes = b"/", is_chunked: bool = False) -> bytes:
    head = b"POST %b HTTP/1.1\r\nHost: a\r\n" % target
    if is_chunked:
        chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
        return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk + b"0\r\nX: y\r\n\r\n"
    return head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def got(stage: Wireless) -> list[Read]:
    return [request for worker in stage.workers for request in requests_seen(bytes(worker.received))]


def statuses(client: Peer, methods: int) -> list[bytes]:
    seen = responses_seen(bytes(client.received), [b"GET"] * methods, client.ending == "end")
    return [response.line[1] for response in seen]


def pipelined_behind_a_slow_request(stage: Wireless, *reads: bytes) -> Peer:
    """A client whose first request is at the worker and that has pipelined these reads."""
    client = stage.client()
    sends(stage, client, get(b"/slow"))
    for data in reads:
        client.send(data)
    stage.turn()
    return client


def answer(stage: Wireless, data: bytes = ANSWER) -> None:
    """Respond to the request that the worker has."""
    sends(stage, stage.workers[-1], data)


class WithoutEndpoints(Wireless):
    """A balancer without endpoints: it answers every request with 503 at once."""

    def __init__(self) -> None:
        super().__init__(limits=(("buffer", 16_384),))
        self.control_plane.replace_endpoints([])


# --- memory and back-pressure


def requests_alive() -> int:
    gc.collect()
    return sum(type(one) is Request for one in gc.get_objects())


@pytest.mark.parametrize("target", [b"/", b"/" + b"x" * 3000])
def test_memory_of_pipelined_requests(target: bytes) -> None:
    """Many requests in one read: only that in progress is a request object, the others stay bytes."""
    ahead = get(target) * (ONE_READ // len(get(target)))
    before = requests_alive()
    with Wireless() as stage:
        client = pipelined_behind_a_slow_request(stage)
        assert client.wire is not None
        tracemalloc.start()
        try:
            sends(stage, client, ahead)
            for _ in range(3):
                grown, _ = tracemalloc.get_traced_memory()
                assert grown < 2 * len(ahead)
                assert requests_alive() - before == 1
                answer(stage)
        finally:
            tracemalloc.stop()
        assert not client.wire.is_reading()


def test_reading_pauses_while_requests_are_pipelined() -> None:
    """A second read stays in the kernel."""
    with Wireless() as stage:
        client = pipelined_behind_a_slow_request(stage, b"G", get()[1:] + get(b"/third"))
        assert client.wire is not None
        assert not client.wire.is_reading()
        for number in range(1, 4):
            assert len(got(stage)) == number
            answer(stage)
        assert client.wire.is_reading()
        assert statuses(client, 3) == [b"200"] * 3


def test_immediate_responses_do_not_recurse() -> None:
    """5000 requests in one read are answered without recursion."""
    with WithoutEndpoints() as stage:
        client = stage.client()
        sends(stage, client, get() * 5000)
        assert client.received.count(b"HTTP/1.1 503 ") == 5000
        assert client.ending is None


@pytest.mark.parametrize("is_one_read", [True, False])
def test_client_that_does_not_read_is_not_read(is_one_read: bool) -> None:
    """The write buffer is bounded although 503 responses are larger than the smallest requests."""
    with WithoutEndpoints() as stage:
        client = stage.client()
        client.stall()
        for data in [get() * 1000] if is_one_read else [get()] * 1000:
            client.send(data)
        stage.turn()
        assert client.unread < 16_384 + 1024
        client.take()
        stage.turn()
        assert client.received.count(b"HTTP/1.1 503 ") == 1000


# --- order and framing


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("size", [0, 1, WINDOW - 100, WINDOW, 5 * WINDOW])
def test_pipelined_bodies_arrive_complete(size: int, is_chunked: bool) -> None:
    """Also bodies larger than the parser's window, in the same write as the head."""
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    with Wireless() as stage:
        client = pipelined_behind_a_slow_request(stage, post(body, b"/1", is_chunked) * 2 + get(b"/last"))
        for _ in range(4):
            answer(stage)
        seen = got(stage)
        assert [request.line[1] for request in seen] == [b"/slow", b"/1", b"/1", b"/last"]
        assert [request.body for request in seen] == [b"", body, body, b""]
        assert len(stage.workers[0].writes) == 4
        assert statuses(client, 4) == [b"200"] * 4


def test_pipelined_head_longer_than_the_window() -> None:
    long = get(b"/long", b"X: " + b"x" * (WINDOW + 1000))
    with Wireless() as stage:
        client = pipelined_behind_a_slow_request(stage, get(b"/2") + long + get(b"/4"))
        for _ in range(4):
            answer(stage)
        assert [request.line[1] for request in got(stage)] == [b"/slow", b"/2", b"/long", b"/4"]
        assert statuses(client, 4) == [b"200"] * 4


@pytest.mark.parametrize(
    "bad",
    [
        b"G\0T / HTTP/1.1\r\n\r\n",
        get(b"/", b"Host: b"),
        b"\r\n" * 9000 + b"\n",
        post(b"", is_chunked=True)[:-3],
    ],
)
def test_malformed_pipelined_request_is_rejected_in_order(bad: bytes) -> None:
    """Earlier requests are answered, then 400, then the connection closes; what follows is dropped."""
    with Wireless() as stage:
        client = pipelined_behind_a_slow_request(stage, get(b"/2") + bad + b"\n" + get(b"/ghost"))
        assert client.received == b""
        answer(stage)
        answer(stage)
        assert statuses(client, 3) == [b"200", b"200", b"400"]
        assert b"Connection: close" in client.received
        assert not any(request.line[1] == b"/ghost" for request in got(stage))
        client.end()
        stage.advance(60)
        assert client.ending == "end"


def test_nothing_is_parsed_after_connection_close() -> None:
    with Wireless() as stage:
        client = pipelined_behind_a_slow_request(
            stage, get(b"/last", b"Connection: close") + get(b"/ghost") * 9
        )
        answer(stage)
        answer(stage)
        assert [request.line[1] for request in got(stage)] == [b"/slow", b"/last"]
        client.end()
        stage.advance(60)
        assert client.ending == "end"


@pytest.mark.parametrize("is_reported_at_once", [False, True])
@pytest.mark.parametrize(
    ("rest", "answers"), [(b"", 2), (get(b"/3"), 3), (get(b"/3")[:-3], 2), (post(b"ab")[:-1], 2)]
)
def test_requests_before_a_half_close_are_answered(
    rest: bytes, answers: int, is_reported_at_once: bool
) -> None:
    """The end is reported after the bytes before it, or, by TLS, although reading is paused."""
    with Wireless() as stage:
        client = pipelined_behind_a_slow_request(stage, get(b"/2") + rest)
        if is_reported_at_once:
            client.end_early()
        else:
            client.end()
        stage.turn()
        for _ in range(answers):
            assert client.ending is None
            answer(stage)
        assert statuses(client, answers) == [b"200"] * answers
        assert client.ending == "end"
        stage.leave()
        assert stage.left_behind() == []


def test_half_close_behind_an_admin_request() -> None:
    """The connection has been handed to the admin interface."""
    with Wireless() as stage:
        client = pipelined_behind_a_slow_request(stage, get(b"/-/status"))
        client.end_early()
        answer(stage)
        assert statuses(client, 1) == [b"200"]
        assert not stage.downstreams


def test_head_timeout_of_a_pipelined_head() -> None:
    """No deadline of the client runs while it waits for the balancer."""
    with Wireless(timeouts=(("head", 5.0), ("first_byte", 100.0))) as stage:
        client = pipelined_behind_a_slow_request(stage, get(b"/2")[:-2])
        stage.advance(20)
        assert client.received == b""
        answer(stage)
        stage.advance(4)
        assert statuses(client, 1) == [b"200"]
        stage.advance(2)
        assert statuses(client, 2) == [b"200", b"408"]


@pytest.mark.parametrize("ahead", [b"\r\n", get(b"/2")])
def test_pipelined_bytes_do_not_start_the_body_timeout(ahead: bytes) -> None:
    """Reading is paused to keep the order, not because the worker has stopped reading the body."""
    with Wireless(retries=0, timeouts=(("body_idle", 5.0), ("first_byte", 30.0))) as stage:
        client = pipelined_behind_a_slow_request(stage, ahead)
        stage.advance(20)
        answer(stage)
        assert statuses(client, 1) == [b"200"]


def test_drain_drops_pipelined_requests() -> None:
    """The next response carries `Connection: close`; pipelined requests are not begun."""
    with Wireless() as stage:
        client = pipelined_behind_a_slow_request(stage, get(b"/2") * 3)
        stage.cluster.process.drain(0.0)
        stage.advance(1)
        assert stage.cluster.process.in_flight == 1
        answer(stage)
        assert statuses(client, 1) == [b"200"]
        assert b"\r\nConnection: close\r\n" in client.received
        assert len(got(stage)) == 1
        assert stage.cluster.process.in_flight == 0


# --- upgrades


@pytest.mark.parametrize("has_ended", [False, True])
def test_early_bytes_behind_an_upgrade_enter_the_tunnel(has_ended: bool) -> None:
    """All early bytes, in order, and the end; more than the parser's window."""
    early = bytes(range(256)) * 200
    with Wireless() as stage:
        client = pipelined_behind_a_slow_request(stage, OFFER + early)
        if has_ended:
            client.end_early()
        answer(stage)
        worker = stage.workers[-1]
        assert bytes(worker.received).endswith(b"Upgrade: chat\r\n\r\n") or b"/offer" in worker.received
        answer(stage, SWITCHED)
        assert bytes(worker.received).endswith(early)
        assert worker.ending == ("end" if has_ended else None)
        if not has_ended:
            sends(stage, client, b"more")
            assert bytes(worker.received).endswith(early + b"more")


@pytest.mark.parametrize("has_ended", [False, True])
def test_requests_behind_a_declined_upgrade(has_ended: bool) -> None:
    """Each request in order, also after several declined upgrades."""
    with Wireless() as stage:
        client = pipelined_behind_a_slow_request(
            stage, OFFER + post(b"x" * 2 * WINDOW) + OFFER + get(b"/last")
        )
        if has_ended:
            client.end_early()
        for _ in range(5):
            answer(stage)
        assert [request.line[1] for request in got(stage)] == [b"/slow", b"/offer", b"/", b"/offer", b"/last"]
        assert statuses(client, 5) == [b"200"] * 5
        assert client.ending == ("end" if has_ended else None)


# --- counters and log


def test_counts_and_queue_times_of_pipelined_requests() -> None:
    """In order; the time behind earlier requests is queueing."""
    log = RecordingLog()
    with Wireless() as stage:
        stage.cluster.journal = log
        pipelined_behind_a_slow_request(stage, get(b"/2") + get(b"/3"))
        assert stage.cluster.counts.requests == 1
        for number in range(1, 4):
            stage.advance(1)
            answer(stage)
            assert [entry.target for entry in log.entries] == [b"/slow", b"/2", b"/3"][:number]
        assert stage.cluster.counts.requests == 3
        assert [phases(entry).queue for entry in log.entries] == [0.0, 1.0, 2.0]
        assert [phases(entry).total for entry in log.entries] == [1.0, 2.0, 3.0]
