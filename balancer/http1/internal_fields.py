"""Fields that are for our own network, and are taken from no client and given to none.

Rule of this file: nearly no field is internal, so a miss must cost next to nothing. All names become one expression,
and a request's fields are read for them in the pass that they take anyway. Heads that repeat are remembered with what
they come to (`request_head.py`, `response_head.py`), and not looked through again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from balancer.http1.fields import SPECIAL, any_of, in_cgi, lines_of


class InternalFields:
    """A set of names, in any case; one that ends in `*` means all that begin so. In requests, names that
    a worker may confuse with them count as well (`in_cgi`).

    `special` finds the lines of these, and of all that a request is read for, in a block in lower case; `find_special`
    is its `findall`.
    """

    def __init__(self, names: Iterable[str]) -> None:
        listed = [name.lower() for name in names]
        self._whole = frozenset(in_cgi(name.encode()) for name in listed)
        self._beginnings = tuple(in_cgi(name[:-1].encode()) for name in listed if name.endswith("*"))
        self._next = re.compile(rb"\n(?=%b:)" % any_of(listed)).search
        self.special = lines_of(any_of((*SPECIAL, *listed), as_in_cgi=True))
        self.find_special = self.special.findall

    def has(self, name: bytes) -> bool:
        """Whether the name of a request's field, in lower case, is one of them."""
        name = in_cgi(name)
        return name in self._whole or name.startswith(self._beginnings)

    def without(self, block: bytes) -> bytes:
        """A response's `block` without them."""
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
