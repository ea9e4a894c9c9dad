"""Tracing of one process: whose traces are continued, which new ones are sampled, and where spans go."""

from __future__ import annotations

from typing import Final

from balancer.tracing.identifiers import Identifiers
from balancer.tracing.spans import Spans

_ALL: Final = 1 << 64


class Tracing:
    """Rules of tracing, immutable, and the generator of ids. `trusts_all`: traces of all clients are continued,
    otherwise only those of trusted proxies. `samples_some`: some new traces are sampled. `spans` is None if nothing is
    exported."""

    def __init__(self, *, trusts_all: bool, sample: float, spans: Spans | None = None) -> None:
        self.trusts_all = trusts_all
        self.spans = spans
        self.ids = Identifiers()
        self.samples_some = sample > 0
        bound = round(sample * _ALL)
        # Digits compare as numbers do. The bound of all is above every digit.
        self._bound = b"g" if bound >= _ALL else b"%016x" % bound if bound else b""

    def samples(self, trace_id: bytes) -> bool:
        """Return whether a new trace is sampled, by the last 64 bits of its id (OpenTelemetry's TraceIdRatioBased)."""
        return self._bound != b"" and trace_id[16:32] < self._bound
