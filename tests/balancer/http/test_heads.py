"""Editing of request and response heads: pure functions, no sockets."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.config.schema.limits import Limits
from balancer.downstream.http2.request_heads import StreamRequestHeads
from balancer.errors import RequestRejected
from balancer.http.h1.client import OWN_NAME, Client
from balancer.http.h1.fields import Framing
from balancer.http.h1.request_head import Request
from balancer.http.h1.request_ids import fresh_ids
from balancer.http.h1.response_head import StatusLines, incoming_response, outgoing_head
from tests.support.outgoing import outgoing_request

UNTRUSTED = Client(b"192.0.2.7", b"127.0.0.1:8080")
PROXY = Client(b"10.0.0.1", b"127.0.0.1:8080", is_trusted=True)
HOST = b"Host: example.org"

Fields = list[tuple[bytes, bytes]]


def block(*lines: bytes) -> bytes:
    return b"\r\n" + b"".join(line + b"\r\n" for line in lines)


def request(
    *lines: bytes, target: bytes = b"/", version: bytes = b"HTTP/1.1", method: bytes = b"GET"
) -> bytes:
    return b"%b %b %b%b\r\n" % (method, target, version, block(*lines))


def parsed(head: bytes) -> tuple[bytes, Fields]:
    """The first line, and the fields in order."""
    assert head.endswith(b"\r\n\r\n")
    first, *lines = head[:-4].split(b"\r\n")
    return first, [(name, value.strip()) for name, _, value in (line.partition(b":") for line in lines)]


def edit_request(head: bytes, client: Client = UNTRUSTED) -> Request:
    return outgoing_request(head, client, b"fresh")


def refusal(head: bytes, client: Client = UNTRUSTED) -> tuple[int, str]:
    """Status and reason of the refusal of a request."""
    with pytest.raises(RequestRejected) as caught:
        edit_request(head, client)
    return caught.value.status, caught.value.reason


def sent(head: bytes, client: Client = UNTRUSTED) -> tuple[bytes, Fields, Framing]:
    outgoing = edit_request(head, client)
    return *parsed(outgoing.head), outgoing.fields.framing


def forwarded_response(
    line: bytes, given: bytes, to_head: bool, to_http10: bool, stays: bool
) -> tuple[bytes, Framing]:
    response = incoming_response(line + given)
    return outgoing_head(response, response.block, to_head, to_http10, stays)


def values(fields: Fields, name: bytes) -> list[bytes]:
    return [value for other, value in fields if other.lower() == name.lower()]


# --- requests


def test_forwarding_fields_are_appended() -> None:
    """Order, case and spelling are kept; forwarding fields are appended."""
    line, fields, framing = sent(request(HOST, b"accept: */*", b"X-A: 1", b"x-a: 2", target=b"/p?q"))
    assert line == b"GET /p?q HTTP/1.1"
    assert fields == [
        (b"Host", b"example.org"),
        (b"accept", b"*/*"),
        (b"X-A", b"1"),
        (b"x-a", b"2"),
        (b"X-Forwarded-For", b"192.0.2.7"),
        (b"X-Forwarded-Proto", b"http"),
        (b"Via", b"1.1 " + OWN_NAME),
        (b"X-Forwarded-Host", b"example.org"),
        (b"X-Request-ID", b"fresh"),
    ]
    assert framing is Framing.NONE


def test_similar_names_are_not_hop_by_hop() -> None:
    """`X-TE`, `Test` and `Connection-Id` are not hop-by-hop fields."""
    _, fields, _ = sent(request(HOST, b"X-TE: 1", b"Test: te: 2", b"Connection-Id: 3", b"TE: 4"))
    assert fields[1:4] == [(b"X-TE", b"1"), (b"Test", b"te: 2"), (b"Connection-Id", b"3")]


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (request(HOST, b"Content-Length: 1", b"Content-Length: 1"), (400, "bad_framing")),
        (request(HOST, b"Transfer-Encoding: gzip, chunked"), (501, "unknown_coding")),
        (request(HOST, HOST), (400, "bad_host")),
        (request(HOST, target=b"a/b"), (400, "bad_target")),
        (request(HOST, method=b"TRACE"), (405, "method_not_allowed")),
        (request(HOST, version=b"HTTP/1.2"), (505, "bad_version")),
        (b"GET /\r\nHost: a\r\n\r\n", (400, "bad_request_line")),
    ],
)
def test_reasons_of_refusals(head: bytes, expected: tuple[int, str]) -> None:
    """One request for each reason; the HTTP table has all kinds."""
    assert refusal(head) == expected


LONGEST = b"a." * 127 + b"a"


@pytest.mark.parametrize("port", [b":80", b":65535"])
@pytest.mark.parametrize("form", ["host", "absolute", "connect", "http2"])
def test_host_of_255_bytes_is_the_longest(port: bytes, form: str) -> None:
    """As long as a name of DNS can be (RFC 1035 § 2.3.4), wherever it is stated."""
    asked_for(LONGEST + port, form)
    for longer in (LONGEST + b"a", b"a" * 8_000, b"a." * 4_000):
        with pytest.raises(RequestRejected) as caught:
            asked_for(longer + port, form)
        expected = "bad_host" if form in ("host", "http2") else "bad_target"
        assert (caught.value.status, caught.value.reason) == (400, expected)


def asked_for(host: bytes, form: str) -> None:
    """Parse a request for a host that is stated in one of four forms."""
    if form == "http2":
        heads = StreamRequestHeads(UNTRUSTED, Limits(), lambda: b"id")
        heads.read(
            ((b":method", b"GET"), (b":scheme", b"http"), (b":authority", host), (b":path", b"/")), True
        )
    elif form == "connect":
        edit_request(request(HOST, method=b"CONNECT", target=host), ALLOWED)
    elif form == "absolute":
        edit_request(request(HOST, target=b"http://%b/" % host))
    else:
        edit_request(request(b"Host: " + host))


def test_http2_head_that_is_repeated_after_another_was_refused() -> None:
    """It is the same request; `raw` is that of the last head that came."""
    heads = StreamRequestHeads(UNTRUSTED, Limits(), lambda: b"id")
    fields = ((b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"a.org"), (b":path", b"/a"))
    first = heads.read(fields, True)
    assert heads.raw == first.raw == b"GET /a HTTP/1.1\r\nHost: a.org\r\n\r\n"
    heads.oversized(((b":method", b"PUT"), (b":path", b"/b")))
    assert heads.raw.startswith(b"PUT /b")
    again = heads.read(fields, True)
    assert (heads.raw, again.raw, again.head) == (first.raw, first.raw, first.head)
    assert heads.read(fields, True).head == first.head


def test_http10_without_host() -> None:
    """The address of the connection stands in for Host, and the worker gets HTTP/1.1."""
    line, fields, _ = sent(request(b"Accept: */*", version=b"HTTP/1.0"))
    assert line == b"GET / HTTP/1.1"
    assert fields[:2] == [(b"Host", b"127.0.0.1:8080"), (b"Accept", b"*/*")]


FORGED = (
    b"X-Forwarded-For: 1.2.3.4",
    b"X-Forwarded-For: 5.6.7.8, 9.9.9.9",
    b"X-Forwarded-Proto: https",
    b"X-Forwarded-Host: inner.example",
    b"Forwarded: for=1.2.3.4",
)


FORWARDING = (b"X-Forwarded-For", b"X-Forwarded-Proto", b"X-Forwarded-Host", b"Forwarded")


@pytest.mark.parametrize(
    ("client", "given", "expected"),
    [
        (UNTRUSTED, FORGED, [b"192.0.2.7", b"http", b"example.org", None]),
        (PROXY, FORGED, [b"1.2.3.4, 5.6.7.8, 9.9.9.9, 10.0.0.1", b"https", b"inner.example", b"for=1.2.3.4"]),
        (PROXY, (b"TE: trailers",), [b"10.0.0.1", b"http", b"example.org", None]),
    ],
    ids=["untrusted", "proxy", "proxy without fields"],
)
def test_forwarding_fields(client: Client, given: tuple[bytes, ...], expected: list[bytes | None]) -> None:
    """An untrusted peer's are replaced by what the balancer sees: the host is that of an absolute target. Those of a
    trusted proxy are kept, with its address appended; without them the proxy counts as the client."""
    _, fields, _ = sent(request(b"Host: inner.example", *given, target=b"https://example.org/"), client)
    assert [values(fields, name) for name in FORWARDING] == [[] if it is None else [it] for it in expected]


OWN = b'for=10.0.0.1;proto=http;host="example.org"'


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (FORGED[4:], [b"for=1.2.3.4", OWN]),
        (FORGED, [b"for=1.2.3.4", OWN]),
        (FORGED[:4], [b"for=1.2.3.4;proto=https;host=inner.example, for=5.6.7.8, for=9.9.9.9, " + OWN]),
        ((b'X-Forwarded-For: ,::1, [::2]:3,, a\\";b',), [b'for="[::1]", for="[::2]:3", for="a;b", ' + OWN]),
        (
            (b"X-Forwarded-Proto: https, http", b"X-Forwarded-Host: a:8,b"),
            [b'proto=https;host="a:8", ' + OWN],
        ),
        ((b"TE: trailers",), [OWN]),
        ((b"X-Forwarded-For: " + b"a," * 40 + b"b",), [b"for=a, " * 15 + b"for=b, " + OWN]),
    ],
)
def test_forwarded_of_a_trusted_proxy(given: tuple[bytes, ...], expected: list[bytes]) -> None:
    """It is extended; a proxy that sends none says the same in the other fields (RFC 7239 § 7.4)."""
    proxy = Client(b"10.0.0.1", b"127.0.0.1:8080", is_trusted=True, adds_forwarded=True)
    assert values(sent(request(HOST, *given), proxy)[1], b"Forwarded") == expected
    untrusted = Client(b"10.0.0.1", b"127.0.0.1:8080", adds_forwarded=True)
    assert values(sent(request(HOST, *given), untrusted)[1], b"Forwarded") == [OWN]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], b"fresh"),
        ([b"X-Request-ID: abc"], b"abc"),
        ([b"x-request-id: first", b"X-Request-Id: last"], b"last"),
        ([b"X-Request-ID:"], b"fresh"),
        ([b"X-Request-ID: " + b"x" * 128], b"x" * 128),
        ([b"X-Request-ID: " + b"x" * 129], b"fresh"),
    ],
)
def test_request_id(lines: list[bytes], expected: bytes) -> None:
    """A given id is kept unless it is too long for a log."""
    outgoing = edit_request(request(HOST, *lines))
    assert values(parsed(outgoing.head)[1], b"X-Request-ID") == [expected] == [outgoing.id]


def test_ids_are_unique_and_have_one_prefix() -> None:
    fresh_id, other = fresh_ids(), fresh_ids()
    ids = [fresh_id() for _ in range(2000)]
    assert len({*ids, *(other() for _ in range(2000))}) == 4000
    assert len({each.partition(b"-")[0] for each in ids}) == 1
    assert all(re.fullmatch(rb"[0-9a-f]{12}-[0-9a-f]{3,}", each) for each in ids)


@pytest.mark.parametrize(
    ("lines", "offered"),
    [
        ([b"Connection: Upgrade", b"Upgrade: websocket"], b"websocket"),
        ([b"connection: keep-alive, UPGRADE", b"upgrade: WebSocket"], b"WebSocket"),
        ([b"Connection: Upgrade", b"Upgrade: a/1, b", b"Upgrade: c"], b"a/1, b, c"),
        (
            [b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: H2C, websocket", b"HTTP2-Settings: A"],
            b"websocket",
        ),
        ([b"Connection: Upgrade", b"Upgrade: HTTP/2.0"], b""),
        ([b"Connection: Upgrade", b"Upgrade: ,"], b""),
        ([b"Connection: Upgrade"], b""),
        ([b"Connection: Upgrade", b"Upgrade: a", b"Content-Length: 0"], b"a"),
        ([b"Connection: Upgrade", b"Upgrade: a", b"Content-Length: 10"], b""),
        ([b"Connection: Upgrade", b"Upgrade: a", b"Transfer-Encoding: chunked"], b""),
    ],
)
def test_upgrade(lines: list[bytes], offered: bytes) -> None:
    """RFC 9110 § 7.8: needs `Connection: upgrade`; HTTP's own protocols and requests with a body are left out."""
    outgoing = edit_request(request(HOST, *lines))
    _, fields = parsed(outgoing.head)
    named = [offered] if offered else []
    assert (outgoing.fields.upgrade, values(fields, b"upgrade")) == (offered, named)
    assert values(fields, b"connection") == [b"Upgrade" for _ in named]
    assert values(fields, b"http2-settings") == []
    assert edit_request(request(HOST, *lines[:2], version=b"HTTP/1.0")).fields.upgrade == b""


