"""Responses that are taken over from the worker for a client that reads slowly, and those that are streamed."""

from __future__ import annotations

from functools import partial

import pytest

from balancer.config.schema.limits import BufferingLimits
from tests.support.wireless import Peer, Wireless, buffering, reload_with, sends

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
LIMIT = 100_000
TOTAL = 150_000
READ = 20_000


def by_length(size: int) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\n\r\n"


RULES = (("response", LIMIT), ("total", TOTAL))
buffered = partial(buffering, buffering=RULES, limits=(("buffer", 1024),))
"""A balancer that keeps up to `LIMIT` bytes per client, `TOTAL` in all."""


def asks(stage: Wireless, request: bytes = GET, *, stalls: bool = True) -> tuple[Peer, Peer]:
    """A client that reads nothing, unless told not to stall, and the worker that has its request."""
    client = stage.client()
    if stalls:
        client.stall()
    sends(stage, client, request)
    return client, stage.workers[-1]


def is_read_on(worker: Peer) -> bool:
    """Whether the balancer reads what this worker sends."""
    assert worker.wire is not None
    return worker.wire.is_reading()


def idle(stage: Wireless) -> int:
    return stage.cluster.pools.by_id["w0"].idle


FRAMINGS = {
    "length": (by_length(3 * READ), [b"x" * READ] * 3),
    "chunked": (CHUNKED, [*[b"%x\r\n%b\r\n" % (READ, b"x" * READ)] * 3, b"0\r\nX-Sum: 1\r\n\r\n"]),
}


@pytest.mark.parametrize("framing", FRAMINGS)
def test_worker_is_free_while_the_client_reads(framing: str) -> None:
    """The connection returns to the pool, and serves another client meanwhile; every byte arrives."""
    head, pieces = FRAMINGS[framing]
    with buffered() as stage:
        client, worker = asks(stage)
        budget = stage.cluster.process.buffer_budget
        sends(stage, worker, head + pieces[0], *pieces[1:])
        assert (idle(stage), stage.cluster.router.in_flight) == (1, 0)
        assert budget.kept == client.unread > 3 * READ
        assert (budget.responses, budget.responses_streamed) == (1, 0)
        asks(stage, stalls=False)
        assert len(stage.workers) == 1
        sends(stage, worker, by_length(2) + b"ok")
        assert stage.clients[-1].received.endswith(b"ok")
        client.take(READ)
        stage.advance(0.25)
        assert budget.kept == client.unread > 2 * READ
        client.take()
        stage.turn()
        assert client.received.endswith(b"".join(pieces))
        assert budget.kept == 0


def test_response_that_comes_in_one_read_is_charged() -> None:
    """It frees its worker in any case, and occupies as much memory."""
    with buffered() as stage:
        client, worker = asks(stage)
        sends(stage, worker, by_length(3 * READ) + b"x" * 3 * READ)
        assert idle(stage) == 1
        assert stage.cluster.process.buffer_budget.kept == client.unread > 3 * READ
        client.take()
        stage.turn()
        assert stage.cluster.process.buffer_budget.kept == 0


def test_response_until_close_is_taken_over() -> None:
    with buffered() as stage:
        client, worker = asks(stage)
        sends(stage, worker, UNTIL_CLOSE, b"x" * READ)
        worker.end()
        stage.turn()
        assert stage.cluster.router.in_flight == 0
        client.take()
        stage.turn()
        assert b"x" * READ in client.received
        assert client.received.endswith(b"0\r\n\r\n")


def test_long_response_is_taken_over_when_the_rest_can_be_kept() -> None:
    """Before that its worker would not be free, and the memory would be wasted."""
    with buffered() as stage:
        client, worker = asks(stage)
        budget, size = stage.cluster.process.buffer_budget, LIMIT + 3 * READ
        sends(stage, worker, by_length(size) + b"x" * READ)
        assert (is_read_on(worker), budget.kept) == (False, 0)
        client.take(client.unread)
        stage.turn()
        assert is_read_on(worker)
        sends(stage, worker, b"x" * READ)
        assert (is_read_on(worker), budget.kept) == (False, 0)
        client.take(client.unread)
        stage.turn()
        sends(stage, worker, b"x" * (READ + 1000))
        assert (is_read_on(worker), budget.kept) == (False, 0)
        client.take(client.unread)
        stage.turn()
        sends(stage, worker, *[b"x" * READ] * 4)
        assert (is_read_on(worker), budget.kept) == (True, 4 * READ)
        sends(stage, worker, b"x" * (READ - 1000))
        assert idle(stage) == 1
        client.take()
        stage.turn()
        assert len(client.received.partition(b"\r\n\r\n")[2]) == size


