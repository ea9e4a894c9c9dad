"""Arbitrary bytes and arbitrary events, in any order: nothing escapes, leaks or hangs.

Rule of this file: what must hold stands in `storm.py`; here are storms, drawn by hypothesis or kept from fuzzing.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.balancer.damage import damaged
from tests.balancer.diligence import tries
from tests.balancer.storm import ANSWER, REQUESTS, Event, Storm, decode, encode

CORPUS = Path(__file__).resolve().parent.parent / "fuzz" / "corpus"
FILES = sorted(path for path in CORPUS.glob("*/*") if path.is_file())

RESPONSES = (
    *(ANSWER, b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\nabc"),
    *(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"3\r\nabc\r\n", b"0\r\n\r\n", b"z" * 90_000),
    *(b"HTTP/1.1 101 S\r\n\r\n", b"HTTP/1.1 204 N\r\n\r\n", b"HTTP/1.1 304 N\r\nContent-Length: 5\r\n\r\n"),
    *(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"),
)
UNRULY = (
    *(*REQUESTS, b"GET /x HTTP/1.1\r\n", b"Host: a\r\n", b"\r\n", b"0\r\n\r\n", b"abc", b"x" * 90_000),
    *(
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n",
        b"Upgrade: h2c\r\nConnection: upgrade\r\n",
    ),
    *(
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /-/health HTTP/1.1\r\nHost: a\r\n\r\n",
    ),
)

_damages = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 99), st.integers(0, 80)), max_size=1)
_small = st.integers(0, 7).map(lambda value: bytes([value]))


def spoilt(texts: tuple[bytes, ...]) -> st.SearchStrategy[bytes]:
    """Any bytes, but mostly such as make sense, or nearly."""
    known = st.builds(damaged, st.sampled_from(texts), _damages)
    return st.one_of(known, known, known, st.binary(max_size=20))


def storms(side: str) -> st.SearchStrategy[list[Event]]:
    """Events, half of them bytes of the side that the storm is about."""
    bytes_of_client = st.tuples(st.just("c"), spoilt(UNRULY) if side == "c" else _small)
    bytes_of_worker = st.tuples(st.just("w"), spoilt(RESPONSES))
    other = st.tuples(st.sampled_from("nexstEXSTppppdboq"), _small)
    return st.lists(st.one_of(bytes_of_client, bytes_of_worker, other), max_size=10)


@tries(250)
@given(storms("c"))
def test_whatever_clients_do(events: list[Event]) -> None:
    """Before workers that answer, or do anything else: every request is settled once, every connection ends."""
    Storm("c").run(events)


@tries(250)
@given(storms("w"))
def test_whatever_workers_do(events: list[Event]) -> None:
    """To clients that keep to HTTP: they get one answer each, or see that they did not."""
    Storm("w").run(events)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_fuzzing_has_kept(path: Path) -> None:
    """The corpus of `make fuzz`: seeds, and whatever was once a fault."""
    side = path.parent.name[0]
    Storm(side).run(decode(path.read_bytes(), side))


def test_the_corpus_stays_small() -> None:
    """It is run on every change, and kept in the repository."""
    assert 30 <= len(FILES) < 200
    assert sum(path.stat().st_size for path in FILES) < 200_000


def test_a_storm_is_its_bytes() -> None:
    """What stands before the first mark is sent by the side that the storm is about."""
    events = [("c", b"GET"), ("p", b"\x01"), ("e", b"")]
    assert decode(encode(events), "w") == events
    assert decode(b"GET\xfep\x01\xfee", "c") == events


@pytest.mark.parametrize("side", ["c", "w"])
def test_the_same_storm_is_the_same_run(side: str) -> None:
    """Byte for byte: no clock, no randomness and no address of memory has a part in it."""
    events = [
        ("c", UNRULY[0]),
        ("n", b""),
        ("w", ANSWER),
        ("c", UNRULY[1]),
        ("p", b"\x02"),
        ("w", RESPONSES[3]),
    ]
    runs = []
    for _ in range(2):
        storm = Storm(side)
        storm.run(events)
        runs.append([bytes(peer.received) for peer in storm.stage.clients + storm.stage.workers])
    assert runs[0] == runs[1]
