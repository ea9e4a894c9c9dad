"""Rows: what ends at each connection (RFC 9110 §§ 7.6–7.8), Expect (§ 10.1.1), and requests in a row (RFC 9112 § 9)."""

from __future__ import annotations

from tests.balancer.http.http_rows.row import (
    Row,
    answered,
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


def line(target: bytes) -> bytes:
    return b"GET %b HTTP/1.1" % target


def removed(name: str, clause: str, *fields: bytes, lacks: tuple[bytes, ...], end: str = "kept") -> Row:
    """These fields do not reach the worker, and X does."""
    return passed(name, clause, request(*fields, b"X: y"), lacks=lacks, holds=(b"X: y", b"Host: a"), end=end)


HOP_BY_HOP = under(
    "RFC 9110 § 7.6.1",
    (
        removed(
            "connection-close", "RFC 9112 § 9.6", b"Connection: close", lacks=(b"connection",), end="closed"
        ),
        removed("connection-close-case", "", b"Connection: CLOSE", lacks=(b"connection",), end="closed"),
        removed(
            "connection-both", "", b"Connection: keep-alive, close", lacks=(b"connection",), end="closed"
        ),
        removed(
            "connection-two-fields",
            "",
            b"Connection: x-a",
            b"Connection: close",
            lacks=(b"connection",),
            end="closed",
        ),
        removed("connection-keep-alive", "", b"Connection: keep-alive", lacks=(b"connection",)),
        removed("connection-empty", "", b"Connection:", lacks=(b"connection",)),
        removed("connection-nominates", "", b"X-A: 1", b"Connection: x-a", b"X-a: 2", lacks=(b"x-a",)),
        removed(
            "connection-nominates-several", "", b"Connection: A ,\tB,,", b"A: 1", b"B: 2", lacks=(b"a", b"b")
        ),
        removed("connection-nominates-host", "", b"Connection: Host", lacks=(b"connection",)),
        removed("connection-nominates-pattern", "", b"Connection: x.*", b"X-Q: y", lacks=(b"connection",)),
        removed("keep-alive-field", "RFC 9112 § C.2.2", b"Keep-Alive: timeout=5", lacks=(b"keep-alive",)),
        removed(
            "proxy-connection", "RFC 9112 § C.2.2", b"Proxy-Connection: close", lacks=(b"proxy-connection",)
        ),
        removed("te", "RFC 9110 § 10.1.4", b"TE: gzip", b"Connection: TE", lacks=(b"te: gzip",)),
        passed("trailer-field", "RFC 9110 § 6.6.2", request(b"Trailer: X"), holds=(b"Trailer: X",)),
        passed("via", "RFC 9110 § 7.6.3", request(b"Via: 1.0 b"), exact=(b"1.0 b",)),
        passed(
            "authorization",
            "RFC 9110 § 11.6.2",
            request(b"Authorization: Basic YTpi"),
            holds=(b"Authorization: Basic YTpi",),
        ),
        refused(
            "max-forwards-zero",
            "RFC 9110 § 7.6.2",
            request(b"Max-Forwards: 0", line=b"OPTIONS / HTTP/1.1"),
            200,
            204,
            405,
        ),
        passed(
            "max-forwards-two",
            "RFC 9110 § 7.6.2",
            request(b"Max-Forwards: 2", line=b"OPTIONS / HTTP/1.1"),
            holds=(b"Max-Forwards: 1",),
        ),
        refused(
            "max-forwards-endless",
            "RFC 9110 § 7.6.2",
            request(b"Max-Forwards: " + b"9" * 5000, line=b"OPTIONS / HTTP/1.1"),
        ),
        passed(
            "max-forwards-of-a-get",
            "RFC 9110 § 7.6.2",
            request(b"Max-Forwards: 0"),
            holds=(b"Max-Forwards: 0",),
        ),
        passed(
            "connection-keep-alive-10",
            "RFC 9112 § 9.3",
            lines(OLD, b"Host: a", b"Connection: Keep-Alive"),
            GET,
            gets=(b"Connection: keep-alive",),
        ),
        passed(
            "connection-close-10",
            "RFC 9112 § 9.3",
            lines(OLD, b"Host: a", b"Connection: close"),
            GET,
            end="closed",
        ),
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
        passed(
            "upgrade-of-10",
            "",
            lines(OLD, b"Host: a", b"Connection: Upgrade", b"Upgrade: websocket"),
            GET,
            lacks=(b"upgrade",),
            end="closed",
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

EXPECTATIONS = under(
    "RFC 9110 § 10.1.1",
    (
        passed(
            "expect",
            "",
            post(EXPECT, b"Content-Length: 5"),
            then=b"hello",
            early=CONTINUE,
            interims=(100,),
            holds=(EXPECT,),
            body=b"hello",
        ),
        passed(
            "expect-chunked",
            "",
            post(EXPECT, b"Transfer-Encoding: chunked"),
            then=b"5\r\nhello\r\n0\r\n\r\n",
            early=CONTINUE,
            interims=(100,),
            holds=(EXPECT,),
            body=b"hello",
        ),
        passed(
            "expect-case",
            "",
            post(b"expect: 100-CONTINUE", b"Content-Length: 5"),
            then=b"hello",
            early=CONTINUE,
            interims=(100,),
            holds=(EXPECT,),
            body=b"hello",
        ),
        passed(
            "expect-fields-of-100",
            "RFC 9110 § 15.2",
            post(EXPECT, b"Content-Length: 5"),
            then=b"hello",
            early=b"HTTP/1.1 100 Go on\r\nX: y\r\n\r\n",
            interims=(100,),
            body=b"hello",
            gets_exact=(b"HTTP/1.1 100 Go on\r\nX: y\r\n",),
        ),
        stopped(
            "expect-final-at-once", "", post(EXPECT, b"Content-Length: 5"), 401, early=NO, gets_body=b"no"
        ),
        passed(
            "expect-without-waiting", "", post(EXPECT, b"Content-Length: 5", body=b"hello"), body=b"hello"
        ),
        passed("expect-no-body", "", request(EXPECT)),
        passed(
            "expect-10",
            "",
            lines(b"POST / HTTP/1.0", b"Host: a", EXPECT, b"Content-Length: 5") + b"hello",
            b"POST / HTTP/1.1",
            body=b"hello",
            end="closed",
        ),
        refused("expect-other", "RFC 9110 § 15.5.18", post(b"Expect: tea", b"Content-Length: 0"), 417),
        refused(
            "expect-two", "RFC 9110 § 15.5.18", post(b"Expect: 100-continue, tea", b"Content-Length: 0"), 417
        ),
        refused(
            "expect-two-fields", "RFC 9110 § 15.5.18", post(EXPECT, b"Expect: tea", b"Content-Length: 0"), 417
        ),
        refused(
            "expect-value", "RFC 9110 § 15.5.18", post(b"Expect: 100-continue=1", b"Content-Length: 0"), 417
        ),
    ),
)

PIPELINES = under(
    "RFC 9112 § 9.3.2",
    (
        passed("pipeline-two", "", one(b"/1") + one(b"/2"), more=(200,), lines=(line(b"/1"), line(b"/2"))),
        passed(
            "pipeline-five",
            "",
            b"".join(one(b"/%d" % i) for i in range(5)),
            more=(200,) * 4,
            lines=tuple(line(b"/%d" % i) for i in range(5)),
        ),
        passed(
            "pipeline-empty-line-between",
            "RFC 9112 § 2.2",
            one(b"/1") + b"\r\n" + one(b"/2"),
            more=(200,),
            lines=(line(b"/1"), line(b"/2")),
        ),
        passed(
            "pipeline-head-first",
            "",
            request(line=b"HEAD /1 HTTP/1.1") + one(b"/2"),
            more=(200,),
            lines=(b"HEAD /1 HTTP/1.1", line(b"/2")),
        ),
        passed(
            "pipeline-behind-length",
            "",
            post(b"Content-Length: 5", body=b"hello") + one(b"/2"),
            more=(200,),
            lines=(b"POST / HTTP/1.1", line(b"/2")),
            body=b"hello",
        ),
        passed(
            "pipeline-behind-chunks",
            "",
            post(b"Transfer-Encoding: chunked", body=b"5\r\nhello\r\n0\r\n\r\n") + one(b"/2"),
            more=(200,),
            lines=(b"POST / HTTP/1.1", line(b"/2")),
            body=b"hello",
        ),
        passed(
            "pipeline-behind-trailers",
            "",
            post(b"Transfer-Encoding: chunked", body=b"0\r\nX: y\r\n\r\n") + one(b"/2"),
            more=(200,),
            lines=(b"POST / HTTP/1.1", line(b"/2")),
            trailers=(b"X: y",),
        ),
        passed(
            "pipeline-behind-close",
            "RFC 9112 § 9.6",
            one(b"/1", b"Connection: close") + one(b"/ghost"),
            line(b"/1"),
            end="closed",
        ),
        passed(
            "pipeline-behind-10",
            "RFC 9112 § 9.3",
            lines(b"GET /1 HTTP/1.0", b"Host: a") + one(b"/ghost"),
            line(b"/1"),
            end="closed",
        ),
        passed(
            "pipeline-behind-refused",
            "RFC 9112 § 9.3.2",
            one(b"/1") + b"GET\r\n\r\n" + one(b"/ghost"),
            line(b"/1"),
            more=(400,),
            end="closed",
        ),
        passed(
            "pipeline-behind-two-lengths",
            "RFC 9112 § 6.3",
            one(b"/1") + post(b"Content-Length: 0", b"Content-Length: 9") + one(b"/ghost"),
            line(b"/1"),
            more=(400,),
            end="closed",
        ),
        passed("client-half-closes", "RFC 9112 § 9.6", request(), leaves=True, end="closed"),
    ),
)

ROWS: tuple[Row, ...] = (*HOP_BY_HOP, *UPGRADES, *EXPECTATIONS, *PIPELINES)
