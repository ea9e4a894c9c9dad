"""Rows: where a request's body ends (RFC 9112 §§ 6–7): Content-Length, Transfer-Encoding, chunks and trailers."""

from __future__ import annotations

from tests.balancer.http.http_rows.row import Row, chunked, passed, post, refused, request, stopped, under

GHOST = b"GET /ghost HTTP/1.1\r\nHost: a\r\n\r\n"
"""What would be a request of its own if a body were taken for shorter than it is."""

FIVE = b"5\r\nhello\r\n"
LAST = b"0\r\n\r\n"
TE = b"Transfer-Encoding: "


def length(value: bytes, body: bytes = b"hello") -> bytes:
    """A POST of this Content-Length."""
    return post(b"Content-Length: " + value, body=body)


def coding(value: bytes) -> bytes:
    """A POST of this Transfer-Encoding, with a body in chunks."""
    return post(TE + value, body=FIVE + LAST)


def five(name: str, clause: str, sent: bytes) -> Row:
    """A body of five bytes, with its length as it should be written."""
    return passed(name, clause, sent, body=b"hello", holds=(b"Content-Length: 5",))


LENGTHS = under(
    "RFC 9110 § 8.6",
    (
        passed("length", "", length(b"5"), body=b"hello"),
        passed("length-zero", "", length(b"0", b"")),
        five("length-leading-zeros", "", length(b"0005")),
        passed("length-zeros", "", length(b"000", b""), holds=(b"Content-Length: 0",)),
        five("length-tabs-around", "RFC 9112 § 5.1", length(b"\t5\t")),
        five("length-spaces-around", "RFC 9112 § 5.1", length(b"  5 ")),
        five("length-no-space", "RFC 9112 § 5.1", post(b"content-length:5", body=b"hello")),
        passed("length-of-a-get", "RFC 9110 § 9.3.1", request(b"Content-Length: 2", body=b"ab"), body=b"ab"),
        passed("length-body-is-a-request", "RFC 9112 § 6.3", length(b"%d" % len(GHOST), GHOST), body=GHOST),
        refused("length-other-name", "RFC 3875 § 4.1.18", post(b"Content_Length: 5")),
        refused(
            "length-other-name-too",
            "RFC 3875 § 4.1.18",
            post(b"Content-Length: 5", b"Content_Length: 0", body=b"hello"),
        ),
        passed(
            "length-nominated",
            "RFC 9110 § 7.6.1",
            post(b"Connection: Content-Length", b"Content-Length: 5", body=b"hello"),
            body=b"hello",
        ),
        refused("length-twice", "RFC 9112 § 6.3", post(b"Content-Length: 5", b"Content-Length: 5")),
        refused("length-twice-different", "RFC 9112 § 6.3", post(b"Content-Length: 5", b"Content-Length: 6")),
        refused("length-list", "RFC 9112 § 6.3", length(b"5, 5")),
        refused("length-list-different", "RFC 9112 § 6.3", length(b"5, 6")),
        refused("length-trailing-comma", "", length(b"5,")),
        refused("length-plus", "", length(b"+5")),
        refused("length-minus", "", length(b"-5")),
        refused("length-minus-zero", "", length(b"-0", b"")),
        refused("length-hex", "", length(b"0x5")),
        refused("length-hex-digits", "", length(b"a")),
        refused("length-exponent", "", length(b"5e0")),
        refused("length-point", "", length(b"5.0")),
        refused("length-underscore", "", length(b"1_0")),
        refused("length-two-words", "", length(b"5 5")),
        refused("length-high-byte", "", length(b"\xb2")),
        refused("length-empty", "", length(b"")),
        refused("length-word", "", length(b"five")),
        refused("length-quoted", "", length(b'"5"')),
        refused("length-2-64", "RFC 9112 § 6.3", length(b"18446744073709551616")),
        refused("length-2-64-and-5", "RFC 9112 § 6.3", length(b"18446744073709551621")),
        refused("length-thirty-digits", "RFC 9112 § 6.3", length(b"9" * 30)),
        refused("length-space-before-colon", "RFC 9112 § 5.1", post(b"Content-Length : 5", body=b"hello")),
        refused("length-folded", "RFC 9112 § 5.2", post(b"Content-Length:", b" 5", body=b"hello")),
        refused(
            "length-over-limit", "RFC 9110 § 15.5.14", length(b"70000", b""), 413, limits={"body": 65_536}
        ),
        passed("length-at-limit", "", length(b"5"), body=b"hello", limits={"body": 5}),
        passed("length-more-bytes", "RFC 9112 § 6.3", length(b"3"), body=b"hel", more=(400,), end="closed"),
        stopped("length-cut-short", "RFC 9112 § 8", length(b"9"), end="short", leaves=True),
    ),
)