ALLOWED = Client(b"192.0.2.7", b"198.51.100.1:80", allowed=frozenset((b"CONNECT", b"TRACE")))


@pytest.mark.parametrize("target", [b"a:80", b"[::1]:443", b"192.0.2.1:65535"])
def test_allowed_connect(target: bytes) -> None:
    """RFC 9110 § 9.3.6: the target is forwarded as it is, and is the host."""
    outgoing = edit_request(request(HOST, method=b"CONNECT", target=target), ALLOWED)
    line, fields = parsed(outgoing.head)
    assert line == b"CONNECT %b HTTP/1.1" % target
    assert values(fields, b"host") == [target]


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (request(HOST, method=b"CONNECT", target=b"/"), "bad_target"),
        (request(HOST, method=b"CONNECT", target=b"http://a/"), "bad_target"),
        (request(HOST, method=b"CONNECT", target=b"a"), "bad_target"),
        (request(HOST, method=b"CONNECT", target=b"u@a:80"), "bad_target"),
        (request(HOST, b"Content-Length: 1", method=b"CONNECT", target=b"a:80"), "bad_framing"),
        (request(HOST, b"Transfer-Encoding: chunked", method=b"TRACE"), "bad_framing"),
    ],
)
def test_rejected_connect_and_trace(head: bytes, reason: str) -> None:
    """Only host:port as target, and no body."""
    assert refusal(head, ALLOWED) == (400, reason)


