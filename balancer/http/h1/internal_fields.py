"""Internal fields: removed from requests of clients and from responses to them.

Almost no field is internal, so a miss must cost next to nothing. All names form one expression, and the existing pass
over a request's fields searches for them. Repeated heads are cached with their result (`request_head.py`,
`response_head.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from balancer.http.h1.fields import SPECIAL, any_of, cut, found, lines_of
from balancer.syntax.field_names import in_cgi


class FieldRemoval:
    """Removal of the fields of some names, in any case; one that ends in `*` is a prefix. With `as_in_cgi` a name
    stands for all that a worker may confuse with it."""

    def __init__(self, names: Iterable[str], *, as_in_cgi: bool = False) -> None:
        self._find = re.compile(rb"\n(?=%b:)" % any_of(names, as_in_cgi=as_in_cgi)).finditer

    def without(self, block: bytes) -> bytes:
        """Return `block` without these fields."""
        lower = block.lower()
        starts = [match.start() for match in self._find(lower)]  # of the LF before each line
        return cut(block, [(start - 1, lower.index(b"\r", start)) for start in starts])

    def without_in_head(self, head: bytes) -> bytes:
        """Return a whole head without these fields."""
        end = head.find(b"\r\n")
        return b"%b%b\r\n" % (head[:end], self.without(head[end:-2]))


class InternalFields(FieldRemoval):
    """A set of internal field names; `without` removes them from responses.

    In requests, names that a worker may confuse with them match as well (`in_cgi`). `special` finds the lines of these
    and of all other parsed request fields in a lower-cased block; `find_special` is its `findall`.
    """

    def __init__(self, names: Iterable[str]) -> None:
        listed = [name.lower() for name in names]
        super().__init__(listed)
        self._whole = frozenset(in_cgi(name.encode()) for name in listed)
        self._beginnings = tuple(in_cgi(name[:-1].encode()) for name in listed if name.endswith("*"))
        self.special = lines_of(any_of((*SPECIAL, *listed), as_in_cgi=True))
        self.find_special = self.special.findall

    def has(self, name: bytes) -> bool:
        """Return whether a request field's lower-cased name is internal."""
        name = in_cgi(name)
        return name in self._whole or name.startswith(self._beginnings)

    def without_in_request(self, block: bytes) -> bytes:
        """Return a block of a request, its trailers, without internal fields."""
        return cut(block, [span for name, _, span in found(self.special, block) if self.has(name)])