CODINGS = under(
    "RFC 9112 § 6.1",
    (
        passed("coding-chunked", "", coding(b"chunked"), body=b"hello"),
        passed("coding-case", "RFC 9112 § 7", coding(b"cHUNKeD"), body=b"hello"),
        passed("coding-tab-before", "RFC 9112 § 5.1", coding(b"\tchunked"), body=b"hello"),
        passed("coding-space-behind", "RFC 9112 § 5.1", coding(b"chunked "), body=b"hello"),
        passed("coding-tab-behind", "RFC 9112 § 5.1", coding(b"chunked\t"), body=b"hello"),
        passed("coding-spaces-behind", "RFC 9112 § 5.1", coding(b"\tchunked \t \t"), body=b"hello"),
        refused(
            "coding-tab-behind-and-length",
            "",
            post(TE + b"chunked\t", b"Content-Length: 5", body=FIVE + LAST),
        ),
        refused("coding-tab-behind-twice", "", post(TE + b"chunked\t", TE + b"chunked\t", body=FIVE + LAST)),
        refused("coding-tab-behind-list", "", coding(b"gzip, chunked\t"), 501, 400),
        refused("coding-tab-behind-chunked-chunked", "", coding(b"chunked, chunked\t"), 400, 501),
        refused("coding-tab-behind-gzip", "RFC 9112 § 6.3", coding(b"gzip\t"), 400, 501),
        refused("coding-tab-and-word", "RFC 9112 § 7", coding(b"chunked\tchunked"), 400, 501),
        refused(
            "coding-tab-behind-folded", "RFC 9112 § 5.2", post(TE + b"chunked\t", b" x", body=FIVE + LAST)
        ),
        refused("coding-tab-behind-and-nul", "RFC 9110 § 5.5", post(TE + b"chunked\t", b"X: \0", body=LAST)),
        refused("coding-tab-behind-10", "", request(TE + b"chunked\t", line=b"POST / HTTP/1.0", body=LAST)),
        passed("coding-spaces-around", "RFC 9112 § 5.1", coding(b"  chunked "), body=b"hello"),
        passed(
            "coding-no-space",
            "RFC 9112 § 5.1",
            post(b"tRANSFER-eNCODING:chunked", body=FIVE + LAST),
            body=b"hello",
        ),
        passed(
            "coding-nominated",
            "RFC 9110 § 7.6.1",
            chunked(FIVE + LAST, b"Connection: Transfer-Encoding"),
            body=b"hello",
        ),
        refused("coding-and-length", "", chunked(FIVE + LAST, b"Content-Length: 5")),
        refused("length-and-coding", "", post(b"Content-Length: 5", TE + b"chunked", body=FIVE + LAST)),
        refused("coding-and-length-zero", "", chunked(LAST + GHOST, b"Content-Length: 0")),
        refused("coding-twice", "", chunked(FIVE + LAST, TE + b"chunked")),
        refused("coding-twice-different", "RFC 9112 § 6.3", chunked(FIVE + LAST, TE + b"gzip"), 400, 501),
        refused("coding-twice-gzip-first", "", post(TE + b"gzip", TE + b"chunked"), 400, 501),
        refused("coding-chunked-chunked", "", coding(b"chunked, chunked"), 400, 501),
        refused("coding-gzip-chunked", "", coding(b"gzip, chunked"), 501, 400),
        refused("coding-chunked-gzip", "RFC 9112 § 6.3", coding(b"chunked, gzip"), 400, 501),
        refused("coding-gzip", "RFC 9112 § 6.3", coding(b"gzip"), 400, 501),
        refused("coding-identity", "RFC 9112 § 7", coding(b"identity"), 501, 400),
        refused("coding-identity-chunked", "RFC 9112 § 7", coding(b"identity, chunked"), 501, 400),
        refused("coding-prefix", "RFC 9112 § 7", coding(b"xchunked"), 501, 400),
        refused("coding-suffix", "RFC 9112 § 7", coding(b"chunkedx"), 501, 400),
        refused("coding-doubled-word", "RFC 9112 § 7", coding(b"chunkedchunked"), 501, 400),
        refused("coding-quoted", "RFC 9112 § 7", coding(b'"chunked"'), 400, 501),
        refused("coding-parameter", "RFC 9112 § 7.1", coding(b"chunked;q=1"), 501, 400),
        refused("coding-leading-comma", "", coding(b", chunked"), 400, 501),
        refused("coding-trailing-comma", "", coding(b"chunked,"), 400, 501),
        refused("coding-two-words", "RFC 9112 § 7", coding(b"chu nked"), 400, 501),
        refused("coding-empty", "", coding(b""), 400, 501),
        refused("coding-vertical-tab", "RFC 9110 § 5.5", coding(b"\x0bchunked"), 400, 501),
        refused("coding-no-break-space", "RFC 9112 § 7", coding(b"\xa0chunked"), 400, 501),
        refused("coding-nul", "RFC 9110 § 5.5", coding(b"chunked\0")),
        refused("coding-folded", "RFC 9112 § 5.2", post(TE, b" chunked", body=FIVE + LAST)),
        refused(
            "coding-space-before-colon", "RFC 9112 § 5.1", post(b"Transfer-Encoding : chunked", body=LAST)
        ),
        refused("coding-10", "", request(TE + b"chunked", line=b"POST / HTTP/1.0", body=FIVE + LAST)),
        refused("coding-other-name", "RFC 3875 § 4.1.18", post(b"Transfer_Encoding: chunked")),
        refused(
            "coding-other-name-too", "RFC 3875 § 4.1.18", chunked(FIVE + LAST, b"transfer_encoding: identity")
        ),
        passed(
            "coding-of-a-get", "RFC 9110 § 9.3.1", request(TE + b"chunked", body=FIVE + LAST), body=b"hello"
        ),
    ),
)

