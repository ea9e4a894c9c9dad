"""Export of spans to an OpenTelemetry collector, by OTLP over HTTP from a thread of its own.

The SDK's batch processor has the thread, and its exporter the protocol, repetitions, and certificates and headers of
the environment (`OTEL_EXPORTER_OTLP_…`). The data path only appends a span and never waits: if the queue is full, the
span is dropped and counted. Only `tracing_of` imports this module, where spans are exported.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from threading import Thread
from typing import Final

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from balancer.config.schema.sections import TracingConfig
from balancer.syntax.printable import one_line
from balancer.tracing.spans import Kind, Span, SpanCounts

BATCH: Final = 32
"""Spans of one request to the collector. Encoding them takes some 1.5 ms, for which the event loop may have to wait."""

DELAY: Final = 1.0
"""Seconds for which spans are gathered, unless there are enough for a batch."""

TIMEOUT: Final = 5.0
"""Seconds that the export of one batch may take, repetitions included. Its spans are lost then."""

FLUSH_LIMIT: Final = 2.0
"""Seconds that a stop waits for the last spans."""

REASON_LIMIT: Final = 200

SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
KINDS: Final = {Kind.SERVER: SpanKind.SERVER, Kind.CLIENT: SpanKind.CLIENT, Kind.INTERNAL: SpanKind.INTERNAL}
UNSET: Final = Status(StatusCode.UNSET)


class SpanExport:
    """Export to the collector of `config`. `add` must be called from one thread. `offset` returns that of
    `wall_offset`; `say` prints a line for the operator."""

    def __init__(
        self, config: TracingConfig, offset: Callable[[], float], version: str, say: Callable[[str], None]
    ) -> None:
        self._config = config
        self.offset = offset
        self.counts = SpanCounts()
        self.is_good = True
        self._say = say
        self._added = 0
        self._limit = config.queue
        self._is_stopped = False
        self._scope = InstrumentationScope("steelyard", version)
        self._resource = Resource.create({
            "service.name": config.service, "service.version": version, "process.pid": os.getpid(),
        })  # fmt: skip
        self._log = Log()
        self._exporter: SpanExporter = OTLPSpanExporter(
            config.endpoint, timeout=TIMEOUT, compression=Compression.NoCompression
        )
        self._processor = BatchSpanProcessor(
            Counted(self._exporter, self._result),
            max_queue_size=max(config.queue, BATCH),  # never reached: `add` counts those being exported, too
            schedule_delay_millis=DELAY * 1e3,
            max_export_batch_size=min(config.queue, BATCH),
        )

    def is_for(self, config: TracingConfig) -> bool:
        """Return whether this export is as `config` describes it."""
        mine = self._config
        return (mine.endpoint, mine.service, mine.queue) == (config.endpoint, config.service, config.queue)

    @property
    def waiting(self) -> int:
        return self._added - self.counts.exported - self.counts.lost

    def add(self, span: Span) -> None:
        if self._is_stopped or self.waiting >= self._limit:
            self.counts.dropped += 1
            return
        self._added += 1
        self._processor.on_end(sdk_span(span, self._resource, self._scope))

    def stop(self) -> None:
        if self._is_stopped:
            return
        self._is_stopped = True
        flush = Thread(target=self._processor.shutdown, name="span-flush", daemon=True)
        flush.start()
        flush.join(FLUSH_LIMIT)
        if flush.is_alive():
            self._exporter.shutdown()  # ends the wait before a repetition

    # --- the SDK's thread

    def _result(self, number: int, is_good: bool) -> None:
        """Count an export; print a line when exports begin to fail, and when they succeed again."""
        counts, where, was_good = self.counts, self._config.endpoint, self.is_good
        reason = self._log.taken()
        self.is_good = is_good
        if is_good:
            counts.exported += number
            if not was_good:
                self._say(f"tracing: {where} takes spans again; lost since the start: {counts.lost}")
        else:
            counts.lost += number
            if was_good:
                self._say(f"tracing: {where} takes no spans ({reason}); they are lost until it does")


class Counted(SpanExporter):
    """An exporter whose results are reported."""

    def __init__(self, exporter: SpanExporter, result: Callable[[int, bool], None]) -> None:
        self._exporter = exporter
        self._result = result

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._exporter.export(spans)
        except Exception:
            self._result(len(spans), False)
            raise
        self._result(len(spans), result is SpanExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class Log(logging.Handler):
    """Keeps what OpenTelemetry logs: the first message of an export is the reason of its failure."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._first = ""
        logger = logging.getLogger("opentelemetry")
        logger.handlers = [self]
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self._first = self._first or record.getMessage()

    def taken(self) -> str:
        """Return the reason, and forget it."""
        first, self._first = self._first, ""
        return one_line(first)[:REASON_LIMIT] or "no reason given"


def sdk_span(span: Span, resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
    """Return a finished span as the SDK's exporter takes it."""
    trace_id = int(span.trace_id, 16)
    state = TraceState.from_header([span.tracestate.decode()]) if span.tracestate else TraceState()
    parent = None
    if span.parent_id:
        is_remote = span.kind is Kind.SERVER
        parent = SpanContext(trace_id, int(span.parent_id, 16), is_remote, SAMPLED, state)
    return ReadableSpan(
        span.name,
        SpanContext(trace_id, int(span.id, 16), False, SAMPLED, state),
        parent,
        resource,
        span.attributes,
        kind=KINDS[span.kind],
        status=UNSET if span.error is None else Status(StatusCode.ERROR, span.error or None),
        start_time=int(span.start * 1e9),
        end_time=int(span.end * 1e9),
        instrumentation_scope=scope,
    )
