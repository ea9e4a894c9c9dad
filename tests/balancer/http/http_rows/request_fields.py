"""Rows: Host (RFC 9112 § 3.2), and the syntax and size of fields (RFC 9110 § 5, RFC 9112 § 5)."""

from __future__ import annotations

from tests.balancer.http.http_rows.row import Row, lines, passed, refused, request, under

GET = b"GET / HTTP/1.1"


def host(value: bytes) -> bytes:
    return lines(GET, b"Host: " + value)


def many(count: int) -> bytes:
    """A request with so many fields, Host among them."""
    return request(*(b"X-%d: x" % i for i in range(count - 1)))


def good_host(name: str, clause: str, value: bytes) -> Row:
    """It reaches the worker as it is."""
    return passed(name, clause, host(value), holds=(b"Host: " + value,))


HOSTS = under(
    "RFC 9112 § 3.2",
    (
        refused("host-missing", "", lines(GET)),
        passed("host-missing-10", "", lines(b"GET / HTTP/1.0"), GET, end="closed"),
        refused("host-twice", "", lines(GET, b"Host: a", b"Host: a")),
        refused("host-twice-apart", "", lines(GET, b"Host: a", b"X: y", b"hOST: b")),
        refused("host-twice-10", "", lines(b"GET / HTTP/1.0", b"Host: a", b"Host: b")),
        refused("host-empty", "RFC 9110 § 4.2.1", host(b"")),
        refused("host-list", "", host(b"a, b")),
        refused("host-two-words", "", host(b"a b")),
        refused("host-path", "", host(b"a/b")),
        refused("host-query", "", host(b"a?b")),
        refused("host-fragment", "", host(b"a#b")),
        refused("host-url", "", host(b"http://a")),
        refused("host-userinfo", "RFC 9110 § 7.2", host(b"u@a")),
        refused("host-backslash", "RFC 3986 § 3.2.2", host(b"a\\b")),
        refused("host-angle-brackets", "RFC 3986 § 3.2.2", host(b"<a>")),
        refused("host-bad-percent", "RFC 3986 § 2.1", host(b"%zz")),
        refused("host-high-byte", "RFC 3986 § 3.2.2", host(b"\xe4")),
        refused("host-port-letters", "RFC 3986 § 3.2.3", host(b"a:b")),
        refused("host-two-ports", "RFC 3986 § 3.2.3", host(b"a:1:2")),
        refused("host-port-alone", "RFC 9110 § 4.2.1", host(b":80")),
        refused("host-bare-ipv6", "RFC 3986 § 3.2.2", host(b"::1")),
        refused("host-open-ipv6", "RFC 3986 § 3.2.2", host(b"[::1")),
        refused("host-bad-ipv6", "RFC 3986 § 3.2.2", host(b"[a/b]")),
        refused("host-behind-ipv6", "RFC 3986 § 3.2.2", host(b"[::1]a")),
        good_host("host-port", "RFC 9110 § 7.2", b"a:8080"),
        good_host("host-empty-port", "RFC 3986 § 3.2.3", b"a:"),
        good_host("host-ipv4", "RFC 3986 § 3.2.2", b"127.0.0.1:80"),
        good_host("host-ipv6", "RFC 3986 § 3.2.2", b"[::1]"),
        good_host("host-ipv6-port", "RFC 3986 § 3.2.2", b"[2001:db8::7]:80"),
        good_host("host-upper-case", "RFC 3986 § 3.2.2", b"EXAMPLE.org"),
        good_host("host-trailing-dot", "RFC 3986 § 3.2.2", b"a.example."),
        good_host("host-underscore", "RFC 3986 § 2.3", b"a_b"),
        good_host("host-sub-delims", "RFC 3986 § 3.2.2", b"a!$&'()*+;=b"),
        good_host("host-percent", "RFC 3986 § 3.2.2", b"%61b"),
        passed("host-spaces-around", "RFC 9112 § 5.1", lines(GET, b"hOsT: \t a \t"), holds=(b"Host: a",)),
    ),
)

