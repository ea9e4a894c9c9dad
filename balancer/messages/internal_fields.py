"""Fields that are for our own network, and are taken from no client and given to none.

Rule of this file: nearly no field is internal, so a miss must cost next to nothing. All names become one expression
in the form of a trie: whatever does not begin like any of them fails at its first byte, in C.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from balancer.messages.fields import cut, found, lines_of

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
        self._is_there = re.compile(rb"\n(?=%b:)" % expression).search
        self._lines = lines_of(expression)

    def without(self, block: bytes) -> bytes:
        """`block` without them."""
        if self._is_there(block.lower()) is None:
            return block
        return cut(block, [span for _, _, span in found(self._lines, block)])


def _expression(node: dict[str, Any]) -> str:
    """What may follow from here on."""
    if "*" in node:  # whatever else follows is included
        return "[^:]*"
    branches = [
        "" if letter == _END else re.escape(letter) + _expression(rest) for letter, rest in node.items()
    ]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
