"""A head that a client repeats is not validated again: it must be read as by a new connection."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.config.schema.limits import Limits
from balancer.errors import RequestRejected
from balancer.http.h1.client import Client
from balancer.http.h1.request_reader import RequestReader
from balancer.tracing.tracing import Tracing

PATH = b"/" + 80 * b"a"
GET = b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % PATH
TRACE = b"4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = b"traceparent: 00-%b-00f067aa0ba902b7-01" % TRACE
HEADS = (
    GET,
    GET.replace(b" /", b" /b"),
    GET.replace(b"Host: a", b"host: b"),
    GET.replace(b"GET", b"HEAD"),
    GET.replace(b"1.1", b"1.0\r\nConnection: keep-alive"),
    GET.replace(b"\r\n\r\n", b"\r\nConnection: X-A\r\nX-A: 1\r\n\r\n"),
    GET.replace(b"\r\n\r\n", b"\r\nX-Request-ID: its-own\r\n\r\n"),
    GET.replace(b"\r\n\r\n", b"\r\n" + PARENT + b"\r\n\r\n"),
    GET.replace(b"\r\n\r\n", b"\r\nCookie: " + 2000 * b"c" + b"\r\n\r\n"),
)
REFUSED = (
    GET.replace(b"1.1", b"1.2"),
    GET.replace(b" HTTP", b"#b HTTP"),
    GET.replace(b"\r\n\r\n", b"\r\nHost: b\r\n\r\n"),
    GET.replace(b"\r\n\r\n", b"\r\nbad name: 1\r\n\r\n"),
)
POST = b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n"
POSTS = (
    POST,
    *(POST.replace(b" 2", b" " + digits) for digits in (b"3", b"4096", b"0", b"02", b"2 ", b" 2", 18 * b"9")),
    POST.replace(b"Content-Length", b"content-length"),
    POST.replace(b"/a", b"/b"),
    POST.replace(b"\r\n\r\n", b"\r\nConnection: keep-alive\r\n\r\n"),
    POST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),
    POST.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"),
    POST.replace(b"\r\n\r\n", b"\r\nProxy-Connection: close\r\n\r\n"),
    POST.replace(b"\r\n\r\n", b"\r\nX-Request-ID: its-own\r\n\r\n"),
    POST.replace(b"\r\n\r\n", b"\r\n" + PARENT + b"\r\n\r\n"),
    b"POST /a HTTP/1.1\r\nContent-Length: 2\r\nHost: a\r\n\r\n",
    b"POST /a HTTP/1.1\r\nContent-Length: 77\r\nHost: a\r\n\r\n",
)
REFUSED_POSTS = tuple(
    POST.replace(b" 2", b" " + value)
    for value in (
        b"",
        b"+2",
        b"2a",
        19 * b"9",
        b"2\r\nContent-Length: 2",
        b"2\r\nHost: b",
        b"2\r\nbad name: 1",
    )
)


def reader(is_traced: bool, limits: Limits | None = None) -> RequestReader:
    tracing = Tracing(trusts_all=True, sample=0.0) if is_traced else None
    return RequestReader(Client(b"192.0.2.1", b"a:80", tracing=tracing), limits or Limits(), lambda: b"id")


def outcome(by: RequestReader, *reads: bytes) -> object:
    """What a head in these reads becomes; random ids are left out."""
    request = None
    try:
        for data in reads:
            assert request is None
            request = by.read(data)
    except RequestRejected as error:
        return error.status, error.reason
    assert request is not None
    head = re.sub(rb"[0-9a-f]{16,32}", lambda found: TRACE if found[0] == TRACE else b"", request.head)
    fields = request.fields
    framing = fields.framing, fields.length, fields.has_body, fields.keep_alive, fields.is_offer
    return request.method, request.target, request.raw, head, by.rest, framing


@pytest.mark.parametrize("is_traced", [False, True], ids=["untraced", "traced"])
@given(st.data())
def test_any_sequence_of_heads_is_read_as_by_new_connections(is_traced: bool, data: st.DataObject) -> None:
    by = reader(is_traced)
    heads = data.draw(st.lists(st.sampled_from((*HEADS, *POSTS)), max_size=6))
    for head in (*heads, data.draw(st.sampled_from((*HEADS, *POSTS, *REFUSED, *REFUSED_POSTS)))):
        at = data.draw(st.one_of(st.just(0), st.integers(1, len(head) - 1)))
        rest = data.draw(st.sampled_from((b"", b"", GET, b"G")))
        reads = (head[:at], head[at:] + rest) if at else (head + rest,)
        assert outcome(by, *reads) == outcome(reader(is_traced), *reads)


def test_a_longer_content_length_obeys_the_limit_of_a_head() -> None:
    head = POST.replace(b"/a", b"/" + (1025 - len(POST)) * b"a")
    by = reader(False, Limits(head=len(head)))
    assert by.read(head) is not None
    with pytest.raises(RequestRejected, match=f"at most {len(head)} bytes of head"):
        by.read(head.replace(b" 2", b" 22"))


@pytest.mark.parametrize("head", HEADS)
def test_a_repeated_head_obeys_new_limits(head: bytes) -> None:
    by = reader(False)
    for _ in range(3):
        assert by.read(head) is not None
    by.apply(Client(b"192.0.2.1", b"a:80"), Limits(target=64))
    with pytest.raises(RequestRejected, match="at most 64 bytes of target"):
        by.read(head)
