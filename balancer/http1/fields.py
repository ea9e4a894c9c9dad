"""The fields of a head, as one block of bytes: what stands in it, and what it is without some of them.

Rule of this file: llhttp has judged every byte before it comes here, so lines end in CRLF and nothing is folded. Fields
that are passed on travel as the bytes that they came as: order, case, spacing and repetition survive, and cost nothing.

A *block* is the fields of a head with the CRLF around each: b"\\r\\nHost: a\\r\\nAccept: */*\\r\\n"; without any, one
CRLF. It is searched in lower case: twice as fast as ignoring case.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import Enum, auto
from typing import Any, Final

END_OF_HEAD: Final = b"\r\n\r\n"

HOP_BY_HOP: Final = ("connection", "keep-alive", "proxy-connection", "te", "upgrade")  # RFC 9110 § 7.6.1
FRAMING: Final = ("content-length", "transfer-encoding")
OF_PROXIES: Final = ("forwarded", "x-forwarded-*", "x-real-ip", "x-request-start")
REWRITTEN: Final = ("x-request-id", "expect")

SPECIAL: Final = ("host", *HOP_BY_HOP, *FRAMING, *OF_PROXIES, *REWRITTEN)
"""What the fields of a request are read for; all but Host may have to leave."""

KEPT_FOR_FRAMING: Final = frozenset((b"host", b"content-length", b"transfer-encoding"))

NOT_NOMINATED: Final = KEPT_FOR_FRAMING | {b"", b"close", b"keep-alive", b"upgrade", b"te"}
"""Connection options that name no field, one that is removed anyway, or one that framing and routing need."""


class Framing(Enum):
    """How the end of a body is known (RFC 9112 § 6.3)."""

    NONE = auto()
    LENGTH = auto()
    CHUNKED = auto()
    UNTIL_CLOSE = auto()


Values = dict[bytes, list[bytes]]
"""Name in lower case → the values as they came."""


_END: Final = ""
"""The key in a node of a trie under which it says that a name ends there."""


_SIGNS: Final = "!#$%&'*+.^_`|~"
"""What a name may hold beside letters, digits and hyphens."""

_AS_HYPHENS: Final = bytes.maketrans(_SIGNS.encode(), b"-" * len(_SIGNS))


def any_of(names: Iterable[str], *, as_in_cgi: bool = False) -> bytes:
    """An expression for each of `names`, in lower case; one that ends in `*` means all that begin so. With `as_in_cgi`
    it also matches names that `in_cgi` maps to the same name.

    It has the form of a trie: whatever does not begin like any of them fails at its first byte, in C.
    """
    trie: dict[str, Any] = {}
    for name in sorted({name.lower() for name in names}):
        node = trie
        end = "*" if name.endswith("*") else ""
        begin = in_cgi(name.removesuffix("*").encode()).decode() if as_in_cgi else name.removesuffix("*")
        for letter in begin + end:
            node = node.setdefault(letter, {})
        node[_END] = {}
    return _following(trie, f"[{_SIGNS}-]" if as_in_cgi else "-").encode()


def _following(node: dict[str, Any], hyphen: str) -> str:
    """What may follow from here on."""
    if "*" in node:  # whatever else follows is included
        return r"[^\n:]*"
    branches = []
    for letter, rest in node.items():
        this = hyphen if letter == "-" else re.escape(letter)
        branches.append("" if letter == _END else this + _following(rest, hyphen))
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


def in_cgi(name: bytes) -> bytes:
    """Field name with every sign replaced by a hyphen. Names that are equal afterwards may be one variable to an
    application: CGI and WSGI turn hyphens into underscores (RFC 3875 § 4.1.18), and some servers turn all signs."""
    return name.translate(_AS_HYPHENS)


def first_value_of(name: bytes) -> re.Pattern[bytes]:
    """Expression for the first field of this name, in any case, that is not empty; group 1 is the value without the
    white space around it.

    Linear in the length of the value: nothing that a repeat matches can be matched by what follows it.
    """
    return re.compile(rb"\n(?i:%b):[ \t]*([^\r \t]+(?:[ \t]+[^\r \t]+)*)" % re.escape(name))


def lines_of(names: bytes) -> re.Pattern[bytes]:
    """Finds the lines of fields whose name the expression `names` matches, in lower case."""
    return re.compile(rb"\n(%b):[ \t]*([^\r]*)" % names)


_LENGTH_STATED: Final = lines_of(any_of(FRAMING))


def found(pattern: re.Pattern[bytes], block: bytes) -> Iterator[tuple[bytes, bytes, tuple[int, int]]]:
    """Name in lower case, value as it came, and where the line stands with the CRLF before it."""
    for match in pattern.finditer(block.lower()):
        start, end = match.span(2)
        yield match[1], block[start:end].rstrip(), (match.start() - 1, end)


def cut(block: bytes, spans: list[tuple[int, int]]) -> bytes:
    """`block` without `spans`, which come in order."""
    if len(spans) <= 1:  # mostly Connection
        return block[: spans[0][0]] + block[spans[0][1] :] if spans else block
    kept: list[bytes] = []
    at = 0
    for start, end in spans:
        kept.append(block[at:start])
        at = end
    kept.append(block[at:])
    return b"".join(kept)


def without(names: Iterable[bytes], block: bytes, keep: frozenset[bytes] = frozenset()) -> bytes:
    """`block` without the fields named, in lower case, but for those in `keep`.

    The names may come from a peer, thousands of them, so they are not compiled to an expression.
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


_CHUNKED_LINE: Final = b"\nTransfer-Encoding: chunked\r"


def restated(block: bytes, framing: Framing, length: int) -> bytes:
    """`block` with its only Content-Length or Transfer-Encoding, which has been validated, in canonical form: one space
    and digits without leading zeros, or `Transfer-Encoding: chunked`."""
    is_chunked = framing is Framing.CHUNKED
    usual = _CHUNKED_LINE if is_chunked else b"\nContent-Length: %d\r" % length
    if block.find(usual) >= 0 or (not is_chunked and block.find(usual.lower()) >= 0):
        return block
    for name, _, (start, end) in found(_LENGTH_STATED, block):
        if not is_chunked:
            usual = b"\n%b: %d\r" % (block[start + 2 : start + 2 + len(name)], length)
        return block[: start + 1] + usual + block[end + 1 :]
    return block


def connection_options(values: Values) -> list[bytes]:
    """In lower case: what Connection asks for, and which fields it declares hop by hop (RFC 9110 § 7.6.1)."""
    return [option.strip() for value in values.get(b"connection", []) for option in value.lower().split(b",")]


def last(values: Values, name: bytes, default: bytes) -> bytes:
    """The value that stands last."""
    return values[name][-1] if name in values else default
