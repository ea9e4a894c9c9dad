"""Hypothesis strategies for legal HTTP messages (RFC 9110, RFC 9112) and what the other side must receive of them.

Independent of the balancer's code: only the grammar counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

Fields = list[tuple[bytes, bytes]]

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: evil\r\n\r\n"
"""Part of some bodies: a parser that miscounts a body sees another request."""

SMUGGLED_RESPONSE = b"HTTP/1.1 200 Smuggled\r\nContent-Length: 0\r\n\r\n"

TOKEN = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
VISIBLE = bytes(range(0x21, 0x7F))
OBS_TEXT = bytes(range(0x80, 0x100))
TARGET = b"abcXYZ019-._~!$&'()*+,;=:@/?%"

METHODS = (
    b"GET",
    b"HEAD",
    b"POST",
    b"PUT",
    b"DELETE",
    b"OPTIONS",
    b"PATCH",
    b"PROPFIND",
    b"REPORT",
    b"PURGE",
)


@dataclass(frozen=True)
class Sent:
    """A message as sent, the parts of its first line, and the `fields` and the `body` that must arrive.

    `ends_with_connection`: the body ends with the connection.
    """

    data: bytes
    line: tuple[bytes, ...]
    fields: Fields
    body: bytes
    trailers: Fields
    ends_with_connection: bool = False


def text(alphabet: bytes, min_size: int = 0, max_size: int = 8) -> st.SearchStrategy[bytes]:
    """Bytes of an alphabet, in one draw: a draw per byte would take most of the tests' time."""
    table = bytes(alphabet[i % len(alphabet)] for i in range(256))
    return st.binary(min_size=min_size, max_size=max_size).map(lambda data: data.translate(table))


_spaces = st.sampled_from((b" ", b"", b"\t", b"  \t"))
_tokens = text(TOKEN, 1, 6)
_names = st.one_of(
    st.sampled_from(
        (b"Accept", b"Cookie", b"Set-Cookie", b"set-cookie", b"ETag", b"X-Long-Name_1", b"WARNING")
    ),
    _tokens.map(lambda token: b"X-P-" + token),
)
_words = text(VISIBLE + OBS_TEXT, 1, 6)
_values = st.one_of(
    st.sampled_from((b"", b"a, b", b'"quoted \\" string"', b"HTTP/1.1 200 OK", b"x" * 300, b"\xe9\xff\x80")),
    st.lists(_words, min_size=1, max_size=3).map(b" \t".join),
    _words,
)
_fields = st.lists(st.tuples(_names, _values), max_size=5)
_bodies = st.one_of(
    st.just(b""),
    st.just(SMUGGLED),
    st.just(SMUGGLED_RESPONSE),
    st.just(b"0\r\n\r\n" + SMUGGLED),
    st.binary(max_size=40),
)


@st.composite
def lines(draw: st.DrawFn, fields: Fields) -> bytes:
    """Field lines with optional white space around values."""
    return b"".join(b"%b:%b%b%b\r\n" % (name, draw(_spaces), value, draw(_spaces)) for name, value in fields)


@st.composite
def chunked(draw: st.DrawFn, body: bytes) -> tuple[bytes, Fields]:
    """A chunked body with extensions, and its trailers."""
    cuts = sorted(draw(st.lists(st.integers(1, max(1, len(body) - 1)), unique=True, max_size=3)))
    pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    extensions = st.sampled_from((b"", b";a", b";a=b", b';a="b c";d'))
    sizes = st.sampled_from((b"%x", b"%X", b"00%x"))
    framed = [draw(sizes) % len(p) + draw(extensions) + b"\r\n" + p + b"\r\n" for p in pieces if p]
    trailers = draw(st.lists(st.tuples(_tokens.map(lambda token: b"X-T-" + token), _words), max_size=2))
    end = draw(st.sampled_from((b"0", b"000"))) + draw(extensions) + b"\r\n" + draw(lines(trailers)) + b"\r\n"
    return b"".join(framed) + end, trailers


