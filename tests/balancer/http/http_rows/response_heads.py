"""Rows: the head of a worker's response (RFC 9112 § 4, RFC 9110 §§ 5 and 15), and what comes before the last one."""

from __future__ import annotations

from typing import Any

from tests.balancer.http.http_rows.row import Row, answered, broken, lines, passed, request, under

OK = b"HTTP/1.1 200 OK"
EMPTY = b"Content-Length: 0"
TWO = b"Content-Length: 2"


def status(line: bytes) -> bytes:
    """A response without a body, of this status line."""
    return lines(line, EMPTY)


def fields(*those: bytes) -> bytes:
    """A 200 with these fields and a body."""
    return lines(OK, *those, TWO) + b"ok"


def reason(name: str, phrase: bytes) -> Row:
    """A reason phrase that survives."""
    return answered(name, "", status(b"HTTP/1.1 200" + phrase), gets_exact=(b"HTTP/1.1 200%b\r\n" % phrase,))


STATUS_LINES = under(
    "RFC 9112 § 4",
    (
        reason("reason-usual", b" OK"),
        reason("reason-odd", b" Most certainly; it's (all) fine"),
        reason("reason-obs-text", b" Sch\xf6n"),
        reason("reason-utf-8", b" \xe2\x82\xac"),
        reason("reason-tab", b" a\tb"),
        reason("reason-empty", b" "),
        answered("reason-missing", "", status(b"HTTP/1.1 200"), gets_exact=(b"HTTP/1.1 200",)),
        answered("status-unknown", "RFC 9110 § 15", status(b"HTTP/1.1 299 Hm"), 299),
        answered(
            "status-404", "RFC 9110 § 15", status(b"HTTP/1.1 404 No"), 404, gets_exact=(b" 404 No\r\n",)
        ),
        answered(
            "status-500", "RFC 9110 § 15", status(b"HTTP/1.1 500 Ah"), 500, gets_exact=(b" 500 Ah\r\n",)
        ),
        answered("status-599", "RFC 9110 § 15", status(b"HTTP/1.1 599 Eh"), 599),
        broken("status-two-digits", "", status(b"HTTP/1.1 20 OK")),
        broken("status-four-digits", "", status(b"HTTP/1.1 2000 OK")),
        broken("status-letters", "", status(b"HTTP/1.1 2x0 OK")),
        broken("status-leading-zero", "RFC 9110 § 15", status(b"HTTP/1.1 099 OK")),
        broken("status-missing", "", status(b"HTTP/1.1 OK")),
        broken("status-minus", "", status(b"HTTP/1.1 -20 OK")),
        broken("status-two-spaces", "", status(b"HTTP/1.1  200 OK")),
        broken("status-tab", "", status(b"HTTP/1.1\t200 OK")),
        broken("status-version-20", "RFC 9110 § 2.5", status(b"HTTP/2.0 200 OK")),
        broken("status-version-12", "RFC 9110 § 2.5", status(b"HTTP/1.2 200 OK")),
        broken("status-version-lower-case", "RFC 9112 § 2.3", status(b"http/1.1 200 OK")),
        broken("status-of-icy", "", status(b"ICY 200 OK")),
        broken("status-no-head", "", b"hello\n", last="fin"),
        broken("status-of-a-request", "RFC 9112 § 2.1", request()),
        broken("status-nothing", "RFC 9112 § 8", b"\r\n\r\n", last="fin"),
        broken("status-reason-control", "", status(b"HTTP/1.1 200 O\x01K")),
        broken("status-reason-nul", "", status(b"HTTP/1.1 200 O\0K")),
        broken("status-reason-cr", "RFC 9112 § 2.2", status(b"HTTP/1.1 200 O\rK")),
        broken("status-ends-in-lf", "RFC 9112 § 2.2", b"HTTP/1.1 200 OK\nContent-Length: 0\r\n\r\n"),
        broken("head-cut-short", "RFC 9112 § 8", b"HTTP/1.1 200 OK\r\nX: y", last="fin"),
        broken("head-reset", "RFC 9112 § 8", b"HTTP/1.1 200 OK\r\nX: y", last="rst"),
    ),
)