CHUNKS = under(
    "RFC 9112 § 7.1",
    (
        passed("chunk-none", "", chunked(LAST)),
        passed("chunk-two", "", chunked(FIVE + b"6\r\n world\r\n" + LAST), body=b"hello world"),
        passed(
            "chunk-hex",
            "",
            chunked(b"1A\r\n%b\r\n1b\r\n%b\r\n" % (b"x" * 26, b"y" * 27) + LAST),
            body=b"x" * 26 + b"y" * 27,
        ),
        passed("chunk-leading-zeros", "", chunked(b"0005\r\nhello\r\n000\r\n\r\n"), body=b"hello"),
        stopped("chunk-many-zeros", "", chunked(b"0" * 20 + FIVE + LAST)),
        passed("chunk-is-a-request", "", chunked(b"%x\r\n%b\r\n" % (len(GHOST), GHOST) + LAST), body=GHOST),
        passed("chunk-is-a-last-chunk", "", chunked(b"5\r\n0\r\n\r\n\r\n" + LAST), body=LAST),
        stopped("chunk-no-size", "", chunked(b"\r\nhello\r\n" + LAST)),
        stopped("chunk-size-word", "", chunked(b"zz\r\nhello\r\n" + LAST)),
        stopped("chunk-size-plus", "", chunked(b"+" + FIVE + LAST)),
        stopped("chunk-size-minus", "", chunked(b"-" + FIVE + LAST)),
        stopped("chunk-size-0x", "", chunked(b"0x" + FIVE + LAST)),
        stopped("chunk-size-space-before", "", chunked(b" " + FIVE + LAST)),
        stopped("chunk-size-space-behind", "", chunked(b"5 \r\nhello\r\n" + LAST)),
        stopped("chunk-size-two-words", "", chunked(b"5 5\r\nhello\r\n" + LAST)),
        stopped("chunk-size-underscore", "", chunked(b"1_0\r\nhello\r\n" + LAST)),
        stopped("chunk-size-quoted", "", chunked(b'"5"\r\nhello\r\n' + LAST)),
        stopped("chunk-size-2-64", "", chunked(b"10000000000000000\r\nhello\r\n" + LAST)),
        stopped("chunk-size-2-64-and-5", "", chunked(b"10000000000000005\r\nhello\r\n" + LAST)),
        stopped("chunk-size-thirty-digits", "", chunked(b"f" * 30 + b"\r\nhello\r\n" + LAST)),
        stopped("chunk-size-lf", "RFC 9112 § 2.2", chunked(b"5\nhello\r\n" + LAST)),
        stopped("chunk-size-cr", "RFC 9112 § 2.2", chunked(b"5\rhello\r\n" + LAST)),
        stopped("chunk-no-crlf-behind", "", chunked(b"5\r\nhello" + LAST)),
        stopped("chunk-lf-behind", "RFC 9112 § 2.2", chunked(b"5\r\nhello\n" + LAST)),
        stopped("chunk-cr-behind", "RFC 9112 § 2.2", chunked(b"5\r\nhello\r" + LAST)),
        stopped("chunk-longer-than-stated", "", chunked(b"5\r\nhello!\r\n" + LAST)),
        stopped("chunk-shorter-than-stated", "", chunked(b"6\r\nhello\r\n" + LAST + GHOST)),
        stopped("chunk-garbage-behind-last", "", chunked(FIVE + b"0\r\nx\r\n\r\n")),
        stopped("chunk-lf-behind-last", "RFC 9112 § 2.2", chunked(FIVE + b"0\n\n")),
        stopped("chunk-lf-at-the-end", "RFC 9112 § 2.2", chunked(FIVE + b"0\r\n\n"), is_open=True),
        stopped("chunk-cr-at-the-end", "RFC 9112 § 2.2", chunked(FIVE + b"0\r\n\r\r"), is_open=True),
        stopped("chunk-size-cr-open", "RFC 9112 § 2.2", chunked(b"5\rh"), is_open=True),
        stopped("chunk-size-space-behind-open", "", chunked(b"5 \r"), is_open=True),
        stopped("chunk-cr-behind-last", "RFC 9112 § 2.2", chunked(FIVE + b"0\r\n\rX\r\n\r\n")),
        stopped("chunk-cut-short", "RFC 9112 § 8", chunked(b"9\r\nhello"), end="short", leaves=True),
        stopped("chunk-no-last", "RFC 9112 § 8", chunked(FIVE), end="short", leaves=True),
        stopped("chunk-over-limit", "RFC 9110 § 15.5.14", chunked(FIVE + LAST), 413, limits={"body": 4}),
    ),
)

