"""Rows: where a response's body ends (RFC 9112 § 6.3), and what must not reach the next one."""

from __future__ import annotations

from typing import Any

from tests.balancer.http.http_rows.request_framing import OPEN_TRAILERS
from tests.balancer.http.http_rows.row import Row, answered, broken, cut, lines, request, under

OK = b"HTTP/1.1 200 OK"
OLD = b"HTTP/1.0 200 OK"
CHUNKED = b"Transfer-Encoding: chunked"
TWO = b"Content-Length: 2"
OLD_CLIENT = lines(b"GET / HTTP/1.0", b"Host: a")
OLD_POST: dict[str, Any] = {"sent": lines(b"POST / HTTP/1.0", b"Host: a"), "lines": (b"POST / HTTP/1.1",)}
OLD_CLIENT_STAYS = lines(b"GET / HTTP/1.0", b"Host: a", b"Connection: keep-alive")
GHOST = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nghost"
HEAD = request(line=b"HEAD / HTTP/1.1")
LAST = b"0\r\n\r\n"
WHOLE = b"2\r\nok\r\n" + LAST


def length(value: bytes, body: bytes = b"ok") -> bytes:
    """A 200 of this Content-Length."""
    return lines(OK, b"Content-Length: " + value) + body


def chunks(body: bytes, *fields: bytes) -> bytes:
    """A 200 in chunks, as they stand in `body`."""
    return lines(OK, CHUNKED, *fields) + body


def trailing(*trailers: bytes) -> bytes:
    """A 200 in chunks with these trailers."""
    return chunks(b"2\r\nok\r\n0\r\n" + lines(*trailers))


def good(name: str, clause: str, answer: bytes, body: bytes = b"ok", **more: Any) -> Row:
    """It reaches the client with this body, and the next request is untouched."""
    return answered(name, clause, answer, **{"gets_body": body, **more})


def old(name: str, clause: str, answer: bytes, **more: Any) -> Row:
    """As `good`, to an HTTP/1.0 client, which gets no chunks."""
    usual = {"sent": OLD_CLIENT, "lines": (b"GET / HTTP/1.1",), "end": "closed"}
    return good(name, clause, answer, **{**usual, "gets_not": (b"transfer-encoding",), **more})


def bodiless(name: str, clause: str, answer: bytes, status: int, **more: Any) -> Row:
    """A response of this status without a body, whatever the worker sends behind the head."""
    return answered(name, clause, answer, status, **{"gets_body": b"", **more})


LENGTHS = under(
    "RFC 9112 § 6.3",
    (
        good("answer-length", "", length(b"2")),
        good("answer-length-zero", "", length(b"0", b""), b""),
        good("answer-length-zeros", "RFC 9110 § 8.6", length(b"002"), gets=(TWO,)),
        good("answer-length-tab", "RFC 9112 § 5.1", length(b"\t2 "), gets=(TWO,)),
        good("answer-length-spaces", "RFC 9112 § 5.1", length(b"  2"), gets=(TWO,)),
        broken("answer-length-twice", "", lines(OK, TWO, TWO) + b"ok"),
        broken("answer-length-twice-different", "", lines(OK, TWO, b"Content-Length: 3") + b"ok!"),
        broken("answer-length-list", "", length(b"2, 2")),
        broken("answer-length-list-different", "", length(b"2, 3")),
        broken("answer-length-plus", "RFC 9110 § 8.6", length(b"+2")),
        broken("answer-length-minus", "RFC 9110 § 8.6", length(b"-2")),
        broken("answer-length-hex", "RFC 9110 § 8.6", length(b"0x2")),
        broken("answer-length-word", "RFC 9110 § 8.6", length(b"two")),
        broken("answer-length-empty", "RFC 9110 § 8.6", length(b"")),
        broken("answer-length-two-words", "RFC 9110 § 8.6", length(b"2 2")),
        broken("answer-length-2-64", "", length(b"18446744073709551618")),
        cut("answer-length-cut", "RFC 9112 § 8", length(b"9"), last="fin"),
        cut("answer-length-reset", "RFC 9112 § 8", length(b"9"), last="rst"),
        cut("answer-length-nothing", "RFC 9112 § 8", length(b"9", b""), last="fin"),
        cut("answer-length-cut-to-10", "RFC 9112 § 8", length(b"9"), last="fin", **OLD_POST),
        old("answer-length-to-10", "RFC 9112 § 9.3", length(b"2")),
        old(
            "answer-length-to-10-stays",
            "RFC 9112 § 9.3",
            length(b"2"),
            sent=OLD_CLIENT_STAYS,
            end="kept",
            gets=(b"Connection: keep-alive",),
        ),
    ),
)

