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


def any_of(names: Iterable[str]) -> bytes:
    """An expression for each of `names`, in lower case; one that ends in `*` means all that begin so.

    It has the form of a trie: whatever does not begin like any of them fails at its first byte, in C.
    """
    trie: dict[str, Any] = {}
    for name in sorted({name.lower() for name in names}):
        node = trie
        for letter in name:
            node = node.setdefault(letter, {})
        node[_END] = {}
    return _following(trie).encode()


def _following(node: dict[str, Any]) -> str:
    """What may follow from here on."""
    if "*" in node:  # whatever else follows is included
        return "[^:]*"
    branches = [
        "" if letter == _END else re.escape(letter) + _following(rest) for letter, rest in node.items()
    ]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


def lines_of(names: bytes) -> re.Pattern[bytes]:
    """Finds the lines of fields whose name the expression `names` matches, in lower case."""
    return re.compile(rb"\n(%b):[ \t]*([^\r]*)" % names)


def found(pattern: re.Pattern[bytes], block: bytes) -> Iterator[tuple[bytes, bytes, tuple[int, int]]]:
    """Name in lower case, value as it came, and where the line stands with the CRLF before it."""
    for match in pattern.finditer(block.lower()):
        start, end = match.span(2)
        yield match[1], block[start:end].rstrip(), (match.start() - 1, end)


def cut(block: bytes, spans: list[tuple[int, int]]) -> bytes:
    """`block` without `spans`, which come in order."""
    for start, end in reversed(spans):
        block = block[:start] + block[end:]
    return block


def without(names: Iterable[bytes], block: bytes, keep: frozenset[bytes] = frozenset()) -> bytes:
    """`block` without the fields named, in lower case, but for those in `keep`."""
    unwanted = [re.escape(name) for name in names if name not in keep]
    if not unwanted:
        return block
    return cut(block, [span for _, _, span in found(lines_of(b"|".join(unwanted)), block)])


def connection_options(values: Values) -> list[bytes]:
    """In lower case: what Connection asks for, and which fields it declares hop by hop (RFC 9110 § 7.6.1)."""
    return [option.strip() for value in values.get(b"connection", []) for option in value.lower().split(b",")]


def last(values: Values, name: bytes, default: bytes) -> bytes:
    """The value that stands last."""
    return values[name][-1] if name in values else default
