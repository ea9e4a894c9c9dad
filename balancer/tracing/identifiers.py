"""Random trace and span ids in lower-case hex, made in batches."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from struct import iter_unpack
from typing import Final

BATCH: Final = 256

_ZEROS: Final = "0" * 16
"""An id of zeros is invalid. Digits that have so many in a row anywhere are drawn again, which never happens."""


class Identifiers:
    """Generator of ids; `randomness` returns so many random bytes. Every process needs its own.

    By default it is seeded by the operating system, which would take longer for each id than all the rest.
    """

    def __init__(self, randomness: Callable[[int], bytes] | None = None) -> None:
        self._randomness = Random().randbytes if randomness is None else randomness
        self._contexts: list[bytes] = []
        self._spans: list[bytes] = []

    def context(self) -> bytes:
        """Return a new trace id and a span id in it, with a hyphen between, as a traceparent has them."""
        if not self._contexts:
            text = bytearray(self._digits(49 * BATCH))
            text[32::49] = b"-" * BATCH
            self._contexts = [context for (context,) in iter_unpack("49s", text)]
        return self._contexts.pop()

    def span(self) -> bytes:
        """Return a new span id."""
        if not self._spans:
            self._spans = [span for (span,) in iter_unpack("16s", self._digits(16 * BATCH))]
        return self._spans.pop()

    def _digits(self, size: int) -> bytes:
        """Return random digits; `size` is even."""
        text = _ZEROS
        while _ZEROS in text:
            text = self._randomness(size // 2).hex()
        return text.encode()
