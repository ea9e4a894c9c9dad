"""An OpenTelemetry collector on loopback: takes OTLP over HTTP and decodes it with the protocol's own messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.stage import Stage
from tests.support.wire import Message, ScriptedWorker, response

TAKEN = response(b"", b"Content-Type: application/x-protobuf")


@dataclass(frozen=True)
class Received:
    """A span as the collector gets it; ids in hex, `start` and `end` in seconds."""

    name: str
    kind: str
    trace_id: str
    id: str
    parent_id: str
    tracestate: str
    start: float
    end: float
    status: str
    description: str
    attributes: dict[str, Any]
    resource: dict[str, Any]

    @property
    def duration(self) -> float:
        return self.end - self.start


def decoded(requests: Sequence[Message]) -> list[Received]:
    """Spans of all requests, in the order of their beginnings."""
    spans: list[Received] = []
    for request in requests:
        message = ExportTraceServiceRequest.FromString(request.body)
        for of_resource in message.resource_spans:
            resource = attributes_of(of_resource.resource.attributes)
            for scope in of_resource.scope_spans:
                assert scope.scope.name == "steelyard"
                spans += [received(span, resource) for span in scope.spans]
    return sorted(spans, key=lambda span: (span.start, -span.end))


def received(span: Any, resource: dict[str, Any]) -> Received:
    return Received(
        name=span.name,
        kind=span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        trace_id=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        tracestate=span.trace_state,
        start=span.start_time_unix_nano / 1e9,
        end=span.end_time_unix_nano / 1e9,
        status=span.status.StatusCode.Name(span.status.code).removeprefix("STATUS_CODE_").lower(),
        description=span.status.message,
        attributes=attributes_of(span.attributes),
        resource=resource,
    )


def attributes_of(pairs: Any) -> dict[str, Any]:
    return {pair.key: value_of(pair.value) for pair in pairs}


def value_of(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [value_of(each) for each in value.array_value.values]
    return getattr(value, kind)


async def flushed(stage: Stage) -> None:
    """Export what waits; no span is taken afterwards."""
    tracing = stage.cluster.process.tracing
    assert tracing is not None
    assert tracing.spans is not None
    await asyncio.to_thread(tracing.spans.stop)


async def spans_of(stage: Stage, collector: ScriptedWorker) -> list[Received]:
    """Export what waits, and return all spans that the collector has got."""
    await flushed(stage)
    return decoded(collector.requests)
