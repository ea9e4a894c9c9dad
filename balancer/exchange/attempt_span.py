"""Span of an attempt, handed over when the attempt is settled, with that of its wait for a connection.

The attributes of all spans are here, too: the HTTP semantic conventions of OpenTelemetry
(https://opentelemetry.io/docs/specs/semconv/http/), and the balancer's own under `steelyard.`. They are made for
sampled requests only.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from balancer.cluster.cluster import Cluster
from balancer.errors import ForwardingError
from balancer.exchange.routed_attempt import RoutedAttempt
from balancer.http.h1.client import HTTP2, Client
from balancer.http.h1.fields import first_value_of, host_of, scheme_of
from balancer.http.h1.request_head import Request
from balancer.http.h1.traced_head import TracedRequest
from balancer.log.formats import NOT_CONNECTED, TARGET_LIMIT, Fault, fault_of
from balancer.tracing.spans import Kind, SpanTrace
from balancer.upstream.dial.phases import NOTHING, DialTimes
from balancer.upstream.request import UpstreamRequest
from policies.facts import Endpoint, OutcomeKind
from policies.insight.explanation import Explanation
from policies.routing.assignment import Assignment

METHODS: Final = frozenset(
    (b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", b"TRACE", b"PATCH", b"QUERY")
)
"""Methods that the conventions know; others are `_OTHER`, so that clients cannot invent names of spans."""

TEXT_LIMIT: Final = 1024
"""Characters of a text from outside, except of a target."""

_CREDENTIALS: Final = re.compile(r"([?&](?:AWSAccessKeyId|Signature|sig|X-Goog-Signature)=)[^&]*")
"""Parameters of a query whose values the conventions replace."""

_AGENT: Final = first_value_of(b"user-agent")
_FORWARDED_FOR: Final = first_value_of(b"x-forwarded-for")

Values = dict[str, str | bool | int | float | tuple[str, ...]]


def span_name(method: bytes) -> str:
    """Return the name of the span of a request or attempt."""
    return method.decode() if method in METHODS else "HTTP"


def method_attributes(method: bytes) -> Values:
    if method in METHODS:
        return {"http.request.method": method.decode()}
    return {"http.request.method": "_OTHER", "http.request.method_original": _text(method)}


def request_attributes(request: Request, client: Client) -> Values:
    """Return the attributes of a request as the client has sent it, or the first proxy that is trusted."""
    head = request.head
    target = request.received_target  # before a route has rewritten its path
    path, mark, query = _target(target if target.startswith(b"/") else request.target).partition("?")
    values = method_attributes(request.method)
    values["url.path"] = path
    if mark:
        values["url.query"] = query
    values["url.scheme"] = (scheme_of(head) or client.proto).decode()
    values |= _server(host_of(head).decode("latin-1"))
    values["client.address"] = _found(_FORWARDED_FOR, head).partition(",")[0] or client.address.decode()
    values["network.peer.address"] = client.address.decode()
    values["network.protocol.version"] = _version(request, client)
    agent = _found(_AGENT, head)
    if agent:
        values["user_agent.original"] = agent
    values["steelyard.request_id"] = _text(request.id)
    return values


def attempt_attributes(request: Request, endpoint: Endpoint, number: int) -> Values:
    """Return the attributes of an attempt; `number` counts from 0."""
    values = method_attributes(request.method)
    values["url.full"] = endpoint.address + _target(request.target)
    url = urlsplit(endpoint.address)
    values |= _server(url.netloc or url.path)
    values |= {"steelyard.endpoint": endpoint.id, "steelyard.region": endpoint.region}
    if number:
        values["http.request.resend_count"] = number
    return values


def response_attributes(status: int, fault: Fault | None, least_error: int) -> Values:
    """Return the attributes of a response or a failure; statuses from `least_error` on are errors."""
    values: Values = {"http.response.status_code": status} if status else {}
    if fault is not None:
        values["error.type"] = fault.reason
    elif status >= least_error:
        values["error.type"] = str(status)
    return values


def pick_attributes(explanation: Explanation | None) -> Values:
    """Return the reasons of a pick and the scores that were compared; none if it was not explained."""
    if explanation is None:
        return {}
    return {
        "steelyard.pick.reasons": explanation.reasons,
        "steelyard.pick.explanation": str(explanation)[:TEXT_LIMIT],
    }


def phase_attributes(phases: DialTimes) -> Values:
    """Return how long the phases of a connect took, in seconds; none for a connection that several requests share."""
    if not phases.appconnect:
        return {}
    return {
        "steelyard.connect.lookup": phases.namelookup,
        "steelyard.connect.tcp": phases.trip,
        "steelyard.connect.tls": phases.handshake,
    }


def _version(request: Request, client: Client) -> str:
    if client.version == HTTP2:
        return "2"
    return "1.0" if request.fields.is_http10 else "1.1"


def _target(target: bytes) -> str:
    return _CREDENTIALS.sub(r"\1REDACTED", target[:TARGET_LIMIT].decode("latin-1"))


def _server(authority: str) -> Values:
    """Return host and port of an authority."""
    host, colon, port = authority.rpartition(":")
    if not colon or not port.isdecimal():
        host, port = authority, ""
    values: Values = {"server.address": host.strip("[]")}
    if port:
        values["server.port"] = int(port)
    return values


def _found(field: re.Pattern[bytes], head: bytes) -> str:
    match = field.search(head)
    return _text(match[1]) if match is not None else ""


def _text(value: bytes) -> str:
    return value[:TEXT_LIMIT].decode("latin-1")


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
