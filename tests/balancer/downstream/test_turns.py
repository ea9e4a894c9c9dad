"""Input that is expensive waits for turns: a flood leaves time for others, and nothing is refused or lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.clients.client_usage import HELD_BY_TURN
from balancer.clients.turns import SECONDS_PER_TURN, STEPS_AT_ONCE, STEPS_PER_RESET, STEPS_PER_TURN, Turns
from balancer.downstream.http2.connection import Http2Connection
from balancer.http.h1.body import SMALL_BYTES
from balancer.http.h2.frame_scanner import FRAME_HEAD, FrameScanner
from tests.support import frames, messages
from tests.support.example_counts import examples
from tests.support.frames import END_HEADERS, PREFACE, frame, head, rst
from tests.support.http2_client import fields
from tests.support.messages import pieces
from tests.support.readers import requests_seen
from tests.support.storm import ANSWER
from tests.support.wireless import Peer, Wireless, sends

NUMBER = 1000
CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
OPENED = PREFACE + frame(frames.SETTINGS)
POST = head(1, *fields(method=b"POST"), flags=END_HEADERS)
GET = b"GET /other HTTP/1.1\r\nHost: a\r\n\r\n"
VERSIONS = ["http1", "http2"]


def flood(version: str, part: bytes = b"x", number: int = NUMBER) -> bytes:
    """A request whose body comes in small parts."""
    if version == "http1":
        return CHUNKED + b"%x\r\n%b\r\n" % (len(part), part) * number + b"0\r\n\r\n"
    return OPENED + POST + frame(frames.DATA, part, 1) * number + frame(frames.DATA, b"", 1, 1)


@contextmanager
def stage_of(turns: Turns | None = None, **options: Any) -> Iterator[Wireless]:
    """A balancer before workers that answer; at the end nothing is left behind."""
    with Wireless(**options) as stage:
        stage.cluster.process.turns = turns or stage.cluster.process.turns
        stage.worker_script = answer
        yield stage
        stage.leave()
        assert not stage.left_behind()


def answer(worker: Peer) -> None:
    if worker.received.endswith((b"0\r\n\r\n", b"close\r\n\r\n")) or bytes(worker.received).count(GET[:10]):
        worker.send(ANSWER)


def taken(stage: Wireless) -> int:
    """Bytes of bodies that the workers have got."""
    return sum(len(request.body) for peer in stage.workers for request in requests_seen(bytes(peer.received)))


def waiting(stage: Wireless) -> int:
    return sum(bool(one.is_held & HELD_BY_TURN) for one in stage.downstreams)


def done(stage: Wireless) -> int:
    return stage.cluster.counts.responses[200]


@pytest.mark.parametrize("version", VERSIONS)
def test_floods_share_the_steps(version: str) -> None:
    """Fifty clients get at once what is cheap, then what a turn allows; another's request is answered between."""
    with stage_of() as stage:
        for _ in range(50):
            stage.client().send(flood(version))
        stage.turn()
        first = 50 * (STEPS_AT_ONCE - (version == "http2"))  # SETTINGS is a step, too
        assert (taken(stage), waiting(stage)) == (first, 50)
        sends(stage, stage.client(), GET)
        assert done(stage) == 1
        stage.loop.advance(100 * SECONDS_PER_TURN)
        assert 50 * STEPS_PER_TURN <= taken(stage) - first <= 101 * STEPS_PER_TURN
        stage.loop.advance(2 * 50 * NUMBER / STEPS_PER_TURN * SECONDS_PER_TURN)
        assert (taken(stage), waiting(stage), done(stage)) == (50 * NUMBER, 0, 51)


@pytest.mark.parametrize("others", [0, 50])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_sends_more_than_20_000_small_parts_a_second(version: str, others: int) -> None:
    """Alone, and beside one client with many connections: clients take turns."""
    with stage_of() as stage:
        for _ in range(others):
            stage.client("192.0.2.8").send(flood(version))
        stage.client().send(flood(version))
        stage.loop.advance(NUMBER / 20_000)
        assert done(stage) == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_large_parts_and_ordinary_requests_take_no_turn(version: str) -> None:
    """Also a hundred requests of gRPC, each with a small frame at its end, and what ends a body in chunks."""
    with stage_of() as stage:
        stage.client().send(flood(version, b"x" * SMALL_BYTES, 100))
        if version == "http1":
            stage.client().send((CHUNKED + b"1\r\nx\r\n0\r\n\r\n") * 100)
        else:
            calls = [
                (head(1 + 2 * n, *fields(method=b"POST"), flags=END_HEADERS), 1 + 2 * n) for n in range(100)
            ]
            stage.client().send(
                OPENED + b"".join(one + frame(frames.DATA, b"x", stream, 1) for one, stream in calls)
            )
        stage.turn()
        assert (waiting(stage), done(stage)) == (0, 101)


