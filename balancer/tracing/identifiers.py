"""Random trace and span ids in lower-case hex, drawn in batches: one system call serves hundreds of requests."""

from __future__ import annotations

import os
from collections.abc import Callable
from struct import iter_unpack
from typing import Final

from balancer.tracing.context import NO_SPAN, NO_TRACE

BATCH: Final = 256


class Identifiers:
    """Generator of ids; `randomness` returns so many random bytes. Every process needs its own."""

    def __init__(self, randomness: Callable[[int], bytes] = os.urandom) -> None:
        self._randomness = randomness
        self._contexts: list[bytes] = []
        self._spans: list[bytes] = []

    def context(self) -> bytes:
        """Return a new trace id and a span id in it, with a hyphen between, as a traceparent has them."""
        if not self._contexts:
            self._contexts = self._fresh_contexts()
        return self._contexts.pop()

    def span(self) -> bytes:
        """Return a new span id."""
        if not self._spans:
            self._spans = self._fresh_spans()
        return self._spans.pop()

    def _fresh_contexts(self) -> list[bytes]:
        text = (
            self._randomness(32 * BATCH).hex("-", 16).encode() + b"-"
        )  # 32 digits and a hyphen, again and again
        pairs = [pair for (pair,) in iter_unpack("49s17x", text)]
        return [pair for pair in pairs if not (pair.startswith(NO_TRACE) or pair.endswith(NO_SPAN))]

    def _fresh_spans(self) -> list[bytes]:
        text = self._randomness(8 * BATCH).hex().encode()
        return [span for (span,) in iter_unpack("16s", text) if span != NO_SPAN]