def test_response_of_unknown_length_is_kept_up_to_the_limit() -> None:
    """Then the worker waits until the client has caught up, and is read on again."""
    with buffered() as stage:
        client, worker = asks(stage)
        piece = b"%x\r\n%b\r\n" % (READ, b"x" * READ)
        sends(stage, worker, CHUNKED, *[piece] * 4)
        assert (is_read_on(worker), stage.cluster.process.buffer_budget.kept) == (True, client.unread)
        sends(stage, worker, piece)
        assert not is_read_on(worker)
        assert stage.cluster.process.buffer_budget.kept <= LIMIT < client.unread
        client.take(client.unread)
        stage.turn()
        assert (is_read_on(worker), stage.cluster.process.buffer_budget.kept) == (True, 0)
        sends(stage, worker, piece)
        assert (is_read_on(worker), stage.cluster.process.buffer_budget.kept) == (True, client.unread)


def test_responses_beyond_the_bound_are_streamed() -> None:
    """The second client's worker waits; when the first one has read, the rest of the second response is taken over."""
    with buffered() as stage:
        budget = stage.cluster.process.buffer_budget
        first, worker = asks(stage)
        second, waiting = asks(stage)
        sends(stage, worker, by_length(4 * READ + READ // 2) + b"x" * (READ // 2), *[b"x" * READ] * 4)
        sends(stage, waiting, by_length(4 * READ) + b"y" * READ, *[b"y" * READ] * 3)
        assert (is_read_on(waiting), budget.responses, budget.responses_streamed) == (False, 1, 1)
        assert budget.kept <= TOTAL
        first.take()
        stage.turn()
        second.take(second.unread)
        stage.turn()
        second.take()
        stage.turn()
        assert first.received.endswith(b"\r\n\r\n" + b"x" * (4 * READ + READ // 2))
        assert second.received.endswith(b"\r\n\r\n" + b"y" * 4 * READ)
        assert (budget.kept, budget.responses_streamed) == (0, 1)


def test_client_that_reads_nothing_is_cut() -> None:
    """`timeouts.body_idle` holds; the worker has answered, and nothing is counted against it."""
    with buffered() as stage:
        client, worker = asks(stage)
        sends(stage, worker, by_length(3 * READ) + b"x" * READ, b"x" * READ, b"x" * READ)
        for _ in range(5):
            stage.advance(30.0)
            client.take(1000)
        assert client.is_open
        stage.advance(30.0)
        stage.advance(61.0)
        stage.turn()
        assert client.ending == "reset"
        assert stage.cluster.process.buffer_budget.kept == 0
        assert sum(stage.cluster.router.states[0].outcomes.values()) == 1


def test_client_that_leaves_gives_what_is_kept_back() -> None:
    with buffered() as stage:
        client, worker = asks(stage)
        sends(stage, worker, by_length(3 * READ) + b"x" * READ, b"x" * READ)
        assert stage.cluster.process.buffer_budget.kept == client.unread
        client.vanish()
        stage.turn()
        assert stage.cluster.process.buffer_budget.kept == 0
        assert not worker.is_open


@pytest.mark.parametrize("reads", [True, False])
def test_what_is_kept_of_a_response_that_breaks_off_is_sent(reads: bool) -> None:
    """A slow client gets it, then a FIN; one that reads nothing is reset after `timeouts.body_idle`."""
    with buffered() as stage:
        client, worker = asks(stage)
        sends(stage, worker, by_length(3 * READ) + b"x" * READ, b"x" * READ)
        worker.vanish()
        stage.turn()
        assert stage.cluster.process.buffer_budget.kept == client.unread > READ
        if reads:
            for _ in range(3):
                stage.advance(59.0)
                client.take(READ // 2)
            client.take()
        else:
            stage.advance(59.0)
            stage.turn()
            assert client.ending is None
            stage.advance(61.0)
        stage.turn()
        assert client.ending == ("end" if reads else "reset")
        assert (client.received.count(b"x") == 2 * READ) is reads
        assert stage.cluster.process.buffer_budget.kept == 0


def test_events_are_not_delayed() -> None:
    """Server-sent events and long polling: every piece is written when it comes, to a slow client as well."""
    with buffered() as stage:
        client, worker = asks(stage, stalls=False)
        sends(stage, worker, CHUNKED)
        assert client.received.endswith(b"\r\n\r\n")
        for number in range(3):
            event = b"8\r\ndata: %d\n\r\n" % number
            sends(stage, worker, event)
            assert client.received.endswith(event)
            stage.advance(30.0)
        client.stall()
        sends(stage, worker, b"8\r\ndata: 4\n\r\n", b"8\r\ndata: 5\n\r\n")
        assert (client.unread, stage.cluster.process.buffer_budget.kept) == (26, 26)
        client.take()
        stage.turn()
        assert client.received.endswith(b"data: 4\n\r\n8\r\ndata: 5\n\r\n")


def test_head_and_interim_responses_pass() -> None:
    with buffered() as stage:
        client, worker = asks(stage, b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", stalls=False)
        sends(stage, worker, b"HTTP/1.1 103 Early Hints\r\n\r\n" + by_length(10 * LIMIT))
        assert client.received.count(b"HTTP/1.1") == 2
        assert (idle(stage), stage.cluster.process.buffer_budget.responses) == (1, 0)


def test_tunnel_is_not_buffered() -> None:
    """A slow client holds its worker, as in any tunnel."""
    with buffered() as stage:
        offer = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
        client, worker = asks(stage, offer, stalls=False)
        sends(stage, worker, b"HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
        client.stall()
        sends(stage, worker, b"x" * READ)
        assert (is_read_on(worker), stage.cluster.process.buffer_budget.kept) == (False, 0)


def test_pipelined_request_waits_for_its_client() -> None:
    """The next request begins when the client has read the response, so one client holds one response."""
    with buffered() as stage:
        client, worker = asks(stage, GET + GET)
        sends(stage, worker, by_length(2 * READ) + b"x" * READ, b"x" * READ)
        assert (len(worker.writes), idle(stage)) == (1, 1)
        client.take()
        stage.turn()
        assert len(worker.writes) == 2


# --- reloads


def reload(stage: Wireless, **limits: int) -> None:
    control_plane = stage.control_plane
    reload_with(control_plane, buffering=BufferingLimits(**limits))


@pytest.mark.parametrize("limits", [{}, {"response": 1024, "total": 1024}])
def test_reload_that_lowers_the_bound(limits: dict[str, int]) -> None:
    """What is kept stays until its client has read it; from the next byte on it is streamed."""
    with buffered() as stage:
        client, worker = asks(stage)
        sends(stage, worker, by_length(4 * READ) + b"x" * READ, b"x" * READ)
        kept = stage.cluster.process.buffer_budget.kept
        assert kept == client.unread
        reload(stage, **limits)
        sends(stage, worker, b"x" * READ)
        assert (is_read_on(worker), stage.cluster.process.buffer_budget.kept) == (False, kept)
        client.take()
        stage.turn()
        sends(stage, worker, b"x" * READ)
        assert client.received.endswith(b"\r\n\r\n" + b"x" * 4 * READ)
        assert stage.cluster.process.buffer_budget.kept == 0


def test_reload_that_turns_buffering_on() -> None:
    """It applies to the responses that are being streamed."""
    with buffered(buffering=()) as stage:
        client, worker = asks(stage)
        sends(stage, worker, by_length(3 * READ) + b"x" * READ)
        assert not is_read_on(worker)
        reload(stage, response=LIMIT, total=TOTAL)
        client.take(client.unread)
        stage.turn()
        sends(stage, worker, b"x" * READ, b"x" * READ)
        assert idle(stage) == 1
