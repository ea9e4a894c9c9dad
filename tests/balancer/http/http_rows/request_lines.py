"""Rows: the request line (RFC 9112 § 3), its method, target and version, and what may stand before it."""

from __future__ import annotations

from tests.balancer.http.http_rows.row import Row, lines, passed, refused, request, under

HOST = b"Host: a"


def line(of: bytes) -> bytes:
    return lines(of, HOST)


def target(of: bytes) -> bytes:
    return line(b"GET %b HTTP/1.1" % of)


METHODS = under(
    "RFC 9110 § 9.1",
    (
        passed("method-get", "", line(b"GET / HTTP/1.1")),
        passed("method-head", "RFC 9110 § 9.3.2", line(b"HEAD /x HTTP/1.1"), gets=(b"Content-Length: 2",)),
        passed("method-post-empty", "RFC 9110 § 9.3.3", line(b"POST / HTTP/1.1")),
        passed("method-put", "", lines(b"PUT / HTTP/1.1", HOST, b"Content-Length: 2") + b"ab", body=b"ab"),
        passed("method-delete", "", line(b"DELETE / HTTP/1.1")),
        passed("method-patch", "RFC 5789 § 2", line(b"PATCH / HTTP/1.1")),
        passed("method-options", "RFC 9110 § 9.3.7", line(b"OPTIONS / HTTP/1.1")),
        passed("method-propfind", "", line(b"PROPFIND / HTTP/1.1")),
        passed("method-with-dash", "", line(b"M-SEARCH / HTTP/1.1")),
        refused("method-unknown", "", line(b"FROBNICATE / HTTP/1.1"), 400, 501),
        refused("method-lower-case", "", line(b"get / HTTP/1.1"), 400, 501),
        refused("method-of-rtsp", "", line(b"DESCRIBE / HTTP/1.1"), 400, 501),
        refused("method-with-at", "RFC 9110 § 5.6.2", line(b"G@T / HTTP/1.1")),
        refused("method-with-parenthesis", "RFC 9110 § 5.6.2", line(b"GET( / HTTP/1.1")),
        refused("method-with-nul", "RFC 9110 § 5.6.2", line(b"GE\0T / HTTP/1.1")),
        refused("method-with-high-byte", "RFC 9110 § 5.6.2", line(b"G\xc3\x89T / HTTP/1.1")),
        refused("method-empty", "RFC 9112 § 3.1", line(b" / HTTP/1.1")),
        refused("method-connect", "RFC 9110 § 9.3.6", lines(b"CONNECT a:80 HTTP/1.1", b"Host: a:80"), 405),
        refused("method-connect-path", "RFC 9112 § 3.2.3", line(b"CONNECT / HTTP/1.1"), 405, 400),
        refused("method-trace", "RFC 9110 § 9.3.8", line(b"TRACE / HTTP/1.1"), 405),
        refused("method-trace-10", "RFC 9110 § 9.3.8", line(b"TRACE / HTTP/1.0"), 405),
    ),
)

