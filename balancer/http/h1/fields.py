"""Fields of a head as one block of bytes: search, removal, framing.

llhttp has validated every byte before, so lines end in CRLF and nothing is folded. Fields that are passed on keep their
bytes: order, case, spacing and repetition survive at no cost.

A *block* is the fields of a head with the CRLF around each: b"\\r\\nHost: a\\r\\nAccept: */*\\r\\n"; without any, one
CRLF. It is searched in lower case: twice as fast as ignoring case.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from enum import Enum, auto
from typing import Any, Final

from balancer.syntax.field_names import SIGNS, in_cgi

END_OF_HEAD: Final = b"\r\n\r\n"

HOP_BY_HOP: Final = ("connection", "keep-alive", "proxy-connection", "te", "upgrade")  # RFC 9110 § 7.6.1
FRAMING: Final = ("content-length", "transfer-encoding")
OF_ONE_CONNECTION: Final = frozenset(name.encode() for name in (*HOP_BY_HOP, "transfer-encoding"))
"""Fields of HTTP/1.1 that HTTP/2 does not have (RFC 9113 § 8.2.2), except `TE: trailers`."""

OF_PROXIES: Final = ("forwarded", "x-forwarded-*", "x-real-ip", "x-request-start")
REWRITTEN: Final = ("x-request-id", "expect", "via")

CERTIFICATE: Final = ("client-cert", "client-cert-chain")

SPECIAL: Final = ("host", *HOP_BY_HOP, *FRAMING, *OF_PROXIES, *CERTIFICATE, *REWRITTEN)
"""Request fields that are parsed; all but Host and Via may have to be removed."""

KEPT_FOR_FRAMING: Final = frozenset((b"host", b"content-length", b"transfer-encoding"))

OF_CERTIFICATE: Final = frozenset(name.encode() for name in CERTIFICATE)

NOT_NOMINATED: Final = KEPT_FOR_FRAMING | {b"", b"close", b"keep-alive", b"upgrade", b"te"}
"""Connection options that name no field, a field that is removed anyway, or one that framing and routing need."""


class Framing(Enum):
    """How the end of a body is determined (RFC 9112 § 6.3)."""

    NONE = auto()
    LENGTH = auto()
    CHUNKED = auto()
    UNTIL_CLOSE = auto()


Values = dict[bytes, list[bytes]]
"""Lower-cased name → values as received."""


_END: Final = ""
"""Key in a trie node that marks the end of a name."""


def any_of(names: Iterable[str], *, as_in_cgi: bool = False) -> bytes:
    """Return a regular expression that matches any of `names`, in lower case; one that ends in `*` is a prefix.

    With `as_in_cgi` it also matches names that `in_cgi` maps to the same name. The expression has the form of a trie: a
    name with another first byte fails at that byte, in C.
    """
    trie: dict[str, Any] = {}
    for name in sorted({name.lower() for name in names}):
        node = trie
        end = "*" if name.endswith("*") else ""
        begin = in_cgi(name.removesuffix("*").encode()).decode() if as_in_cgi else name.removesuffix("*")
        for letter in begin + end:
            node = node.setdefault(letter, {})
        node[_END] = {}
    return _following(trie, f"[{SIGNS}-]" if as_in_cgi else "-").encode()


def _following(node: dict[str, Any], hyphen: str) -> str:
    """Return the expression for the subtree at `node`."""
    if "*" in node:  # a prefix includes all longer names
        return r"[^\n:]*"
    branches = []
    for letter, rest in node.items():
        this = hyphen if letter == "-" else re.escape(letter)
        branches.append("" if letter == _END else this + _following(rest, hyphen))
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


def first_value_of(name: bytes) -> re.Pattern[bytes]:
    """Return an expression for the first non-empty field of this name, in any case; group 1 is the value without
    surrounding white space.

    Linear in the length of the value: no byte that a repeat matches can be matched by what follows it.
    """
    return re.compile(rb"\n(?i:%b):[ \t]*([^\r \t]+(?:[ \t]+[^\r \t]+)*)" % re.escape(name))


def only_value_of(name: bytes) -> Callable[[bytes], bytes | None]:
    """Return a function that finds the value of all non-empty fields of this name; None without one, and for different
    values: which of them counts depends on the worker, and a client could send one for the balancer."""
    find = first_value_of(name).findall

    def only(head: bytes) -> bytes | None:
        values: list[bytes] = find(head)
        return values[0] if values and values.count(values[0]) == len(values) else None

    return only


def lines_of(names: bytes) -> re.Pattern[bytes]:
    """Return an expression for the lines of fields whose lower-cased name matches the expression `names`."""
    return re.compile(rb"\n(%b):[ \t]*([^\r]*)" % names)


_LENGTH_STATED: Final = lines_of(any_of(FRAMING))


def found(pattern: re.Pattern[bytes], block: bytes) -> Iterator[tuple[bytes, bytes, tuple[int, int]]]:
    """Yield lower-cased name, value as received, and the span of the line including the CRLF before it."""
    for match in pattern.finditer(block.lower()):
        start, end = match.span(2)
        yield match[1], block[start:end].rstrip(), (match.start() - 1, end)


def cut(block: bytes, spans: list[tuple[int, int]]) -> bytes:
    """Return `block` without `spans`, which are in order."""
    if len(spans) <= 1:  # usually only Connection
        return block[: spans[0][0]] + block[spans[0][1] :] if spans else block
    kept: list[bytes] = []
    at = 0
    for start, end in spans:
        kept.append(block[at:start])
        at = end
    kept.append(block[at:])
    return b"".join(kept)


def without(names: Iterable[bytes], block: bytes, keep: frozenset[bytes] = frozenset()) -> bytes:
    """Return `block` without the fields named, in lower case, except those in `keep`.

    A peer may name thousands of fields, so they are not compiled to an expression.
    """
    unwanted = [name for name in names if name and name not in keep]
    if not unwanted:
        return block
    leaving = frozenset(unwanted)
    kept: list[bytes] = []
    for line in block.split(b"\r\n"):
        if line[: line.find(b":")].lower() not in leaving:
            kept.append(line)
    return b"\r\n".join(kept)


CHUNKED_LINE: Final = b"\nTransfer-Encoding: chunked\r"


def restated(block: bytes, framing: Framing, length: int) -> bytes:
    """Return `block` with its only, validated, Content-Length or Transfer-Encoding in canonical form: one space and
    digits without leading zeros, or `Transfer-Encoding: chunked`."""
    is_chunked = framing is Framing.CHUNKED
    usual = CHUNKED_LINE if is_chunked else b"\nContent-Length: %d\r" % length
    if block.find(usual) >= 0 or (not is_chunked and block.find(usual.lower()) >= 0):
        return block
    for name, _, (start, end) in found(_LENGTH_STATED, block):
        if not is_chunked:
            usual = b"\n%b: %d\r" % (block[start + 2 : start + 2 + len(name)], length)
        return block[: start + 1] + usual + block[end + 1 :]
    return block


def connection_options(values: Values) -> list[bytes]:
    """Return the lower-cased Connection options, among them the names of hop-by-hop fields (RFC 9110 § 7.6.1)."""
    return [option.strip() for value in values.get(b"connection", []) for option in value.lower().split(b",")]


def last(values: Values, name: bytes, default: bytes) -> bytes:
    """Return the last value of a field."""
    return values[name][-1] if name in values else default


_HOST_LINE: Final = lines_of(b"host")


def host_of(head: bytes) -> bytes:
    """Return the Host that the worker gets, or what has come of it in an incomplete head. The fast path is for the
    usual spelling."""
    start = head.find(b"\r\nHost: ") + 8
    if start < 8:
        return next((value for _, value, _ in found(_HOST_LINE, head)), b"")
    end = head.find(b"\r", start)  # compiled, a slice that ends before it begins raises SystemError
    return (head[start:end] if end >= 0 else head[start:]).strip()


def with_host(head: bytes, host: bytes) -> bytes:
    """Return a whole head, which has one Host, with another one."""
    start = head.find(b"\r\nHost: ") + 8
    if start < 8:  # in another spelling
        match = _HOST_LINE.search(head.lower())
        if match is None:
            return head
        start = match.start(2)
    return b"".join((head[:start], host, head[head.find(b"\r", start) :]))


PROTO: Final = b"\r\nX-Forwarded-Proto: "
"""Field of the head for the worker that has the scheme which the client used."""


def with_lines(head: bytes, lines: bytes) -> bytes:
    """Return a head for a worker with further field lines: before those that are found from its end."""
    at = head.find(PROTO) + 2
    return b"".join((head[:at], lines, head[at:]))


_SCHEMES: Final = {b"http": b"http", b"https": b"https", b"ws": b"http", b"wss": b"https"}


def scheme_of(head: bytes) -> bytes:
    """Return the scheme that the client used, http or https, from the head for the worker: the first one of several
    that a trusted proxy states, b"" if that is another one. Traefik states ws and wss for requests to upgrade."""
    at = head.find(PROTO) + len(PROTO)
    return _SCHEMES.get(head[at : head.find(b"\r", at)].partition(b",")[0].strip().lower(), b"")


_find_line: Final = re.compile(rb"\n(?i:cookie)(:[^\r]*)").search


MAX_OCCURRENCES: Final = 256
"""Occurrences of a name in a head up to which it is searched for its cookie: a browser keeps 180 cookies of a site."""


class CookieSearch:
    """Search for one cookie (RFC 6265 § 4.2.1) by its name and an expression for its value, whose group 1 is what is
    wanted.

    Of several cookies that match, the first is found: user agents send the one with the longest path first (§ 5.4).
    Heads in which the name does not occur, or more than `MAX_OCCURRENCES` times, are not searched by an expression:
    thousands of cookies without a value would cost several times a whole request.
    """

    def __init__(self, name: bytes, value: bytes) -> None:
        self._begin = name + b"="
        pair = rb"[ \t]*%b%b" % (re.escape(self._begin), value)
        self._match_first = re.compile(b":" + pair).match
        self._find_next = re.compile(b";" + pair).search

    def search(self, head: bytes) -> re.Match[bytes] | None:
        """Return the match of the cookie in the bytes of a head, None if it has none."""
        if not 0 < head.count(self._begin) <= MAX_OCCURRENCES:
            return None
        line = _find_line(head)
        while line is not None:
            start, end = line.span(1)
            match = self._match_first(head, start, end) or self._find_next(head, start, end)
            if match is not None:
                return match
            line = _find_line(head, end)
        return None
