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