# --- responses

LENGTH = [b"Content-Length: 3"]
CHUNKED = [b"Transfer-Encoding: chunked"]
UNTIL_CLOSE: list[bytes] = []
CLOSE, KEEP = (b"Connection", b"close"), (b"Connection", b"keep-alive")
TO_CHUNKED = (b"Transfer-Encoding", b"chunked")


@pytest.mark.parametrize(
    ("lines", "to_http10", "stays", "framing", "added"),
    [
        (LENGTH, False, True, Framing.LENGTH, []),
        (LENGTH, False, False, Framing.LENGTH, [CLOSE]),
        (LENGTH, True, True, Framing.LENGTH, [KEEP]),
        (LENGTH, True, False, Framing.LENGTH, [CLOSE]),
        (CHUNKED, False, True, Framing.CHUNKED, [TO_CHUNKED]),
        (CHUNKED, False, False, Framing.CHUNKED, [TO_CHUNKED, CLOSE]),
        (CHUNKED, True, True, Framing.UNTIL_CLOSE, [CLOSE]),
        (UNTIL_CLOSE, False, True, Framing.CHUNKED, [TO_CHUNKED]),
        (UNTIL_CLOSE, True, True, Framing.UNTIL_CLOSE, [CLOSE]),
        ([*LENGTH, b"Connection: close"], False, True, Framing.LENGTH, []),
        ([b"Connection: close"], False, True, Framing.CHUNKED, [TO_CHUNKED]),
    ],
)
def test_response_framing(
    lines: list[bytes], to_http10: bool, stays: bool, framing: Framing, added: Fields
) -> None:
    """RFC 9112 § 6: a length is forwarded, everything else is chunked; to HTTP/1.0 it ends with the connection."""
    head, found = forwarded_response(b"HTTP/1.1 200 OK", block(*lines), False, to_http10, stays)
    line, fields = parsed(head)
    length = [(b"Content-Length", b"3")] if b"Content-Length: 3" in lines else []
    assert (line, fields, found) == (b"HTTP/1.1 200 OK", length + added, framing)


