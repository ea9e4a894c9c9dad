"""Fields that are for our own network, and are taken from no client and given to none.

Rule of this file: nearly no field is internal, so a miss must cost next to nothing. All names become one expression
in the form of a trie: whatever does not begin like any of them fails at its first byte, in C.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_END = ""
"""The key in a node of the trie under which it says that a name ends there."""


class InternalFields:
    """A set of names, in any case; one that ends in `*` means all that begin so."""

    def __init__(self, names: Iterable[str]) -> None:
        trie: dict[str, Any] = {}
        for name in sorted({name.lower() for name in names}):
            node = trie
            for letter in name:
                node = node.setdefault(letter, {})
            node[_END] = {}
        expression = _expression(trie).encode()
        self._next = re.compile(rb"\n(?=%b:)" % expression).search

    def without(self, block: bytes) -> bytes:
        """`block` without them."""
        lower = block.lower()
        match = self._next(lower)
        if match is None:
            return block
        kept, at = [], 0
        while match is not None:
            start = match.start()  # at the LF before the line; its own CRLF goes with the one before
            kept.append(block[at : start - 1])
            at = lower.index(b"\r", start)
            match = self._next(lower, at)
        kept.append(block[at:])
        return b"".join(kept)


def _expression(node: dict[str, Any]) -> str:
    """What may follow from here on."""
    if "*" in node:  # whatever else follows is included
        return "[^:]*"
    branches = [
        "" if letter == _END else re.escape(letter) + _expression(rest) for letter, rest in node.items()
    ]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
