"""Rows: what ends at each connection (RFC 9110 §§ 7.6–7.8), Expect (§ 10.1.1), and requests in a row (RFC 9112 § 9)."""

from __future__ import annotations

from typing import Any

from tests.balancer.http.http_rows.row import (
    CRLF,
    Row,
    answered,
    chunked,
    lines,
    passed,
    post,
    refused,
    request,
    stopped,
    under,
)

GET = b"GET / HTTP/1.1"
OLD = b"GET / HTTP/1.0"
EXPECT = b"Expect: 100-continue"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
NO = b"HTTP/1.1 401 No\r\nContent-Length: 2\r\n\r\nno"


def one(target: bytes, *fields: bytes) -> bytes:
    """A GET in a row of several."""
    return request(*fields, line=b"GET %b HTTP/1.1" % target)


def removed(
    name: str, clause: str, *fields: bytes, lacks: tuple[bytes, ...] = (b"connection",), end: str = "kept"
) -> Row:
    """These fields do not reach the worker, and X does."""
    return passed(name, clause, request(*fields, b"X: y"), lacks=lacks, holds=(b"X: y", b"Host: a"), end=end)


def kept(name: str, clause: str, field: bytes) -> Row:
    """This field reaches the worker."""
    return passed(name, clause, request(field), holds=(field,))


def forwards(value: bytes) -> bytes:
    """An OPTIONS of this Max-Forwards."""
    return request(b"Max-Forwards: " + value, line=b"OPTIONS / HTTP/1.1")


def to_close(name: str, clause: str, sent: bytes, line: bytes = GET, **more: Any) -> Row:
    """The connection is closed after the response, whatever was sent behind the request."""
    return passed(name, clause, sent, line, **{"end": "closed", **more})


HOP_BY_HOP = under(
    "RFC 9110 § 7.6.1",
    (
        removed("connection-close", "RFC 9112 § 9.6", b"Connection: close", end="closed"),
        removed("connection-close-case", "", b"Connection: CLOSE", end="closed"),
        removed("connection-both", "", b"Connection: keep-alive, close", end="closed"),
        removed("connection-two-fields", "", b"Connection: x-a", b"Connection: close", end="closed"),
        removed("connection-keep-alive", "", b"Connection: keep-alive"),
        removed("connection-empty", "", b"Connection:"),
        removed("connection-nominates", "", b"X-A: 1", b"Connection: x-a", b"X-a: 2", lacks=(b"x-a",)),
        removed(
            "connection-nominates-several", "", b"Connection: A ,\tB,,", b"A: 1", b"B: 2", lacks=(b"a", b"b")
        ),
        removed("connection-nominates-host", "", b"Connection: Host"),
        removed("connection-nominates-pattern", "", b"Connection: x.*", b"X-Q: y"),
        removed("keep-alive-field", "RFC 9112 § C.2.2", b"Keep-Alive: timeout=5", lacks=(b"keep-alive",)),
        removed(
            "proxy-connection", "RFC 9112 § C.2.2", b"Proxy-Connection: close", lacks=(b"proxy-connection",)
        ),
        removed("te", "RFC 9110 § 10.1.4", b"TE: gzip", b"Connection: TE", lacks=(b"te: gzip",)),
        kept("trailer-field", "RFC 9110 § 6.6.2", b"Trailer: X"),
        passed("via", "RFC 9110 § 7.6.3", request(b"Via: 1.0 b"), exact=(b"1.0 b",)),
        kept("authorization", "RFC 9110 § 11.6.2", b"Authorization: Basic YTpi"),
        refused("max-forwards-zero", "RFC 9110 § 7.6.2", forwards(b"0"), 200, 204, 405),
        passed("max-forwards-two", "RFC 9110 § 7.6.2", forwards(b"2"), holds=(b"Max-Forwards: 1",)),
        refused("max-forwards-endless", "RFC 9110 § 7.6.2", forwards(b"9" * 5000)),
        kept("max-forwards-of-a-get", "RFC 9110 § 7.6.2", b"Max-Forwards: 0"),
        passed(
            "connection-keep-alive-10",
            "RFC 9112 § 9.3",
            lines(OLD, b"Host: a", b"Connection: Keep-Alive"),
            GET,
            gets=(b"Connection: keep-alive",),
        ),
        to_close("connection-close-10", "RFC 9112 § 9.3", lines(OLD, b"Host: a", b"Connection: close")),
    ),
)

UPGRADES = under(
    "RFC 9110 § 7.8",
    (
        removed(
            "upgrade-h2c",
            "RFC 9113 § 3.1",
            b"Connection: Upgrade, HTTP2-Settings",
            b"Upgrade: h2c",
            b"HTTP2-Settings: AAMAAABkAAQAAP__",
            lacks=(b"upgrade", b"http2-settings"),
        ),
        passed(
            "upgrade-h2c-with-body",
            "RFC 9113 § 3.1",
            post(
                b"Connection: Upgrade, HTTP2-Settings",
                b"Upgrade: h2c",
                b"HTTP2-Settings: A",
                b"Content-Length: 5",
                body=b"hello",
            ),
            lacks=(b"upgrade",),
            body=b"hello",
        ),
        removed("upgrade-not-nominated", "", b"Upgrade: websocket", lacks=(b"upgrade",)),
        to_close(
            "upgrade-of-10",
            "",
            lines(OLD, b"Host: a", b"Connection: Upgrade", b"Upgrade: websocket"),
            lacks=(b"upgrade",),
        ),
        passed(
            "upgrade-declined",
            "",
            request(
                b"Connection: Upgrade",
                b"Upgrade: websocket",
                b"Sec-WebSocket-Version: 13",
                b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            ),
            holds=(b"Upgrade: websocket", b"Connection: upgrade"),
        ),
        answered(
            "upgrade-unasked",
            "",
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
            502,
            sent=request(line=b"POST / HTTP/1.1"),
            last="fin",
        ),
    ),
)