TARGETS = under(
    "RFC 9112 § 3.2.1",
    (
        passed("target-query", "", target(b"/a?b=c&d")),
        passed("target-empty-query", "", target(b"/?")),
        passed("target-two-slashes", "", target(b"//a//b")),
        passed("target-dots", "RFC 3986 § 6.2.2.3", target(b"/a/../b/./c")),
        passed("target-encoded-dots", "RFC 3986 § 6.2.2.2", target(b"/%2e%2E/%41")),
        passed("target-encoded-nul", "RFC 3986 § 2.1", target(b"/%00")),
        passed("target-encoded-crlf", "RFC 3986 § 2.1", target(b"/%0d%0aX:%20y")),
        passed("target-bad-percent", "RFC 9112 § 3.2", target(b"/%zz")),
        passed("target-colon", "RFC 3986 § 3.3", target(b"/a:b;c=d,e!$'()*+@~")),
        passed("target-url-in-path", "", target(b"/http://b/c")),
        passed("target-bar-and-braces", "RFC 9112 § 3.2", target(b'/{a}|b^c`"<>\\')),
        refused("target-fragment", "RFC 3986 § 3.5", target(b"/a#b")),
        refused("target-relative", "", target(b"a")),
        refused("target-dot", "", target(b"./a")),
        refused("target-query-alone", "", target(b"?a=b")),
        refused("target-empty", "RFC 9112 § 3", target(b"")),
        refused("target-space", "RFC 9112 § 3.2", target(b"/a b")),
        refused("target-tab", "RFC 9112 § 3.2", target(b"/a\tb")),
        refused("target-nul", "RFC 9112 § 3.2", target(b"/a\0b")),
        refused("target-control", "RFC 9112 § 3.2", target(b"/a\x01b")),
        refused("target-delete", "RFC 9112 § 3.2", target(b"/a\x7fb")),
        refused("target-bare-cr", "RFC 9112 § 2.2", target(b"/a\rb")),
        refused("target-bare-lf", "RFC 9112 § 2.2", target(b"/a\nb")),
        refused("target-utf-8", "RFC 3986 § 2", target(b"/\xc3\xa9")),
        passed("target-at-limit", "RFC 9112 § 3", target(b"/" + b"x" * 8191)),
        refused("target-over-limit", "RFC 9110 § 15.5.15", target(b"/" + b"x" * 8192), 414),
        refused("target-far-over-limit", "RFC 9110 § 15.5.15", target(b"/" + b"x" * 20_000), 414),
        refused("target-endless", "RFC 9112 § 3", b"GET /" + b"x" * 40_000, 414, 431, is_open=True),
    ),
)

FORMS = under(
    "RFC 9112 § 3.2.2",
    (
        passed("absolute", "", target(b"http://a/b?c"), b"GET /b?c HTTP/1.1", holds=(HOST,)),
        passed("absolute-port", "", target(b"http://b:81/c"), b"GET /c HTTP/1.1", holds=(b"Host: b:81",)),
        passed("absolute-upper-case", "RFC 3986 § 3.1", target(b"HTTP://a/b"), b"GET /b HTTP/1.1"),
        passed("absolute-no-path", "RFC 9112 § 3.2.1", target(b"http://a"), b"GET / HTTP/1.1"),
        passed("absolute-query-alone", "RFC 9112 § 3.2.1", target(b"http://a?b"), b"GET /?b HTTP/1.1"),
        passed("absolute-ipv6", "RFC 3986 § 3.2.2", target(b"http://[::1]:8/b"), b"GET /b HTTP/1.1"),
        passed(
            "absolute-options", "RFC 9112 § 3.2.4", line(b"OPTIONS http://a HTTP/1.1"), b"OPTIONS * HTTP/1.1"
        ),
        passed(
            "absolute-replaces-host",
            "",
            lines(b"GET http://b/ HTTP/1.1", HOST),
            b"GET / HTTP/1.1",
            holds=(b"Host: b",),
            lacks=(HOST,),
        ),
        refused("absolute-without-host", "RFC 9112 § 3.2", lines(b"GET http://a/ HTTP/1.1")),
        refused("absolute-bad-host-field", "RFC 9112 § 3.2", lines(b"GET http://a/ HTTP/1.1", b"Host: a/b")),
        refused("absolute-two-hosts", "RFC 9112 § 3.2", lines(b"GET http://a/ HTTP/1.1", HOST, HOST)),
        refused("absolute-userinfo", "RFC 9110 § 4.2.4", target(b"http://u:p@a/")),
        refused("absolute-no-authority", "RFC 9110 § 4.2.1", target(b"http:///b")),
        refused("absolute-bad-port", "RFC 3986 § 3.2.3", target(b"http://a:b/")),
        refused("absolute-bad-authority", "RFC 3986 § 3.2.2", target(b"http://a[b/")),
        refused("absolute-other-scheme", "RFC 9110 § 4.2", target(b"ftp://a/b")),
        refused("absolute-one-slash", "RFC 9110 § 4.2.1", target(b"http:/a/b")),
        refused("authority-form", "RFC 9112 § 3.2.3", target(b"a:80")),
        passed("asterisk-options", "RFC 9112 § 3.2.4", line(b"OPTIONS * HTTP/1.1")),
        refused("asterisk-get", "RFC 9112 § 3.2.4", target(b"*")),
        refused("asterisk-and-more", "RFC 9112 § 3.2.4", line(b"OPTIONS *a HTTP/1.1")),
    ),
)