EXTENSIONS = under(
    "RFC 9112 § 7.1.1",
    (
        passed("extension", "", chunked(b"5;a\r\nhello\r\n0;b\r\n\r\n"), body=b"hello"),
        passed("extension-value", "", chunked(b"5;a=b;c=d\r\nhello\r\n" + LAST), body=b"hello"),
        passed("extension-quoted", "", chunked(b'5;a="b;c"\r\nhello\r\n' + LAST), body=b"hello"),
        passed("extension-escaped", "", chunked(b'5;a="b\\"c"\r\nhello\r\n' + LAST), body=b"hello"),
        passed("extension-spaces", "", chunked(b"5 ; a = b\r\nhello\r\n" + LAST), body=b"hello"),
        stopped("extension-no-semicolon", "", chunked(b"5 a\r\nhello\r\n" + LAST)),
        stopped("extension-empty", "", chunked(b"5;\r\nhello\r\n" + LAST)),
        stopped("extension-no-name", "", chunked(b"5;=b\r\nhello\r\n" + LAST)),
        stopped("extension-open-quote", "", chunked(b'5;a="b\r\nhello\r\n' + LAST)),
        stopped("extension-lf", "RFC 9112 § 2.2", chunked(b"5;a\nhello\r\n" + LAST)),
        stopped("extension-lf-in-value", "RFC 9112 § 2.2", chunked(b"5;a=b\nhello\r\n" + LAST)),
        stopped("extension-lf-in-quotes", "RFC 9112 § 2.2", chunked(b'5;a="b\n"\r\nhello\r\n' + LAST)),
        stopped("extension-cr", "RFC 9112 § 2.2", chunked(b"5;a\rX\r\nhello\r\n" + LAST)),
        stopped("extension-nul", "RFC 9110 § 5.5", chunked(b"5;a\0\r\nhello\r\n" + LAST)),
        stopped("extension-control", "RFC 9110 § 5.6.2", chunked(b"5;a\x01\r\nhello\r\n" + LAST)),
        stopped("extension-nul-open", "RFC 9110 § 5.5", chunked(b"5;a\0"), is_open=True),
        stopped("extension-cr-open", "RFC 9112 § 2.2", chunked(b"5;a\rX"), is_open=True),
        stopped("extension-no-name-open", "", chunked(b"5;="), is_open=True),
        stopped("extension-two-words-open", "", chunked(b"5;a b"), is_open=True),
    ),
)