FIELDS = under(
    "RFC 9112 § 5.1",
    (
        answered(
            "set-cookie-repeated",
            "RFC 6265 § 3",
            fields(b"Set-Cookie: a=b", b"Set-Cookie: c=d"),
            gets=(b"Set-Cookie: a=b", b"Set-Cookie: c=d"),
            gets_body=b"ok",
        ),
        answered(
            "answer-case-and-order",
            "RFC 9110 § 5.3",
            fields(b"b:1", b"A:  2", b"b: 3"),
            gets_exact=(b"\r\nb:1\r\nA:  2\r\nb: 3\r\n",),
        ),
        answered("answer-obs-text", "RFC 9110 § 5.5", fields(b"X: \xe4\xff"), gets=(b"X: \xe4\xff",)),
        answered("answer-empty-value", "RFC 9110 § 5.5", fields(b"X:"), gets=(b"X:",)),
        answered(
            "answer-long-field", "RFC 9110 § 5.4", fields(b"X: " + b"x" * 7000), gets=(b"X: " + b"x" * 7000,)
        ),
        answered(
            "answer-server-and-date",
            "RFC 9110 § 10.2.4",
            fields(b"Server: s", b"Date: d"),
            gets=(b"Server: s", b"Date: d"),
        ),
        answered(
            "answer-nominates",
            "RFC 9110 § 7.6.1",
            fields(b"Connection: x-a", b"X-A: 1", b"X-B: 2"),
            gets=(b"X-B: 2",),
            gets_not=(b"x-a", b"connection: x-a"),
        ),
        answered(
            "answer-hop-by-hop",
            "RFC 9110 § 7.6.1",
            fields(b"Keep-Alive: timeout=5", b"Proxy-Connection: keep-alive", b"Upgrade: h2c"),
            gets_not=(b"Keep-Alive: timeout=5", b"proxy-connection", b"upgrade"),
        ),
        answered(
            "answer-close",
            "RFC 9112 § 9.6",
            fields(b"Connection: close"),
            gets_not=(b"connection: close",),
            gets_body=b"ok",
            last="fin",
        ),
        answered("answer-close-says-nothing", "RFC 9112 § 9.3", fields(), gets_body=b"ok", last="fin"),
        broken("answer-space-before-colon", "", fields(b"X : y")),
        broken("answer-no-colon", "RFC 9112 § 5", fields(b"X y")),
        broken("answer-empty-name", "RFC 9110 § 5.1", fields(b": y")),
        broken("answer-space-in-name", "RFC 9110 § 5.1", fields(b"X Y: z")),
        broken("answer-folded", "RFC 9112 § 5.2", fields(b"X: y", b" z")),
        broken("answer-nul", "RFC 9110 § 5.5", fields(b"X: a\0")),
        broken("answer-control", "RFC 9110 § 5.5", fields(b"X: a\x01b")),
        broken("answer-bare-cr", "RFC 9112 § 2.2", fields(b"X: a\rb")),
        broken("answer-bare-lf", "RFC 9112 § 2.2", fields(b"X: a\nY: b")),
        broken("answer-ends-in-lf", "RFC 9112 § 2.2", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\n"),
        broken("answer-space-before-first", "RFC 9112 § 2.2", lines(OK, b" X: y", EMPTY)),
        broken("answer-over-limit", "RFC 9110 § 5.4", fields(b"X: " + b"x" * 70_000)),
        broken("answer-endless", "RFC 9110 § 5.4", fields(*(b"X: " + b"x" * 9000,) * 20)[:-8]),
        broken("answer-too-many-fields", "RFC 9110 § 5.4", fields(*(b"X: y",) * 1000)),
    ),
)

FINAL = lines(OK, TWO) + b"ok"


def interim(name: str, clause: str, first: bytes, *statuses: int, **more: Any) -> Row:
    """Interim responses, which the client gets before the final one."""
    return answered(name, clause, first + FINAL, **{"interims": statuses, "gets_body": b"ok", **more})


HINT = b"HTTP/1.1 103 A\r\n"
WAIT = b"HTTP/1.1 102 Wait\r\n"
INTERIM = under(
    "RFC 9110 § 15.2",
    (
        interim("interim-100-unasked", "", b"HTTP/1.1 100 Continue\r\n\r\n", 100),
        interim("interim-102", "", WAIT + b"\r\n", 102, gets_exact=(WAIT,)),
        interim(
            "interim-103",
            "RFC 8297 § 2",
            b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n",
            103,
            gets=(b"Link: </a>",),
        ),
        interim("interim-several", "", (HINT + b"X: y\r\n\r\n") * 3, 103, 103, 103),
        interim("interim-unknown", "", b"HTTP/1.1 199 Eh\r\n\r\n", 199),
        interim(
            "interim-to-10",
            "",
            HINT + b"\r\n",
            sent=lines(b"GET / HTTP/1.0", b"Host: a"),
            lines=(b"GET / HTTP/1.1",),
            end="closed",
        ),
        interim("interim-with-length", "RFC 9110 § 8.6", HINT + b"Content-Length: 5\r\n\r\n", 103),
        broken("interim-and-nothing", "RFC 9112 § 8", HINT + b"\r\n", interims=(103,), last="fin"),
        broken("interim-and-garbage", "RFC 9112 § 4", HINT + b"\r\nhello\r\n\r\n", interims=(103,)),
        passed(
            "head-of-default",
            "RFC 9110 § 9.3.2",
            request(line=b"HEAD /abc HTTP/1.1"),
            gets=(b"Content-Length: 4",),
        ),
    ),
)

ROWS: tuple[Row, ...] = (*STATUS_LINES, *FIELDS, *INTERIM)
