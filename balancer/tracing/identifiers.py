"""Random trace and span ids in lower-case hex, made in batches: one system call serves hundreds of requests."""

from __future__ import annotations

import os
from collections.abc import Callable
from struct import iter_unpack
from typing import Final

BATCH: Final = 256

_ZEROS: Final = b"0" * 16
"""An id of zeros is invalid. Digits that have so many in a row anywhere are drawn again, which never happens."""


class Identifiers:
    """Generator of ids; `randomness` returns so many random bytes. Every process needs its own."""

    def __init__(self, randomness: Callable[[int], bytes] = os.urandom) -> None:
        self._randomness = randomness
        self._traces: list[tuple[bytes]] = []
        self._spans: list[tuple[bytes]] = []

    def trace(self) -> bytes:
        """Return a new trace id. Its last 16 digits may name the first span, as Zipkin's do."""
        if not self._traces:
            self._traces = list(iter_unpack("32s", self._digits(32 * BATCH)))
        return self._traces.pop()[0]

    def span(self) -> bytes:
        """Return a new span id."""
        if not self._spans:
            self._spans = list(iter_unpack("16s", self._digits(16 * BATCH)))
        return self._spans.pop()[0]

    def _digits(self, size: int) -> bytes:
        """Return random digits; `size` is even."""
        digits = _ZEROS
        while _ZEROS in digits:
            digits = self._randomness(size // 2).hex().encode()
        return digits
