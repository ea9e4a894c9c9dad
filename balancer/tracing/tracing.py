"""Tracing of one process: whose traces are continued, which new ones are sampled, and where spans go."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from balancer.tracing.identifiers import Identifiers
from balancer.tracing.spans import Spans

if TYPE_CHECKING:
    from balancer.config.schema.sections import TracingConfig

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


def tracing_of(
    config: TracingConfig,
    before: Tracing | None,
    offset: Callable[[], float],
    say: Callable[[str], None],
) -> Tracing | None:
    """Return the tracing of `config`, None if it is off. Spans still go to the export of `before` if nothing that
    concerns it has changed."""
    if not config.enabled:
        return None
    spans: Spans | None = None
    if config.endpoint is not None:
        from balancer.tracing.export import SpanExport  # only here: the import takes tenths of a second

        old = before.spans if before is not None else None
        if isinstance(old, SpanExport) and old.is_for(config):
            spans = old
        else:
            spans = SpanExport(config, offset, version("steelyard"), say)
    return Tracing(trusts_all=config.trust == "all", sample=config.sample, spans=spans)


def load(config: TracingConfig) -> None:
    """Import what `tracing_of` needs, in a thread, before a reload applies `config`."""
    if config.enabled and config.endpoint is not None:
        import_module("balancer.tracing.export")