@pytest.mark.parametrize(("size", "times"), [(250, 118), (3_900, 8)], ids=["large", "refused"])
def test_heads_by_reference_take_turns(size: int, times: int) -> None:
    """30 KB in a few bytes (RFC 7541): beyond the first piece, a few of them in a turn."""
    cookie = frames.block((b"cookie", b"c" * size), first=0x40)
    first = frame(frames.HEADERS, frames.block(*fields()) + cookie, 1, END_HEADERS | 1)
    again = frames.block(*fields()) + b"\xbe" * times
    with stage_of() as stage:
        client = stage.client()
        client.send(OPENED + first)
        client.send(
            b"".join(frame(frames.HEADERS, again, stream, END_HEADERS | 1) for stream in range(3, 163, 2))
        )
        stage.turn()
        assert (waiting(stage), stage.cluster.process.counts.http2_streams) == (1, 3)
        stage.loop.advance(0.02)
        assert 4 < stage.cluster.process.counts.http2_streams <= 3 + 20 * STEPS_PER_TURN // 32
        stage.loop.advance(1)
        assert (waiting(stage), stage.cluster.process.counts.http2_streams) == (0, 81)


def test_many_resets_take_turns() -> None:
    """Beyond a hundred requests that its client resets, a few are taken in a turn; another's is answered between."""
    with stage_of() as stage:
        stage.client().send(OPENED + given_up(range(1, 1801, 2)))
        stage.loop.advance(20 * SECONDS_PER_TURN)
        [flood] = [one for one in stage.downstreams if isinstance(one, Http2Connection)]
        first = flood.engine.resets
        assert 100 < first <= 100 + 21 * STEPS_PER_TURN // STEPS_PER_RESET
        sends(stage, stage.client(), GET)
        assert done(stage) == 1
        stage.loop.advance(40 * SECONDS_PER_TURN)
        assert 50 < flood.engine.resets - first <= 41 * STEPS_PER_TURN // STEPS_PER_RESET
        stage.loop.advance(2)
        assert (waiting(stage), flood.engine.resets) == (0, 900)
        del flood


def test_flood_of_resets_is_known_before_it_is_parsed() -> None:
    """More than a connection may have, in one read: it ends at once, as it would after a thousand turns."""
    with stage_of() as stage:
        client = stage.client()
        sends(stage, client, OPENED + given_up(range(1, 2201, 2)))
        assert (waiting(stage), stage.cluster.process.counts.http2_floods, client.is_open) == (0, 1, False)


def given_up(streams: range) -> bytes:
    """Requests that their client resets in the same read."""
    return b"".join(head(stream, *fields()) + rst(stream) for stream in streams)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("is_early", [False, True], ids=["in order", "while paused"])
def test_end_behind_input_that_waits(version: str, is_early: bool) -> None:
    """The client's FIN counts after its input, also where the transport reports it at once, as with TLS."""
    with stage_of() as stage:
        client = stage.client()
        client.send(flood(version))
        client.end_early() if is_early else client.end()
        stage.turn()
        assert client.is_open
        stage.loop.advance(0.1)
        assert taken(stage) == NUMBER
        assert (client.ending, b"200 OK" in client.received) == ("end", version == "http1")


@pytest.mark.parametrize("version", VERSIONS)
def test_no_timeout_while_input_waits(version: str) -> None:
    """What the client has sent in time is taken ten seconds later; then the timeout begins."""
    with stage_of(timeouts=(("request_idle", 1.0),)) as stage:
        stage.cluster.process.turns.spend(round(10 * STEPS_PER_TURN / SECONDS_PER_TURN))
        whole, partial = stage.client(), stage.client()
        whole.send(flood(version))
        partial.send(flood(version)[:-9])
        for _ in range(36):
            stage.advance(0.25)
        assert (waiting(stage), done(stage), stage.cluster.counts.errors.total()) == (2, 0, 0)
        for _ in range(6):
            stage.advance(0.25)
        assert (waiting(stage), done(stage), stage.cluster.counts.errors.total()) == (0, 1, 0)
        stage.advance(1.5)
        assert stage.cluster.counts.errors == {"body_timeout": 1}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("end", "statuses"), [("refused", {413: 1}), ("drained", {200: 1}), ("lost", {})])
