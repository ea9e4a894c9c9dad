"""`head_of` and `trailers_of`: parts of a message as bytes."""

from __future__ import annotations

import pytest

from balancer.errors import MalformedResponse
from balancer.http.h1.field_list import head_of, trailers_of


@pytest.mark.parametrize(
    ("status", "fields", "head"),
    [
        (200, [(b"Content-Length", b"3")], b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n"),
        (200, [(b"a", b" b ")], b"HTTP/1.1 200 OK\r\na: b\r\n"),
        (204, [], b"HTTP/1.1 204 No Content\r\n"),
        (103, [(b"link", b"x")], b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n"),
        (599, [(b"content-length", b"0"), (b"Keep-Alive", b"x")], b"HTTP/1.1 599 \r\ncontent-length: 0\r\n"),
    ],
)
def test_response_head_as_bytes(status: int, fields: list[tuple[bytes, bytes]], head: bytes) -> None:
    """Without fields that concern one connection."""
    assert head_of(status, fields) == head


@pytest.mark.parametrize(
    "pair", [(b"a", b"b\r\nc: d"), (b"a", b"b\0"), (b"a b", b"c"), (b"", b"c"), (b":x", b"c")]
)
def test_field_that_would_add_a_line_is_refused(pair: tuple[bytes, bytes]) -> None:
    """In heads and in trailers."""
    with pytest.raises(MalformedResponse):
        head_of(200, [pair])
    with pytest.raises(MalformedResponse):
        trailers_of([pair])


@pytest.mark.parametrize(("status", "reason"), [(99, None), (0, None), (200, b"a\r\nb: c")])
def test_bad_status_or_reason_is_refused(status: int, reason: bytes | None) -> None:
    with pytest.raises(MalformedResponse):
        head_of(status, [], reason)
