"""Span of an attempt, handed over when the attempt is settled, with that of its wait for a connection."""

from __future__ import annotations

from typing import Final

from balancer.cluster.cluster import Cluster
from balancer.errors import ForwardingError
from balancer.exchange.routed_attempt import RoutedAttempt
from balancer.exchange.span_attributes import (
    Values,
    attempt_attributes,
    phase_attributes,
    pick_attributes,
    response_attributes,
    span_name,
)
from balancer.http.h1.traced_head import TracedRequest
from balancer.log.formats import NOT_CONNECTED, Fault, fault_of
from balancer.tracing.spans import Kind, SpanTrace
from balancer.upstream.dial.phases import NOTHING
from balancer.upstream.request import UpstreamRequest
from policies.facts import OutcomeKind
from policies.routing.assignment import Assignment

ERROR_OF_WORKER: Final = 400
"""Lowest status that is an error of a client's span; of a server's it is 500 (semantic conventions)."""


class AttemptSpan:
    """Span of an attempt, which the traceparent that the worker receives names; `number` counts from 0."""

    def __init__(
        self,
        cluster: Cluster,
        assignment: Assignment,
        request: TracedRequest,
        trace: SpanTrace,
        number: int,
        kind: str,
    ) -> None:
        self.id = trace.new_span()
        self._trace = trace
        self._assignment = assignment
        self._name = span_name(request.method)
        self._fault: Fault | None = None
        self._phases = NOTHING
        self._has_waited = False
        picks = cluster.router.trace
        self._values = attempt_attributes(request, assignment.endpoint, number)
        self._values |= pick_attributes(picks.last if picks is not None else None)
        self._values |= {
            "steelyard.policy": cluster.policy,
            "steelyard.attempt": kind,
            **cluster_attributes(cluster),
        }

    def connected(self, upstream: UpstreamRequest) -> None:
        """Note the connection that the attempt has waited for."""
        self._has_waited = True
        self._phases = upstream.phases

    def failed(self, error: ForwardingError) -> None:
        """Note the error that ends the attempt."""
        self._fault = fault_of(error)

    def ended(self, attempt: RoutedAttempt, kind: OutcomeKind, now: float) -> None:
        """Export the span of a settled attempt, and that of its wait for a connection."""
        is_failure = kind.is_failure or self._fault is not None
        error = description_of(self._fault) or kind.value if is_failure else None
        if attempt.connection == NOT_CONNECTED:
            self._export_connect(attempt, now, error)
        elif self._has_waited:
            self._export_connect(attempt, attempt.sent_at, None)
        values = self._values
        values |= response_attributes(attempt.status, self._fault, ERROR_OF_WORKER)
        if is_failure:
            values.setdefault("error.type", kind.value)
        values["steelyard.outcome"] = kind.value
        values["steelyard.connection"] = attempt.connection
        if attempt.has_lost:
            values["steelyard.lost"] = True
        is_error = is_failure or attempt.status >= ERROR_OF_WORKER
        self._trace.add(
            self._name, Kind.CLIENT, self.id, self._trace.root, self._assignment.routed_at, now, values,
            error or "" if is_error else None,
        )  # fmt: skip

    def _export_connect(self, attempt: RoutedAttempt, end: float, error: str | None) -> None:
        """Export the wait for a connection."""
        trace, values = self._trace, phase_attributes(self._phases)
        values["steelyard.connection"] = attempt.connection
        trace.add(
            "connect",
            Kind.INTERNAL,
            trace.new_span(),
            self.id,
            self._assignment.routed_at,
            end,
            values,
            error,
        )


def cluster_attributes(cluster: Cluster) -> Values:
    """Return the attribute of a named cluster."""
    return {"steelyard.cluster": cluster.name} if cluster.name else {}


def description_of(fault: Fault | None) -> str:
    return "" if fault is None else f"{fault.reason}: {fault.detail}"