def test_ends_while_input_waits(version: str, end: str, statuses: dict[int, int]) -> None:
    """The worker answers early and closes, the balancer drains, or the client is gone."""
    with stage_of() as stage:
        client = stage.client()
        sends(stage, client, flood(version))
        assert waiting(stage) == 1
        if end == "refused":
            stage.workers[0].send(b"HTTP/1.1 413 No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        elif end == "drained":
            stage.cluster.process.drain()
        else:
            client.vanish()
        for _ in range(4):
            stage.advance(0.25)
        counts = stage.cluster.counts.responses
        assert {status: count for status, count in enumerate(counts) if count} == statuses
        client.end()
        for _ in range(40):
            stage.advance(0.25)
        assert not stage.downstreams


def test_upgrade_behind_input_that_waits() -> None:
    upgrade = b"GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    with stage_of() as stage:
        client = stage.client()
        client.send(flood("http1") + upgrade + b"early")
        stage.loop.advance(0.1)
        worker = stage.workers[-1]
        assert b"GET /chat" in worker.received
        worker.send(b"HTTP/1.1 101 Go\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello")
        stage.loop.advance(0.1)
        assert worker.received.endswith(b"early")
        assert client.received.endswith(b"hello")


def outcome(turns: Turns, reads: list[bytes], number: int) -> tuple[object, bytes]:
    """What a worker gets of the requests in these reads, and what the client gets."""
    with stage_of(turns) as stage:
        stage.worker_script = None
        client = stage.client()
        for data in reads:
            sends(stage, client, data)
        seen: list[object] = []
        for _ in range(number):
            stage.loop.advance(20)
            found = requests_seen(bytes(stage.workers[0].received))
            assert len(found) == len(seen) + 1
            last = found[-1]
            seen.append((last.line, last.body, last.trailers, last.is_whole))
            stage.workers[0].send(ANSWER if last.line[0] != b"HEAD" else ANSWER[:-2])
        stage.loop.advance(20)
        return seen, bytes(client.received)


@examples(15)
@given(st.data())
def test_any_number_of_steps_gives_the_same_requests(data: st.DataObject) -> None:
    """Pipelined, split anywhere, with trailers: only the time differs."""
    sent = data.draw(st.lists(messages.requests(), min_size=1, max_size=3))
    reads = data.draw(pieces(b"".join(one.data for one in sent)))
    turns = Turns(data.draw(st.integers(1, 3)), data.draw(st.integers(1, 20)))
    assert outcome(turns, reads, len(sent)) == outcome(Turns(), reads, len(sent))


@examples(15)
@given(st.lists(st.integers(0, 4), max_size=60), st.integers(1, 5), st.data())
def test_pieces_of_frames(kinds: list[int], limit: int, data: st.DataObject) -> None:
    """Together they are the input, they end with a frame or with the read, and none has more than the limit: a head is
    of the piece in which the length of its frame is complete."""
    some = [
        *(frame(frames.DATA, b"x", 1), frame(frames.PING, b"12345678")),
        *(frame(frames.DATA, b"x" * SMALL_BYTES, 1), frame(frames.DATA, b"x", 1, 1), head(1, *fields())),
    ]
    sent = [PREFACE, *(some[kind] for kind in kinds)]
    ends = list(accumulate(map(len, sent)))
    heads = [begins for kind, begins in zip(kinds, ends, strict=False) if kind == 4]
    scanner, at, come, small = FrameScanner(), 0, 0, 0
    for read in data.draw(pieces(b"".join(sent))):
        come += len(read)
        kept, begin = b"".join(sent)[at:come], at
        while (end := begin + scanner.end_of_piece(kept, at - begin, limit, limit)) > at:
            assert end == come or end in ends
            assert scanner.small <= limit
            assert sum(at < begins + FRAME_HEAD <= end for begins in heads) <= limit
            at, small = end, small + scanner.small
        assert come - at < 9
    assert (at, small) == (ends[-1], sum(kind < 2 for kind in kinds))