SYNTAX = under(
    "RFC 9112 § 5.1",
    (
        refused("field-space-before-colon", "", request(b"X : y")),
        refused("field-tab-before-colon", "", request(b"X\t: y")),
        refused("field-no-colon", "RFC 9112 § 5", request(b"X y")),
        refused("field-empty-name", "RFC 9110 § 5.1", request(b": y")),
        refused("field-space-in-name", "RFC 9110 § 5.1", request(b"X Y: z")),
        refused("field-parenthesis-in-name", "RFC 9110 § 5.6.2", request(b"X(Y): z")),
        refused("field-quote-in-name", "RFC 9110 § 5.6.2", request(b'"X": z')),
        refused("field-nul-in-name", "RFC 9110 § 5.6.2", request(b"X\0Y: z")),
        refused("field-high-byte-in-name", "RFC 9110 § 5.6.2", request(b"X\xe4: z")),
        refused("field-cr-in-name", "RFC 9112 § 2.2", request(b"X\rY: z")),
        refused("field-space-before-first", "RFC 9112 § 2.2", lines(GET, b" Host: a", b"Host: a")),
        refused("field-folded", "RFC 9112 § 5.2", request(b"X: y", b" z")),
        refused("field-folded-tab", "RFC 9112 § 5.2", request(b"X: y", b"\tz: a")),
        refused("field-folded-empty", "RFC 9112 § 5.2", request(b"X:", b" ", b"Y: z")),
        refused("field-folded-host", "RFC 9112 § 5.2", lines(GET, b"Host: a", b" b")),
        refused("field-nul", "RFC 9110 § 5.5", request(b"X: a\0b")),
        refused("field-control", "RFC 9110 § 5.5", request(b"X: a\x01b")),
        refused("field-bell", "RFC 9110 § 5.5", request(b"X: a\x07b")),
        refused("field-vertical-tab", "RFC 9110 § 5.5", request(b"X: a\x0bb")),
        refused("field-delete", "RFC 9110 § 5.5", request(b"X: a\x7fb")),
        refused("field-bare-cr", "RFC 9112 § 2.2", request(b"X: a\rb")),
        refused("field-cr-at-the-end", "RFC 9112 § 2.2", request(b"X: a\r")),
        refused("field-bare-lf", "RFC 9112 § 2.2", request(b"X: a\nY: b")),
        refused("field-lf-before-folded", "RFC 9112 § 5.2", request(b"X: a\n b")),
        refused("head-ends-in-lf", "RFC 9112 § 2.2", b"GET / HTTP/1.1\r\nHost: a\r\n\n"),
        refused("head-all-lf", "RFC 9112 § 2.2", b"GET / HTTP/1.1\nHost: a\n\n"),
        passed("field-every-token-byte", "RFC 9110 § 5.6.2", request(b"X!#$%&'*+-.^_`|~9: y")),
        passed("field-underscore", "RFC 9110 § 5.1", request(b"X_Y: z"), holds=(b"X_Y: z",)),
        passed("field-empty-value", "RFC 9110 § 5.5", request(b"X:"), holds=(b"X:",)),
        passed("field-blank-value", "RFC 9110 § 5.5", request(b"X: \t "), holds=(b"X:",)),
        passed("field-tab-inside", "RFC 9110 § 5.5", request(b"X: a\tb"), holds=(b"X: a\tb",)),
        passed("field-tabs-around", "", request(b"X:\ta\t"), holds=(b"X: a",)),
        passed("field-obs-text", "RFC 9110 § 5.5", request(b"X: \x80\xff\xe4"), holds=(b"X: \x80\xff\xe4",)),
        passed("field-utf-8", "RFC 9110 § 5.5", request(b"X: \xe2\x82\xac"), holds=(b"X: \xe2\x82\xac",)),
        passed("field-colons", "RFC 9110 § 5.5", request(b"X: :a:b"), holds=(b"X: :a:b",)),
        passed("field-case-and-space", "RFC 9110 § 5.3", request(b"x-Ab:c"), exact=(b"\r\nx-Ab:c\r\n",)),
        passed(
            "field-order-and-repetition",
            "RFC 9110 § 5.3",
            request(b"B: 1", b"A: 2", b"B: 3"),
            exact=(b"\r\nB: 1\r\nA: 2\r\nB: 3\r\n",),
        ),
        passed(
            "field-two-cookies",
            "RFC 6265 § 5.4",
            request(b"Cookie: a=b", b"Cookie: c=d"),
            holds=(b"Cookie: a=b", b"Cookie: c=d"),
        ),
    ),
)


def alias(name: str, field: bytes, *also: bytes) -> Row:
    """A CGI or WSGI worker takes this name for another one: it does not reach the worker, its neighbour does."""
    sent = request(field + b": 192.0.2.66", *also, b"X-Y: kept")
    return passed(
        name, "", sent, holds=(b"X-Y: kept",), lacks=(field, *(each.partition(b":")[0] for each in also))
    )


ALIASES = under(
    "RFC 3875 § 4.1.18",
    (
        alias("alias-forwarded-for", b"X_Forwarded_For"),
        alias("alias-forwarded-for-half", b"X-Forwarded_For"),
        alias("alias-forwarded-for-other-half", b"x_forwarded-for"),
        alias("alias-forwarded-proto", b"X_FORWARDED_PROTO"),
        alias("alias-forwarded-any", b"X_Forwarded_Port"),
        alias("alias-real-ip", b"X_Real-IP"),
        alias("alias-dots", b"X.Forwarded.For"),
        alias("alias-request-id", b"X-Request_ID"),
        alias("alias-twice", b"X_Forwarded_For", b"x-forwarded_host: b"),
        passed("alias-of-nothing", "", request(b"X_Forwarder: y"), holds=(b"X_Forwarder: y",)),
        passed(
            "alias-nominated", "", request(b"Connection: X_Real_IP", b"X_Real_IP: y"), lacks=(b"X_Real_IP",)
        ),
    ),
)

LONG = b"x" * 12_000
SIZES = under(
    "RFC 6585 § 5",
    (
        passed("field-long", "RFC 9110 § 5.4", request(b"X: " + LONG), holds=(b"X: " + LONG,)),
        passed("fields-at-limit", "RFC 9110 § 5.4", many(100)),
        refused("fields-over-limit", "", many(101), 431),
        refused("fields-far-over-limit", "", many(2000), 431),
        refused("field-over-limit", "", request(b"X: " + b"x" * 33_000), 431),
        refused("field-name-over-limit", "", request(b"x" * 33_000 + b": y"), 431),
        refused("head-over-limit", "", request(*(b"X: " + b"x" * 4000,) * 9), 431),
        refused("head-endless", "", request(b"X: " + b"x" * 60_000)[:-4], 431, is_open=True),
    ),
)

ROWS: tuple[Row, ...] = (*HOSTS, *SYNTAX, *ALIASES, *SIZES)