@st.composite
def requests(draw: st.DrawFn) -> Sent:
    """A legal HTTP/1.1 request."""
    method = draw(st.sampled_from(METHODS))
    path = b"/" + draw(text(TARGET, 0, 10).filter(lambda rest: not rest.startswith(b"-/")))  # not for control
    fields, body, trailers = draw(_fields), draw(_bodies), Fields()
    passed = [*fields]
    nominated = draw(st.lists(_tokens.map(lambda token: b"X-N-" + token), max_size=2))
    options = [*nominated, *draw(st.sampled_from(([], [b"keep-alive"], [b""])))]
    for name in nominated:
        fields.insert(draw(st.integers(0, len(fields))), (name, draw(_words)))
    if options:
        fields.insert(
            draw(st.integers(0, len(fields))),
            (b"Connection", draw(st.sampled_from((b",", b", "))).join(options)),
        )
    framed, framing = body, (b"", b"")
    how = draw(st.sampled_from(("none", "length", "chunked")))
    if how == "none":
        framed = body = b""
    elif how == "length":
        framing = b"Content-Length", b"%d" % len(body)
    else:
        framed, trailers = draw(chunked(body))
        framing = draw(st.sampled_from((b"Transfer-Encoding", b"transfer-encoding"))), b"chunked"
    host = b"Host", b"example.org"
    ends = [host] if how == "none" else draw(st.permutations([host, framing]))
    arriving = [
        (b"Transfer-Encoding", b"chunked") if end == framing and how == "chunked" else end for end in ends
    ]
    fields, passed = ends[:1] + fields + ends[1:], arriving[:1] + passed + arriving[1:]
    target = draw(st.sampled_from((b"", b"", b"http://example.org"))) + path
    head = b"%b %b HTTP/1.1\r\n%b\r\n" % (method, target, draw(lines(fields)))
    return Sent(head + framed, (method, path, b"HTTP/1.1"), passed, body, trailers)


@st.composite
def responses(draw: st.DrawFn, method: bytes) -> Sent:
    """A legal response to a request of this method."""
    status = draw(
        st.sampled_from((b"200", b"201", b"204", b"206", b"304", b"404", b"418", b"500", b"599", b"299"))
    )
    reason = draw(st.sampled_from((b"OK", b"", b"Not  \tquite \xe9", b"HTTP/1.1 200")))
    fields, body, trailers = draw(_fields), draw(_bodies), Fields()
    passed = [*fields]
    if draw(st.booleans()):
        fields.append((b"Keep-Alive", b"timeout=5"))
    framing, framed = draw(st.sampled_from(("length", "length", "chunked", "close"))), body
    if method == b"HEAD" or status in (b"204", b"304"):
        framing, framed, body = draw(st.sampled_from(("length", "close"))), b"", b""
        framing = "none" if status == b"204" or framing == "close" else framing
        length = draw(st.integers(0, 9)) if framing == "length" else 0
    else:
        length = len(body)
    if framing == "length":
        at = draw(st.integers(0, len(passed)))
        passed.insert(at, (b"Content-Length", b"%d" % length))
        fields.insert(at, passed[at])
    elif framing == "chunked":
        framed, trailers = draw(chunked(body))
        fields.append((b"Transfer-Encoding", b"chunked"))
    head = b"HTTP/1.1 %b %b\r\n%b\r\n" % (status, reason, draw(lines(fields)))
    interim = b"".join(draw(st.lists(st.sampled_from(INTERIM), max_size=2)))
    line = (b"HTTP/1.1", status, reason)
    return Sent(interim + head + framed, line, passed, body, trailers, framing == "close")


INTERIM = (
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n",
    b"HTTP/1.1 102 \r\n\r\n",
)


@st.composite
def pieces(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """The same bytes in several reads."""
    if draw(st.integers(0, 3)) == 0:
        return [data[i : i + 1] for i in range(len(data))]
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]
