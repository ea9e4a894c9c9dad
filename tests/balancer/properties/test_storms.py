"""Arbitrary bytes and events in any order: nothing escapes, leaks or hangs.

`tests/support/storm.py` contains the invariants; here are the storms, drawn by hypothesis or kept from fuzzing.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.clients.turns import Turns
from tests.support.damage import damaged
from tests.support.example_counts import examples
from tests.support.root import ROOT
from tests.support.storm import ANSWER, MIRRORS, REQUESTS, Event, Storm, decode, encode

CORPUS = ROOT / "tests" / "fuzz" / "corpus"
FILES = sorted(path for side in ("client", "worker") for path in (CORPUS / side).iterdir())

WORKER_TEXTS = (
    *(ANSWER, b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\nabc"),
    *(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"3\r\nabc\r\n", b"0\r\n\r\n", b"z" * 90_000),
    *(b"HTTP/1.1 101 S\r\n\r\n", b"HTTP/1.1 204 N\r\n\r\n", b"HTTP/1.1 304 N\r\nContent-Length: 5\r\n\r\n"),
    *(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"),
)
CLIENT_TEXTS = (
    *(*REQUESTS, b"GET /x HTTP/1.1\r\n", b"Host: a\r\n", b"\r\n", b"0\r\n\r\n", b"abc", b"x" * 90_000),
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n",
    b"Upgrade: h2c\r\nConnection: upgrade\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"GET /-/health HTTP/1.1\r\nHost: a\r\n\r\n",
)

BUFFERED: tuple[list[Event], ...] = ([], *([("B", bytes([number]))] for number in (1, 2, 3)))
"""First events of a storm: buffering is off, or has one of its rules."""

UPLOADS = (
    (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4000\r\n\r\n", b"x" * 2_000, b"x" * 2_000),
    (b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n", b"a", b"bc"),
    (
        b"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        *(b"3\r\nabc\r\n", b"7d0\r\n" + b"x" * 2_000 + b"\r\n", b"0\r\n\r\n"),
    ),
)
RESPONSES = (
    (b"HTTP/1.1 200 OK\r\nContent-Length: 17000\r\n\r\n" + b"z" * 15_000, b"z" * 2_000),
    (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        *(b"3\r\nabc\r\n", b"7d0\r\n" + b"z" * 2_000 + b"\r\n", b"0\r\n\r\n"),
    ),
    (b"HTTP/1.1 200 OK\r\n\r\n", b"z" * 2_000),
)
"""Messages in pieces, for slow bodies."""

_damages = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 99), st.integers(0, 80)), max_size=1)
_small = st.integers(0, 7).map(lambda value: bytes([value]))


def texts_or_damaged(texts: tuple[bytes, ...]) -> st.SearchStrategy[bytes]:
    """Mostly known texts, often damaged; sometimes any bytes."""
    known = st.builds(damaged, st.sampled_from(texts), _damages)
    return st.one_of(known, known, known, st.binary(max_size=20))


def storms(side: str) -> st.SearchStrategy[list[Event]]:
    """Events, half of them bytes from the unruly side."""
    bytes_of_client = st.tuples(st.just("c"), texts_or_damaged(CLIENT_TEXTS) if side == "c" else _small)
    bytes_of_worker = st.tuples(st.just("w"), texts_or_damaged(WORKER_TEXTS))
    other = st.tuples(st.sampled_from("nexstEXSTppppdboqB"), _small)
    return st.lists(st.one_of(bytes_of_client, bytes_of_worker, other), max_size=10)


def slow_bodies(side: str) -> st.SearchStrategy[list[Event]]:
    """Messages in pieces with other events between them; buffering is on from the start."""
    messages = UPLOADS if side == "c" else RESPONSES
    other = st.lists(
        st.tuples(st.sampled_from("csssttenxXpB" if side == "w" else "nexSTXpB"), _small), max_size=2
    )
    some = st.tuples(st.sampled_from(range(len(messages))), other, other)

    def flat(buffering: list[Event], drawn: list[tuple[int, list[Event], list[Event]]]) -> list[Event]:
        events = [*buffering]
        for number, before, within in drawn:
            begin, *rest = ((side, piece) for piece in messages[number])
            events += [*before, begin, *within, *rest]
        return events

    return st.builds(flat, st.sampled_from(BUFFERED[1:]), st.lists(some, max_size=4))


@examples(60)
@given(storms("c"), st.booleans())
def test_unruly_clients(events: list[Event], takes_turns: bool) -> None:
    """Workers answer or do anything else; every request is settled once, and every connection ends."""
    Storm("c", turns=Turns(1, 9) if takes_turns else None).run(events)


@examples(60)
@given(storms("w"))
def test_unruly_workers(events: list[Event]) -> None:
    """Clients that keep to HTTP get one response each, or an error."""
    Storm("w").run(events)


@pytest.mark.parametrize("side", ["c", "w"])
@examples(25)
@given(st.data(), st.sampled_from(sorted(MIRRORS)))
def test_mirrors_change_nothing(side: str, data: st.DataObject, mirror: str) -> None:
    """Whatever the mirror's worker does, clients and workers get the same bytes as without a mirror, and at the same
    steps."""
    events = data.draw(storms(side))
    plain, mirrored = Storm(side), Storm(side, mirror)
    plain.run(events)
    mirrored.run(events)
    for one, other in zip(plain.peers, mirrored.peers, strict=True):
        assert (one.received, one.writes, one.ending) == (other.received, other.writes, other.ending)


@pytest.mark.parametrize(
    ("way", "end"),
    [
        *(("answer", {}), ("endless", {}), ("broken", {}), ("silent", {"response_timeout": 1})),
        *(("deaf", {"response_timeout": 1}), ("reset", {"connection_broken": 1})),
        ("end", {"connect_failed": 1}),
        ("refuse", {"connect_failed": 1}),
        ("hang", {"connect_timeout": 1}),
    ],
)
def test_ways_of_mirrors(way: str, end: dict[str, int]) -> None:
    """Guards against storms in which nothing is copied."""
    storm = Storm("c", way)
    storm.run([("c", REQUESTS[0]), ("p", b"\2"), ("p", b"\2")])
    [mirror] = storm.stage.control_plane.mirrors.by_route.values()
    counts = mirror.counts
    assert (counts.sent, dict(counts.failed), counts.cut) == (1, end, way == "endless")
    assert counts.classes.total() == (not end)
    copies = b"".join(bytes(peer.received) for peer in storm.stage.copies_to)
    is_connected = not any(reason.startswith("connect_") for reason in end)
    assert copies.count(b"X-Mirrored: 1\r\n") == is_connected


@examples(60)
@given(slow_bodies("c"))
def test_slow_uploads(events: list[Event]) -> None:
    """Bodies that are received whole, or streamed once they are too long or too many."""
    Storm("c").run(events)


@examples(60)
@given(slow_bodies("w"))
def test_slow_readers(events: list[Event]) -> None:
    """Responses that are taken over, or streamed once they are too long or too many."""
    Storm("w").run(events)


@pytest.mark.parametrize("buffering", BUFFERED[:2], ids=("streamed", "buffered"))
def test_corpus_of_fuzzing(buffering: list[Event]) -> None:
    """The corpus of `make fuzz`: seeds and inputs that once revealed a fault."""
    for path in FILES:
        side = path.parent.name[0]
        try:
            Storm(side).run(buffering + decode(path.read_bytes(), side))
        except BaseException as error:
            error.add_note(f"input {path}")
            raise


def test_corpus_stays_small() -> None:
    """It runs on every change and is part of the repository."""
    files = list(CORPUS.glob("*/*"))
    assert 30 <= len(files) < 300
    assert sum(path.stat().st_size for path in files) < 200_000


def test_storm_is_encoded_as_bytes() -> None:
    """Bytes before the first mark belong to the storm's own side."""
    events = [("c", b"GET"), ("p", b"\x01"), ("e", b"")]
    assert decode(encode(events), "w") == events
    assert decode(b"GET\xfep\x01\xfee", "c") == events


@pytest.mark.parametrize("side", ["c", "w"])
def test_storm_is_repeatable(side: str) -> None:
    """No clock, randomness or memory address may influence a run."""
    events = [
        ("c", CLIENT_TEXTS[0]),
        ("n", b""),
        ("w", ANSWER),
        ("c", CLIENT_TEXTS[1]),
        ("p", b"\x02"),
        ("w", WORKER_TEXTS[3]),
    ]
    runs = []
    for _ in range(2):
        storm = Storm(side)
        storm.run(events)
        runs.append([bytes(peer.received) for peer in storm.stage.clients + storm.stage.workers])
    assert runs[0] == runs[1]
