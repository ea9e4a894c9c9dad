"""Tracing as configured, for the start and for reloads."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version

from balancer.config.schema.sections import TracingConfig
from balancer.tracing.spans import Spans
from balancer.tracing.tracing import Tracing


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
