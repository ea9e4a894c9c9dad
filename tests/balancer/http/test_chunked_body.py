"""Malformed chunked bodies are rejected at the first illegal byte, however they are split. RFC 9112 § 7.1."""

from __future__ import annotations

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from balancer.errors import MalformedBody
from balancer.http.h1.body import ChunkedBody
from tests.support.example_counts import examples
from tests.support.messages import text

SIZE_LINES = (b"", b"0", b"2", b"a", b"=", b"=a", b";a", b'"', b'a"')
"""One of these and CRLF completes any size line that is still a prefix of a legal one."""

TRAILERS = (b"", b"a", b":", b"a:", b"\r\n")
"""One of these and CRLF completes any trailer that is still a prefix of a legal one."""

ENDS = (*(end + b"\r\n" for end in (*SIZE_LINES, *TRAILERS)), b"\n")


def fed(data: bytes, *further: bytes) -> ChunkedBody:
    body = ChunkedBody()
    for piece in (data, *further):
        body.feed(piece)
    return body


def is_legal(data: bytes) -> bool:
    try:
        fed(data)
    except MalformedBody:
        return False
    return True


def bytewise(data: bytes) -> int:
    """Number of bytes accepted one at a time before one is rejected or the body ends."""
    body = ChunkedBody()
    for at in range(len(data)):
        try:
            body.feed(data[at : at + 1])
        except MalformedBody:
            return at
        if body.is_ended:
            return at + 1
    return len(data)


@examples(100)
@given(
    st.sampled_from((b"", b"0;", b"2\r\nok\r\n", b"0\r\n", b"0\r\na:")), text(b'0;="\\ \t\r\n:a\0(', 0, 12)
)
def test_accepted_prefixes_can_be_completed(begin: bytes, more: bytes) -> None:
    """Every accepted prefix can be completed, and the result does not depend on how the bytes are split."""
    sent = begin + more
    taken = bytewise(sent)
    legal = [size for size in range(len(sent) + 1) if is_legal(sent[:size])]
    if not (fed(sent[:taken]).is_ended):
        assert legal == [*range(taken + 1)]
        assert any(is_legal(sent[:taken] + end) for end in ENDS), sent[:taken]
    event(f"refused: {taken < len(sent)}")


@pytest.mark.parametrize("cut", [*range(1, 12)])
def test_trailer_limits(cut: int) -> None:
    """The limits count bytes and lines of the trailer section, without its empty line."""
    sent = b"0\r\nA: b\r\nC: d\r\n\r\n"
    for size, lines, is_taken in ((12, 2, True), (11, 2, False), (12, 1, False)):
        body = ChunkedBody(None, size, lines)
        try:
            for at in range(0, len(sent), cut):
                body.feed(sent[at : at + cut])
        except MalformedBody:
            assert not is_taken
        else:
            assert is_taken
            assert (body.is_ended, body.trailers) == (True, b"\r\nA: b\r\nC: d\r\n")


def outcome(*reads: bytes) -> tuple[object, ...]:
    """What is found of a body that comes in these reads."""
    body, found = ChunkedBody(), b""
    try:
        for read in reads:
            piece = body.feed(read)
            found += piece
            if body.is_canonical:
                assert data_of(read) == piece
            if body.is_ended:
                return found, body.trailers
    except MalformedBody:
        return ("refused",)
    return (found,)


def data_of(read: bytes) -> bytes:
    """The data of whole chunks with nothing but a size."""
    found = b""
    while read:
        line, end, rest = read.partition(b"\r\n")
        assert (end, line.strip(b"0123456789abcdefABCDEF")) == (b"\r\n", b"")
        assert not line.startswith(b"0")
        size = int(line, 16)
        assert rest[size : size + 2] == b"\r\n"
        found, read = found + rest[:size], rest[size + 2 :]
    return found


CHUNKS = st.tuples(st.sampled_from((b"%x", b"%X", b"0%x", b"%x;a=b")), text(b"ab\r\n0", 1, 40)).map(
    lambda drawn: drawn[0] % len(drawn[1]) + b"\r\n" + drawn[1] + b"\r\n"
)
READS = st.lists(CHUNKS, max_size=3).map(b"".join)


def damaged(reads: list[bytes], at: int, byte: bytes) -> list[bytes]:
    """Replace one byte of the last read; b"" removes it."""
    last = reads[-1] if reads else b""
    at %= len(last) + 1
    return [*reads[:-1], last[:at] + byte + last[at + 1 :]]


@examples(300)
@given(
    st.lists(READS, max_size=4),
    st.sampled_from((b"", b"0\r\n\r\n", b"0\r\na: b\r\n\r\n")),
    st.none() | st.integers(0, 200),
    st.sampled_from((b"\r", b"\n", b"0", b"3", b"g", b" ", b"")),
)
def test_whole_chunks_are_judged_as_their_bytes_are(
    reads: list[bytes], end: bytes, place: int | None, byte: bytes
) -> None:
    """Whole chunks of one read are parsed by a path of their own, which no byte that comes alone takes."""
    if place is not None:
        reads = damaged(reads, place, byte)
    together = outcome(*reads, end)
    data = b"".join((*reads, end))
    assert together == outcome(*(data[at : at + 1] for at in range(len(data))))
    event(f"{together[0]!r:.9}")


@pytest.mark.parametrize(
    ("read", "is_canonical"),
    [
        (b"2\r\nok\r\n", True),
        (b"A\r\n0123456789\r\n", True),
        (b"30\r\n" + b"x" * 48 + b"\r\n30\r\n" + b"x" * 48 + b"\r\n", True),
        (b"1\r\nx\r\n1\r\ny\r\n", False),
        (b"02\r\nok\r\n", False),
        (b"2;a\r\nok\r\n", False),
        (b"2 ;a\r\nok\r\n", False),
        (b"2\r\nok\r\n0\r\n\r\n", False),
        (b"2\r\nok\r", False),
        (b"2\r\nok\r\n2", False),
        (b"000000002\r\nok\r\n", False),
    ],
)
def test_what_is_forwarded_as_it_came(read: bytes, is_canonical: bool) -> None:
    body = ChunkedBody()
    assert body.feed(read)
    assert body.is_canonical is is_canonical


@pytest.mark.parametrize("sent", [b"2\r\nok\rx", b"2\r\nokx\n", b"2\rxok\r\n", b"2x\nok\r\n", b"\r\n\r\n"])
def test_damaged_chunks_are_refused(sent: bytes) -> None:
    for more in (b"", b"2\r\nok\r\n"):
        assert not is_legal(more + sent)


def test_nothing_is_taken_behind_the_end() -> None:
    body = fed(b"2\r\nok\r\n", b"0\r\n\r\n")
    assert body.is_ended
    assert body.feed(b"2\r\nno\r\n") == b""