def trailing(*trailers: bytes) -> bytes:
    """A POST in chunks with these trailers."""
    return chunked(FIVE + b"0\r\n" + b"".join(line + b"\r\n" for line in trailers) + b"\r\n")


def dropped(name: str, trailer: bytes) -> Row:
    """A trailer that may not be one: the others pass (RFC 9110 § 6.5.1)."""
    return passed(name, "", trailing(trailer, b"X: y"), body=b"hello", trailers=(b"X: y",))


OPEN_TRAILERS = (
    ("lf", "RFC 9112 § 2.2", b"X: a\n"),
    ("lf-behind-name", "RFC 9112 § 2.2", b"X\n"),
    ("cr", "RFC 9112 § 2.2", b"X: a\rY"),
    ("no-colon", "RFC 9112 § 5", b"X\r"),
    ("space-before-colon", "RFC 9112 § 5.1", b"X "),
    ("empty-name", "RFC 9110 § 5.1", b":"),
    ("bad-name", "RFC 9110 § 5.1", b"X: a\r\nY("),
    ("nul-in-name", "RFC 9110 § 5.1", b"X\0"),
    ("nul", "RFC 9110 § 5.5", b"X: a\0"),
    ("control", "RFC 9110 § 5.5", b"X: a\x7f"),
    ("folded", "RFC 9112 § 5.2", b"X: a\r\n "),
    ("folded-tab", "RFC 9112 § 5.2", b"X: a\r\n\t"),
    ("folded-first", "RFC 9112 § 5.2", b" "),
)
"""Trailer sections that end with the byte that makes them illegal: name, clause, bytes behind the last chunk's line."""

TRAILERS = under(
    "RFC 9110 § 6.5.1",
    (
        passed("trailer", "RFC 9112 § 7.1.2", trailing(b"X: y"), body=b"hello", trailers=(b"X: y",)),
        passed(
            "trailers-in-order",
            "RFC 9112 § 7.1.2",
            trailing(b"B: 1", b"A: 2", b"B: 3"),
            body=b"hello",
            trailers=(b"B: 1", b"A: 2", b"B: 3"),
        ),
        dropped("trailer-length", b"Content-Length: 7"),
        dropped("trailer-coding", b"Transfer-Encoding: chunked"),
        dropped("trailer-host", b"Host: b"),
        dropped("trailer-authorization", b"Authorization: Basic YTpi"),
        dropped("trailer-connection", b"Connection: close"),
        dropped("trailer-forwarded", b"X-Forwarded-For: 10.0.0.1"),
        dropped("trailer-forwarded-other-name", b"X_Forwarded-For: 10.0.0.1"),
        stopped("trailer-space-before-colon", "RFC 9112 § 5.1", trailing(b"X : y")),
        stopped("trailer-no-colon", "RFC 9112 § 5", trailing(b"X y")),
        stopped("trailer-empty-name", "RFC 9110 § 5.1", trailing(b": y")),
        stopped("trailer-folded", "RFC 9112 § 5.2", trailing(b"X: y", b" z")),
        stopped("trailer-nul", "RFC 9110 § 5.5", trailing(b"X: a\0")),
        stopped("trailer-lf", "RFC 9112 § 2.2", trailing(b"X: a\nY: b")),
        stopped("trailer-cr", "RFC 9112 § 2.2", trailing(b"X: a\rY: b")),
        *(
            stopped(f"trailer-{name}-open", clause, chunked(FIVE + b"0\r\n" + sent), is_open=True)
            for name, clause, sent in OPEN_TRAILERS
        ),
        stopped("trailers-over-limit", "RFC 6585 § 5", trailing(b"X: " + b"x" * 40_000), 400, 431),
        stopped("trailers-too-many", "RFC 6585 § 5", trailing(*(b"X: y",) * 200), 400, 431),
    ),
)

ROWS: tuple[Row, ...] = (*LENGTHS, *CODINGS, *CHUNKS, *EXTENSIONS, *TRAILERS)