CODINGS = under(
    "RFC 9112 § 6.3",
    (
        good("answer-chunked", "RFC 9112 § 7.1", chunks(WHOLE)),
        good("answer-chunked-two", "RFC 9112 § 7.1", chunks(b"1\r\no\r\n01\r\nk\r\n000\r\n\r\n")),
        good("answer-chunked-empty", "RFC 9112 § 7.1", chunks(LAST), b""),
        good(
            "answer-chunked-case",
            "RFC 9112 § 7",
            lines(OK, b"transfer-encoding: CHUNKED") + WHOLE,
            gets=(CHUNKED,),
        ),
        good(
            "answer-chunked-tab",
            "RFC 9112 § 5.1",
            lines(OK, b"Transfer-Encoding:\tchunked") + WHOLE,
            gets=(CHUNKED,),
        ),
        good("answer-coding-tab-behind", "RFC 9112 § 5.1", lines(OK, CHUNKED + b"\t") + WHOLE),
        good("answer-chunk-extension", "RFC 9112 § 7.1.1", chunks(b'2;a="b"\r\nok\r\n0;c\r\n\r\n')),
        good("answer-trailer", "RFC 9112 § 7.1.2", trailing(b"X: y"), gets_trailers=(b"X: y",)),
        good(
            "answer-trailers",
            "RFC 9112 § 7.1.2",
            trailing(b"B: 1", b"A: 2"),
            gets_trailers=(b"B: 1", b"A: 2"),
        ),
        good(
            "answer-trailer-length",
            "RFC 9110 § 6.5.1",
            trailing(b"Content-Length: 9", b"X: y"),
            gets_trailers=(b"X: y",),
        ),
        good(
            "answer-trailer-coding",
            "RFC 9110 § 6.5.1",
            trailing(b"Transfer-Encoding: gzip", b"X: y"),
            gets_trailers=(b"X: y",),
        ),
        old("answer-chunked-to-10", "RFC 9112 § 7", chunks(WHOLE)),
        old("answer-trailer-to-10", "RFC 9112 § 7.1.2", trailing(b"X: y")),
        old("answer-chunked-to-10-stays", "RFC 9112 § 9.3", chunks(WHOLE), sent=OLD_CLIENT_STAYS),
        broken("answer-length-and-coding", "", lines(OK, TWO, CHUNKED) + WHOLE),
        broken("answer-coding-and-length", "", lines(OK, CHUNKED, TWO) + WHOLE),
        broken("answer-coding-gzip", "", lines(OK, b"Transfer-Encoding: gzip") + b"ok", last="fin"),
        broken(
            "answer-coding-gzip-chunked",
            "RFC 9112 § 7",
            lines(OK, b"Transfer-Encoding: gzip, chunked") + WHOLE,
        ),
        broken("answer-coding-twice", "RFC 9112 § 6.1", chunks(WHOLE, CHUNKED)),
        broken(
            "answer-coding-identity", "RFC 9112 § 7", lines(OK, b"Transfer-Encoding: identity", TWO) + b"ok"
        ),
        broken("answer-coding-prefix", "RFC 9112 § 7", lines(OK, b"Transfer-Encoding: xchunked") + WHOLE),
        broken("answer-coding-empty", "RFC 9112 § 6.1", lines(OK, b"Transfer-Encoding:") + b"ok", last="fin"),
        good("answer-coding-10", "RFC 9112 § 6.1", lines(OLD, CHUNKED) + WHOLE),
    ),
)

CHUNKS = under(
    "RFC 9112 § 7.1",
    (
        cut("answer-chunk-word", "", chunks(b"2\r\nok\r\nzz\r\n")),
        cut("answer-chunk-minus", "", chunks(b"2\r\nok\r\n-1\r\n")),
        cut("answer-chunk-no-size", "", chunks(b"2\r\nok\r\n\r\n\r\n")),
        cut("answer-chunk-no-crlf", "", chunks(b"2\r\nok!!" + LAST)),
        cut("answer-chunk-lf", "RFC 9112 § 2.2", chunks(b"2\nok\r\n" + LAST)),
        cut("answer-chunk-lf-behind", "RFC 9112 § 2.2", chunks(b"2\r\nok\n" + LAST)),
        cut("answer-chunk-2-64", "", chunks(b"10000000000000002\r\nok\r\n" + LAST)),
        cut("answer-extension-lf", "RFC 9112 § 2.2", chunks(b"2;a\nok\r\n" + LAST)),
        cut("answer-extension-nul", "RFC 9110 § 5.5", chunks(b"2;a\0\r\nok\r\n" + LAST)),
        cut("answer-trailer-bad", "RFC 9112 § 5.1", chunks(b"2\r\nok\r\n0\r\nX : y\r\n\r\n")),
        cut("answer-trailer-nul", "RFC 9110 § 5.5", chunks(b"2\r\nok\r\n0\r\nX: \0\r\n\r\n")),
        cut("answer-chunk-lf-at-the-end", "RFC 9112 § 2.2", chunks(b"2\r\nok\r\n0\r\n\n")),
        cut("answer-chunk-size-cr-open", "RFC 9112 § 2.2", chunks(b"2\rX")),
        cut("answer-extension-nul-open", "RFC 9110 § 5.5", chunks(b"2;a\0")),
        *(
            cut(f"answer-trailer-{name}-open", clause, chunks(b"2\r\nok\r\n0\r\n" + sent))
            for name, clause, sent in OPEN_TRAILERS
        ),
        cut("answer-chunked-cut", "RFC 9112 § 8", chunks(b"9\r\nok"), last="fin"),
        cut("answer-chunked-no-last", "RFC 9112 § 8", chunks(b"2\r\nok\r\n"), last="fin"),
        cut("answer-chunked-no-end", "RFC 9112 § 8", chunks(b"2\r\nok\r\n0\r\n"), last="fin"),
        cut("answer-chunked-reset", "RFC 9112 § 8", chunks(b"2\r\nok\r\n"), last="rst"),
        cut(
            "answer-chunked-cut-to-10",
            "RFC 9112 § 8",
            chunks(b"2\r\nok\r\n"),
            last="fin",
            end="cut",
            **OLD_POST,
        ),
    ),
)

