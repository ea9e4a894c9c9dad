"""Random trace and span ids in lower-case hex, made in batches: one system call serves hundreds of requests."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import chain
from struct import Struct
from typing import Final

BATCH: Final = 256

_ZEROS: Final = b"0" * 16
"""An id of zeros is invalid. Digits that have so many in a row anywhere are drawn again, which never happens."""


class Identifiers:
    """Generator of ids; `randomness` returns so many random bytes. Every process needs its own.

    `trace` returns a new trace id; its last 16 digits may name the first span, as Zipkin's do. `span` returns a new
    span id.
    """

    def __init__(self, randomness: Callable[[int], bytes] = os.urandom) -> None:
        self.trace: Callable[[], bytes] = fresh_ids(16, randomness)
        self.span: Callable[[], bytes] = fresh_ids(8, randomness)


def fresh_ids(size: int, randomness: Callable[[int], bytes]) -> Callable[[], bytes]:
    """Return a function that returns another id of `size` bytes at each call. It runs no Python frame."""
    split = Struct(f"{2 * size}s" * BATCH).unpack

    def batch() -> tuple[bytes, ...]:
        digits = _ZEROS
        while _ZEROS in digits:
            digits = randomness(size * BATCH).hex().encode()
        return split(digits)

    return chain.from_iterable(iter(batch, None)).__next__
