"""Storms of HTTP/2 clients: frames, whole or damaged, and other events; `tests/support/storm.py` has the invariants."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from balancer.clients.turns import Turns
from tests.support import frames
from tests.support.damage import damaged
from tests.support.example_counts import examples
from tests.support.frames import END_HEADERS, END_STREAM, PREFACE, block, frame, head, rst
from tests.support.http2_client import fields
from tests.support.storm import ANSWER, Event, Storm

STREAMS = (1, 3, 5, 7)


def begun(stream: int, *others: tuple[bytes, bytes]) -> bytes:
    """The head of a request whose body follows."""
    return head(stream, *fields(b"/", *others, method=b"POST"), flags=END_HEADERS)


def texts() -> list[bytes]:
    """Frames of clients, on a few streams so that they meet."""
    found = [frame(frames.PING, b"12345678"), frame(frames.SETTINGS), b"abc", b"\0" * 9]
    found += [frame(frames.WINDOW_UPDATE, struct.pack("!I", size)) for size in (1, 1 << 20)]
    found += [frame(frames.SETTINGS, struct.pack("!HI", 4, size)) for size in (0, 10, 1 << 20)]
    found.append(frame(frames.GOAWAY, struct.pack("!II", 0, 0)))
    connect = ((b":method", b"CONNECT"), (b":protocol", b"websocket"), *fields(b"/chat")[1:])
    for stream in STREAMS:
        found += [
            head(stream, *fields()),
            head(stream, *fields(b"/-/ready")),
            head(stream, *fields(method=b"HEAD")),
            head(stream, *connect, flags=END_HEADERS),
            head(stream, *fields(b"/", (b"x", b"1" * 9000))),
            begun(stream),
            begun(stream, (b"content-length", b"3"), (b"expect", b"100-continue")),
            begun(stream, (b"content-length", b"100000")),
            frame(frames.DATA, b"abc", stream, END_STREAM),
            frame(frames.DATA, b"x" * 16_000, stream) * 4,
            frame(frames.DATA, b"", stream, END_STREAM),
            frame(frames.HEADERS, block((b"x-sum", b"1")), stream, END_HEADERS | END_STREAM),
            frame(frames.WINDOW_UPDATE, struct.pack("!I", 70_000), stream),
            rst(stream),
        ]
    return found


TEXTS = tuple(texts())
WORKER_TEXTS = (
    *(ANSWER, b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\nabc"),
    *(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"3\r\nabc\r\n", b"0\r\nx-sum: 1\r\n\r\n"),
    *(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"z" * 90_000, b"HTTP/1.1 204 N\r\n\r\n"),
    b"HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
)

_damages = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 99), st.integers(0, 80)), max_size=1)
_small = st.integers(0, 7).map(lambda value: bytes([value]))
_known = st.sampled_from(TEXTS)
_of_client = st.tuples(st.just("c"), st.one_of(_known, _known, _known, st.builds(damaged, _known, _damages)))
_of_worker = st.tuples(st.just("w"), st.sampled_from(WORKER_TEXTS))
_other = st.tuples(st.sampled_from("nexstEXSTppppdboqB"), _small)

LETTERS = "nxsstEXSTpB"
RESPONSE = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    *(b"7d0\r\n" + b"z" * 2_000 + b"\r\n", b"0\r\n\r\n"),
)
CLOSED_WINDOW = frame(frames.SETTINGS, struct.pack("!HI", 4, 10))
OPEN_WINDOW = frame(frames.SETTINGS, struct.pack("!HI", 4, 1 << 20))


class Http2Storm(Storm):
    """A storm whose clients begin with the preface. `is_answering`: the workers answer by themselves."""

    def __init__(self, *, is_answering: bool, turns: Turns | None = None) -> None:
        super().__init__("c", turns=turns)
        self._begun: set[int] = set()
        if not is_answering:
            self.stage.worker_script = None

    def _send(self, peer: object, data: bytes) -> None:
        number = len(self.stage.clients)
        if peer is self._client and number not in self._begun:
            self._begun.add(number)
            data = PREFACE + frame(frames.SETTINGS) + data
        super()._send(self._client if peer is self._client else self.stage.workers[-1], data)


@examples(40)
@given(st.lists(st.one_of(_of_client, _of_client, _other), max_size=12), st.booleans())
def test_unruly_clients(events: list[Event], takes_turns: bool) -> None:
    """Workers answer: every request is settled once, and every connection ends."""
    Http2Storm(is_answering=True, turns=Turns(1, 9) if takes_turns else None).run(events)


@examples(40)
@given(st.lists(st.one_of(_of_client, _of_client, _of_worker, _other), max_size=12))
def test_unruly_clients_and_workers(events: list[Event]) -> None:
    Http2Storm(is_answering=False).run(events)


def test_stalled_client_that_violates_the_protocol() -> None:
    """The GOAWAY of the violation waits for the transport when the connection becomes idle."""
    upload = [begun(1), frame(frames.DATA, b"x" * 2_000, 1), rst(3), frame(frames.DATA, b"y", 1, END_STREAM)]
    Http2Storm(is_answering=False).run(
        [("B", b"\1"), ("s", b""), *(("c", text) for text in upload), ("t", b"\1")]
    )


def slow_bodies() -> st.SearchStrategy[list[Event]]:
    """Uploads in pieces and responses to clients with closed windows, and other events; buffering is on."""
    upload = [begun(1), frame(frames.DATA, b"x" * 2_000, 1), frame(frames.DATA, b"y" * 2_000, 1, END_STREAM)]
    first = [CLOSED_WINDOW, head(3, *fields())]
    of_client = [
        *upload,
        *first,
        OPEN_WINDOW,
        rst(1),
        rst(3),
        frame(frames.WINDOW_UPDATE, struct.pack("!I", 1000), 3),
    ]
    acts = [*(("c", text) for text in of_client), *(("w", piece) for piece in RESPONSE)]
    some = st.sampled_from(range(len(acts))).map(acts.__getitem__)
    other = st.lists(st.one_of(some, st.tuples(st.sampled_from(LETTERS), _small)), max_size=4)
    runs = (
        [("c", text) for text in upload],
        [("c", text) for text in first] + [("w", piece) for piece in RESPONSE],
    )

    def flat(rules: bytes, whole: int, befores: list[list[Event]], after: list[Event]) -> list[Event]:
        events: list[Event] = [("B", rules)]
        for before, event in zip(befores, runs[whole], strict=False):
            events += [*before, event]
        return events + after

    rules = st.sampled_from((b"\1", b"\2", b"\3"))
    return st.builds(flat, rules, st.integers(0, 1), st.lists(other, min_size=5, max_size=5), other)


@examples(50)
@given(slow_bodies(), st.booleans())
def test_slow_clients(events: list[Event], is_answering: bool) -> None:
    """Bodies that are kept, or streamed once they are too long or too many; every byte is given back."""
    Http2Storm(is_answering=is_answering).run(events)