CLOSES = under(
    "RFC 9112 § 6.3",
    (
        good("answer-until-close", "", lines(OK) + b"ok", last="fin"),
        good("answer-until-close-empty", "", lines(OK), b"", last="fin"),
        old("answer-until-close-to-10", "", lines(OK) + b"ok", last="fin"),
        cut("answer-until-reset", "RFC 9112 § 8", lines(OK) + b"ok", last="rst"),
        cut("answer-until-reset-to-10", "RFC 9112 § 8", lines(OK) + b"ok", last="rst", end="cut", **OLD_POST),
        good("worker-10-length", "RFC 9112 § 9.3", lines(OLD, TWO) + b"ok", last="fin", gets_exact=(OK,)),
        good(
            "worker-10-stays",
            "RFC 9112 § 9.3",
            lines(OLD, TWO, b"Connection: keep-alive") + b"ok",
            gets_not=(b"connection",),
        ),
        good("worker-10-until-close", "", lines(OLD) + b"ok", last="fin"),
    ),
)

BODILESS = under(
    "RFC 9112 § 6.3",
    (
        good(
            "head-length", "RFC 9110 § 9.3.2", length(b"9", b""), b"", sent=HEAD, gets=(b"Content-Length: 9",)
        ),
        good("head-chunked", "RFC 9110 § 9.3.2", chunks(b""), b"", sent=HEAD),
        good("head-says-nothing", "RFC 9110 § 9.3.2", lines(OK), b"", sent=HEAD),
        good("head-with-body", "RFC 9110 § 9.3.2", length(b"2"), b"", sent=HEAD, last="fin"),
        bodiless("status-204", "RFC 9110 § 15.3.5", lines(b"HTTP/1.1 204 No Content"), 204),
        bodiless(
            "status-204-with-length",
            "RFC 9110 § 8.6",
            lines(b"HTTP/1.1 204 No", b"Content-Length: 0"),
            204,
            gets_not=(b"content-length",),
        ),
        bodiless(
            "status-204-with-body",
            "RFC 9110 § 15.3.5",
            lines(b"HTTP/1.1 204 No", TWO) + b"ok",
            204,
            gets_not=(b"content-length",),
            last="fin",
        ),
        bodiless(
            "status-204-chunked",
            "RFC 9112 § 6.1",
            lines(b"HTTP/1.1 204 No", CHUNKED) + LAST,
            204,
            gets_not=(b"transfer-encoding",),
            last="fin",
        ),
        bodiless("status-304", "RFC 9110 § 15.4.5", lines(b"HTTP/1.1 304 Same", b"ETag: x"), 304),
        bodiless(
            "status-304-with-length",
            "RFC 9110 § 8.6",
            lines(b"HTTP/1.1 304 Same", b"Content-Length: 9"),
            304,
            gets=(b"Content-Length: 9",),
        ),
        bodiless("status-304-chunked", "RFC 9112 § 6.1", lines(b"HTTP/1.1 304 Same", CHUNKED), 304),
        bodiless("status-205", "RFC 9110 § 15.3.6", lines(b"HTTP/1.1 205 Reset", b"Content-Length: 0"), 205),
        bodiless(
            "status-205-with-body",
            "RFC 9110 § 15.3.6",
            lines(b"HTTP/1.1 205 Reset", TWO) + b"ok",
            205,
            gets_body=b"ok",
        ),
    ),
)

BEHIND = under(
    "RFC 9112 § 6.3",
    (
        good("behind-length", "", length(b"2", b"ok and more")),
        good("behind-length-response", "", length(b"2") + GHOST),
        good("behind-chunks", "", chunks(b"2\r\nok\r\n0\r\n\r\nmore")),
        good("behind-chunks-response", "", chunks(WHOLE) + GHOST),
        good("behind-head-response", "RFC 9110 § 9.3.2", length(b"2", b"") + GHOST, b"", sent=HEAD),
        bodiless("behind-204-response", "", lines(b"HTTP/1.1 204 No") + GHOST, 204),
        bodiless("behind-304-response", "", lines(b"HTTP/1.1 304 Same", TWO) + GHOST, 304),
        good("behind-empty-line", "RFC 9112 § 2.2", length(b"2") + b"\r\n"),
        good("behind-nul", "", length(b"2") + b"\0" * 9),
    ),
)

ROWS: tuple[Row, ...] = (*LENGTHS, *CODINGS, *CHUNKS, *CLOSES, *BODILESS, *BEHIND)