def awaited(name: str, clause: str, sent: bytes, **more: Any) -> Row:
    """The body is sent after the worker's 100, which the client gets."""
    usual = {"then": b"hello", "early": CONTINUE, "interims": (100,), "holds": (EXPECT,), "body": b"hello"}
    return passed(name, clause, sent, **{**usual, **more})


FIVE, NONE = b"Content-Length: 5", b"Content-Length: 0"
TEXT = b"HTTP/1.1 100 Go on\r\nX: y\r\n"
EXPECTATIONS = under(
    "RFC 9110 § 10.1.1",
    (
        awaited("expect", "", post(EXPECT, FIVE)),
        awaited(
            "expect-chunked", "", post(EXPECT, b"Transfer-Encoding: chunked"), then=b"5\r\nhello\r\n0\r\n\r\n"
        ),
        awaited("expect-case", "", post(b"expect: 100-CONTINUE", FIVE)),
        awaited(
            "expect-fields-of-100",
            "RFC 9110 § 15.2",
            post(EXPECT, FIVE),
            early=TEXT + b"\r\n",
            gets_exact=(TEXT,),
        ),
        stopped("expect-final-at-once", "", post(EXPECT, FIVE), 401, early=NO, gets_body=b"no"),
        passed("expect-without-waiting", "", post(EXPECT, FIVE, body=b"hello"), body=b"hello"),
        passed("expect-no-body", "", request(EXPECT)),
        to_close(
            "expect-10",
            "",
            lines(b"POST / HTTP/1.0", b"Host: a", EXPECT, FIVE) + b"hello",
            b"POST / HTTP/1.1",
            body=b"hello",
        ),
        refused("expect-other", "RFC 9110 § 15.5.18", post(b"Expect: tea", NONE), 417),
        refused("expect-two", "RFC 9110 § 15.5.18", post(b"Expect: 100-continue, tea", NONE), 417),
        refused("expect-two-fields", "RFC 9110 § 15.5.18", post(EXPECT, b"Expect: tea", NONE), 417),
        refused("expect-value", "RFC 9110 § 15.5.18", post(b"Expect: 100-continue=1", NONE), 417),
    ),
)


def two(name: str, clause: str, first: bytes, *, between: bytes = b"", **more: Any) -> Row:
    """Two requests at once, both of which are answered."""
    line = first.split(CRLF)[0]
    return passed(name, clause, first + between + one(b"/2"), more=(200,), lines=(line, SECOND), **more)


FIRST, SECOND = b"GET /1 HTTP/1.1", b"GET /2 HTTP/1.1"
GHOST = one(b"/ghost")
PIPELINES = under(
    "RFC 9112 § 9.3.2",
    (
        two("pipeline-two", "", one(b"/1")),
        passed(
            "pipeline-five",
            "",
            b"".join(one(b"/%d" % i) for i in range(5)),
            more=(200,) * 4,
            lines=tuple(b"GET /%d HTTP/1.1" % i for i in range(5)),
        ),
        two("pipeline-empty-line-between", "RFC 9112 § 2.2", one(b"/1"), between=CRLF),
        two("pipeline-head-first", "", request(line=b"HEAD /1 HTTP/1.1")),
        two("pipeline-behind-length", "", post(FIVE, body=b"hello"), body=b"hello"),
        two("pipeline-behind-chunks", "", chunked(b"5\r\nhello\r\n0\r\n\r\n"), body=b"hello"),
        two("pipeline-behind-trailers", "", chunked(b"0\r\nX: y\r\n\r\n"), trailers=(b"X: y",)),
        to_close("pipeline-behind-close", "RFC 9112 § 9.6", one(b"/1", b"Connection: close") + GHOST, FIRST),
        to_close(
            "pipeline-behind-10", "RFC 9112 § 9.3", lines(b"GET /1 HTTP/1.0", b"Host: a") + GHOST, FIRST
        ),
        to_close("pipeline-behind-refused", "", one(b"/1") + b"GET\r\n\r\n" + GHOST, FIRST, more=(400,)),
        to_close(
            "pipeline-behind-two-lengths",
            "RFC 9112 § 6.3",
            one(b"/1") + post(b"Content-Length: 0", b"Content-Length: 9") + GHOST,
            FIRST,
            more=(400,),
        ),
        to_close("client-half-closes", "RFC 9112 § 9.6", request(), leaves=True),
    ),
)

ROWS: tuple[Row, ...] = (*HOP_BY_HOP, *UPGRADES, *EXPECTATIONS, *PIPELINES)
