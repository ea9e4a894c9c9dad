"""Finished spans as plain values, and the interface of what takes them.

The data path knows no OpenTelemetry: it hands over values, and `export.py` makes SDK spans of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from balancer.tracing.identifiers import Identifiers

Attributes = Mapping[str, str | bool | int | float | Sequence[str]]


class Kind(Enum):
    """Kind of a span, by OpenTelemetry's names."""

    SERVER = "server"
    CLIENT = "client"
    INTERNAL = "internal"


class Span(NamedTuple):
    """A finished span. Ids are in lower-case hex; `parent_id` is b"" if the span begins the trace. `start` and `end`
    are Unix time in seconds. `error` describes a failure, None if there is none."""

    trace_id: bytes
    tracestate: bytes
    id: bytes
    parent_id: bytes
    name: str
    kind: Kind
    start: float
    end: float
    attributes: Attributes
    error: str | None


@dataclass(slots=True)
class SpanCounts:
    """Spans since the start: `dropped` because the queue was full, `lost` because the collector did not take them."""

    exported: int = 0
    dropped: int = 0
    lost: int = 0


class Spans(Protocol):
    """Taker of finished spans. `waiting` spans are not exported yet; `is_good`: the last export has succeeded."""

    counts: SpanCounts
    is_good: bool

    @property
    def waiting(self) -> int: ...

    def add(self, span: Span) -> None:
        """Take a span, or drop it; never waits."""
        ...

    def offset(self) -> float:
        """Return the present offset from the process's clock to Unix time, in seconds."""
        ...

    def stop(self) -> None:
        """Export what waits, for a bounded time. May be called in a thread, and more than once."""
        ...


class SpanTrace:
    """The trace of one request: what its spans share, and where they go. `root` is the id of the request's span."""

    def __init__(
        self, spans: Spans, ids: Identifiers, trace_id: bytes, tracestate: bytes, root: bytes
    ) -> None:
        self.root = root
        self._spans = spans
        self._ids = ids
        self._trace_id = trace_id
        self._tracestate = tracestate
        self._offset = spans.offset()

    def new_span(self) -> bytes:
        """Return the id of a new span."""
        return self._ids.span()

    def add(
        self,
        name: str,
        kind: Kind,
        span_id: bytes,
        parent_id: bytes,
        start: float,
        end: float,
        attributes: Attributes,
        error: str | None = None,
    ) -> None:
        """Hand over a span that has ended; `start` and `end` are in seconds of the process's clock."""
        start, end = start + self._offset, end + self._offset
        self._spans.add(
            Span(
                self._trace_id,
                self._tracestate,
                span_id,
                parent_id,
                name,
                kind,
                start,
                end,
                attributes,
                error,
            )
        )