VERSIONS = under(
    "RFC 9112 § 2.3",
    (
        passed("version-10", "RFC 9112 § 9.3", line(b"GET / HTTP/1.0"), b"GET / HTTP/1.1", end="closed"),
        refused("version-12", "RFC 9110 § 2.5", line(b"GET / HTTP/1.2"), 400, 505),
        refused("version-20", "RFC 9110 § 15.6.6", line(b"GET / HTTP/2.0"), 505, 400),
        refused("version-30", "RFC 9110 § 15.6.6", line(b"GET / HTTP/3.0"), 400, 505),
        refused("version-09-spelled", "RFC 9110 § 15.6.6", line(b"GET / HTTP/0.9"), 505, 400),
        refused("version-09-simple", "RFC 9112 § 3", b"GET /\r\n\r\n"),
        refused("version-lower-case", "", line(b"GET / http/1.1")),
        refused("version-no-minor", "", line(b"GET / HTTP/1"), 400, 505),
        refused("version-no-dot", "", line(b"GET / HTTP/11"), 400, 505),
        refused("version-two-digits", "", line(b"GET / HTTP/1.10"), 400, 505),
        refused("version-leading-zero", "", line(b"GET / HTTP/01.1"), 400, 505),
        refused("version-space-inside", "", line(b"GET / HTTP/ 1.1")),
        refused("version-of-rtsp", "", line(b"GET / RTSP/1.0"), 400, 505),
        refused("version-of-ice", "", line(b"SOURCE / ICE/1.0"), 400, 505),
        refused("tls-hello", "RFC 9112 § 3", b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03" + b"\r\n" * 3),
    ),
)

SPACES = under(
    "RFC 9112 § 3",
    (
        refused("line-two-spaces", "", line(b"GET  / HTTP/1.1")),
        refused("line-two-spaces-later", "", line(b"GET /  HTTP/1.1")),
        refused("line-tab", "", line(b"GET\t/ HTTP/1.1")),
        refused("line-leading-space", "", line(b" GET / HTTP/1.1")),
        refused("line-trailing-space", "", line(b"GET / HTTP/1.1 ")),
        refused("line-fourth-word", "", line(b"GET / a HTTP/1.1")),
        refused("line-one-word", "", line(b"GET")),
        refused("line-of-a-response", "RFC 9112 § 2.1", lines(b"HTTP/1.1 200 OK", b"Content-Length: 0")),
        refused("line-ends-in-lf", "RFC 9112 § 2.2", b"GET / HTTP/1.1\nHost: a\r\n\r\n"),
        refused("line-ends-in-cr", "RFC 9112 § 2.2", b"GET / HTTP/1.1\rHost: a\r\n\r\n"),
        refused("line-ends-in-cr-cr-lf", "RFC 9112 § 2.2", b"GET / HTTP/1.1\r\r\nHost: a\r\n\r\n"),
        passed("before-empty-line", "RFC 9112 § 2.2", b"\r\n" + request(), b"GET / HTTP/1.1"),
        passed("before-empty-lines", "RFC 9112 § 2.2", b"\r\n\r\n\r\n" + request(), b"GET / HTTP/1.1"),
        refused("before-bare-lf", "RFC 9112 § 2.2", b"\n" + request()),
        refused("before-bare-cr", "RFC 9112 § 2.2", b"\r" + request()),
        refused("before-space-line", "RFC 9112 § 2.2", b" \r\n" + request()),
        refused("before-nul", "RFC 9112 § 2.2", b"\0" + request()),
    ),
)

ROWS: tuple[Row, ...] = (*METHODS, *TARGETS, *FORMS, *VERSIONS, *SPACES)