def test_connection_options_behind_keep_alive() -> None:
    """`keep-alive, X-Hop` nominates a field: both are removed."""
    lines = [b"Connection: keep-alive, X-Hop", b"X-Hop: 1", b"Content-Length: 3"]
    head, _ = forwarded_response(b"HTTP/1.1 200 OK", block(*lines), False, False, True)
    assert parsed(head)[1] == [(b"Content-Length", b"3")]


def test_cached_status_lines_are_bounded() -> None:
    """The cache of status lines is bounded against workers that vary the phrase."""
    lines = StatusLines()
    for number in range(2 * lines.LIMIT):
        assert lines[b"HTTP/1.1 200 %d" % number][1] == b"HTTP/1.1 200 %d" % number
    assert len(lines) == lines.LIMIT


# --- properties

TOKEN = st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~", min_size=1)
VALUE = st.binary(max_size=20).map(lambda data: bytes(b for b in data if b > 32 and b != 127))
ENDS_HERE = {
    *(b"host", b"connection", b"keep-alive", b"proxy-connection", b"te", b"upgrade"),
    *(b"content-length", b"transfer-encoding", b"forwarded", b"via", b"x-request-id"),
    *(b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"),
}
SPECIAL = st.sampled_from(sorted(ENDS_HERE - {b"host", b"content-length", b"transfer-encoding", b"via"}))
PLAIN = TOKEN.map(str.encode).filter(lambda name: name.lower() not in ENDS_HERE)
SPACE = st.sampled_from([b"", b" ", b"\t ", b"  "])
LINES = st.lists(st.tuples(PLAIN, SPACE, VALUE), max_size=12)


@given(LINES, st.lists(st.tuples(st.integers(0, 12), SPECIAL), max_size=4), st.booleans())
def test_any_other_field_of_a_request_passes_unchanged(
    lines: list[tuple[bytes, bytes, bytes]], specials: list[tuple[int, bytes]], is_trusted: bool
) -> None:
    """Byte for byte and in order, spacing included."""
    plain = [name + b":" + space + value for name, space, value in lines]
    mixed = list(plain)
    for at, name in specials:
        mixed.insert(at, name + b": close")  # as an option of Connection it nominates no field
    head = edit_request(request(HOST, *mixed), PROXY if is_trusted else UNTRUSTED).head
    outgoing = head[:-4].split(b"\r\n")
    assert outgoing[:2] == [b"GET / HTTP/1.1", HOST]
    passed = [line for line in outgoing[2:-5] if not line.startswith(b"forwarded: close")]
    assert passed == plain


@given(LINES, st.booleans(), st.booleans())
def test_any_other_field_of_a_response_passes_unchanged(
    lines: list[tuple[bytes, bytes, bytes]], has_length: bool, names_hop: bool
) -> None:
    """Byte for byte and in order."""
    plain = [name + b":" + space + value for name, space, value in lines]
    framing = b"Content-Length: 3" if has_length else b"Transfer-Encoding: chunked"
    hop = [b"Keep-Alive: timeout=4", b"Connection: keep-alive, close"] if names_hop else []
    given_block = block(*plain, *hop, framing)
    head, _ = forwarded_response(b"HTTP/1.1 200 OK", given_block, False, False, True)
    assert head[:-4].split(b"\r\n")[1:] == [*plain, framing]
