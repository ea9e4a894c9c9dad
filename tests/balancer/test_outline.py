"""A head taken apart and put together: what passes, what ends here, and what is refused."""

from __future__ import annotations

import pytest

from balancer.errors import MalformedResponse
from balancer.http1.body import ChunkedBody, SizedBody
from balancer.http1.field_list import head_of, parse_head, trailers_of

HEAD = b"POST /a?b c HTTP/1.1\r\nX-A: 1\r\nHost: example.org\r\nx-a:\r\nConnection: Upgrade\r\nUpgrade: x\r\n"


def test_a_request() -> None:
    """Host stands apart, what concerns one connection is gone, the rest is as it came."""
    outline = parse_head(HEAD + b"\r\n")
    assert (outline.method, outline.target, outline.authority) == (b"POST", b"/a?b c", b"example.org")
    assert outline.fields == [(b"X-A", b"1"), (b"x-a", b"")]
    assert (outline.length, outline.framed()) == (0, None)


@pytest.mark.parametrize(
    ("field", "length", "kind"),
    [(b"Content-Length: 12", 12, SizedBody), (b"transfer-encoding: chunked", -1, ChunkedBody)],
)
def test_a_body(field: bytes, length: int, kind: type) -> None:
    """How it is framed is known before it comes."""
    outline = parse_head(HEAD + field + b"\r\n\r\n")
    assert outline.length == length
    assert isinstance(outline.framed(), kind)
    assert b"transfer-encoding" not in [name for name, _ in outline.fields]


@pytest.mark.parametrize(
    ("status", "fields", "head"),
    [
        (200, [(b"Content-Length", b"3")], b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n"),
        (200, [(b"a", b" b ")], b"HTTP/1.1 200 OK\r\na: b\r\nTransfer-Encoding: chunked\r\n"),
        (204, [], b"HTTP/1.1 204 No Content\r\n"),
        (103, [(b"link", b"x")], b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n"),
        (599, [(b"content-length", b"0"), (b"Keep-Alive", b"x")], b"HTTP/1.1 599 \r\ncontent-length: 0\r\n"),
    ],
)
def test_a_response(status: int, fields: list[tuple[bytes, bytes]], head: bytes) -> None:
    """Lines with their CRLF; one without a length is given chunks."""
    assert head_of(status, fields) == head


@pytest.mark.parametrize(
    "pair", [(b"a", b"b\r\nc: d"), (b"a", b"b\0"), (b"a b", b"c"), (b"", b"c"), (b":x", b"c")]
)
def test_what_would_be_another_line(pair: tuple[bytes, bytes]) -> None:
    """Is refused, in heads and in trailers."""
    with pytest.raises(MalformedResponse):
        head_of(200, [pair])
    with pytest.raises(MalformedResponse):
        trailers_of([pair])


@pytest.mark.parametrize(("status", "reason"), [(99, None), (0, None), (200, b"a\r\nb: c")])
def test_no_status(status: int, reason: bytes | None) -> None:
    with pytest.raises(MalformedResponse):
        head_of(status, [], reason)
