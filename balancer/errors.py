"""Errors of the data path, and how they are reported to the client.

Every error has an HTTP status and a machine-readable reason. Exceptions of libraries are translated into one of these
where they are raised, in `balancer/upstream` and `balancer/http/h2`, so that no other module handles them.
"""

from __future__ import annotations

from typing import Final

from policies.facts import OutcomeKind


class ForwardingError(Exception):
    """Base of the errors answered to the client with `status`, `reason`, `retry_after` (seconds) and the further field
    lines `fields`."""

    status = 502
    reason = "bad_gateway"
    retry_after: int | None = None
    fields = ""


class ListenFailed(Exception):
    """The listening address is not available. Ends the command."""

    exit_code = 2


class LogFailed(Exception):
    """The access log cannot be opened. Ends the command."""

    exit_code = 2


class StoreLost(Exception):
    """The store cannot be reached or does not answer in time; the text is the reason."""


class CommandRefused(Exception):
    """An admin command is not carried out: why, in one line, and the status of the answer."""

    def __init__(self, problem: str, status: int = 409) -> None:
        super().__init__(problem)
        self.status = status


class RequestRejected(ForwardingError):
    """The client's message may not be forwarded (RFC 9112 §§ 2–7); the connection closes after the answer."""

    def __init__(self, status: int, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.reason = reason


def body_too_large(limit: int) -> RequestRejected:
    """Return the error for a body of more than `limit` bytes."""
    return RequestRejected(413, "body_too_large", f"at most {limit} bytes of body")


class MalformedBody(Exception):
    """The body does not match the framing announced in the head. The caller knows which side sent it."""


class BodyTooLarge(MalformedBody):
    """The body exceeds the size limit."""


class NoRoute(ForwardingError):
    """No route matches the request."""

    status = 404
    reason = "no_route"


class AmbiguousPath(ForwardingError):
    """Workers may take the path of the request for another one, which another route may match."""

    status = 400
    reason = "ambiguous_path"


class Denied(ForwardingError):
    """The cluster that was asked has denied the request, with this status; the client gets its answer."""

    status = 401
    reason = "denied"

    def __init__(self, status: int, size: int) -> None:
        """`size` is the number of bytes of the answer's body."""
        super().__init__("the request is not authorised")
        self.status = status
        self.size = size


class AuthorizationFailed(ForwardingError):
    """The cluster that was asked has not decided whether the request is authorised: it is not forwarded."""

    status = 503
    reason = "authorization_failed"


class RateLimited(ForwardingError):
    """A rate limit is used up. `fields` has the lines RateLimit-Policy and RateLimit."""

    status = 429
    reason = "rate_limited"

    def __init__(self, limit: str, retry_after: int, fields: str) -> None:
        super().__init__(f"the rate limit {limit} is used up, retry in {retry_after} s")
        self.retry_after = retry_after
        self.fields = fields


class NoEndpoint(ForwardingError):
    """No endpoint can take the request."""

    status = 503
    reason = "no_endpoint_available"
    retry_after = 1


class Unserved(ForwardingError):
    """No endpoint had capacity for the request in time. `retry_after` is computed for each error."""

    status = 503

    def __init__(self, detail: str, retry_after: int = 1) -> None:
        super().__init__(detail)
        self.retry_after = retry_after


class QueueFull(Unserved):
    """Every endpoint is full and so is the wait queue."""

    reason = "queue_full"


class BytesExhausted(Unserved):
    """Requests that wait take all the memory that their client, or all clients, may use."""

    reason = "bytes_exhausted"


class TooManyRequests(ForwardingError):
    """The client has too many requests in flight and waiting, or too many tunnels. Other clients are served."""

    status = 429
    reason = "client_busy"
    retry_after = 1


class QueueTimeout(Unserved):
    """Every endpoint stayed full for the maximum time in the wait queue."""

    reason = "queue_timeout"


class DeadlinePassed(Unserved):
    """The client's deadline would pass before a response."""

    reason = "deadline_passed"


class Shed(Unserved):
    """The request was shed in favour of higher priority levels."""

    reason = "shed"


class PoolOverloaded(Unserved):
    """The policy rejected the request: it would wait at every endpoint, and requests fail because they wait."""

    reason = "overloaded"


class ConnectionCut(ForwardingError):
    """The client's connection or stream ended before its response did: nothing more is sent to it.

    `status` is logged if no response had begun; `end` is the kind of end in the access log.
    """

    end = "abandoned"


class ClientLeft(ConnectionCut):
    """The client disconnected. The status is the one that nginx logs."""

    status = 499
    reason = "client_left"


class ClientStalled(ConnectionCut):
    """The client took nothing of its response for the idle timeout."""

    status = 408
    reason = "client_stalled"

    def __init__(self, idle: float) -> None:
        super().__init__(f"the client took nothing of the response for {idle:g} s")


class Http2Error(ConnectionCut):
    """The client violated HTTP/2 or flooded the balancer, which ended its stream or connection."""

    status = 400
    reason = "http2_error"
    end = "rejected"


class ShuttingDown(ConnectionCut):
    """The balancer stopped, and the request had not ended within the grace period."""

    status = 503
    reason = "shutting_down"
    end = "unavailable"


class TunnelCut(ShuttingDown):
    """The balancer stopped, and closed a tunnel."""

    end = "tunnel"


class TunnelBroken(Http2Error):
    """The client violated HTTP/2 or flooded the balancer, which ended the stream or connection of a tunnel."""

    end = "tunnel"


class TunnelIdle(ConnectionCut):
    """The balancer closed a tunnel for its idle timeout."""

    reason = "tunnel_idle"
    end = "tunnel"

    def __init__(self, idle: float) -> None:
        super().__init__(f"no byte in either direction for {idle:g} s")


CLIENT_LEFT = ClientLeft("the client left")
SHUTTING_DOWN = ShuttingDown("the balancer stopped before the request had ended")
TUNNEL_CUT = TunnelCut("the balancer stopped before the tunnel had ended")


class UpstreamError(ForwardingError):
    """An attempt at an endpoint failed. `outcome` is the outcome charged to the endpoint."""

    outcome = OutcomeKind.RESET
    needs_own = False
    """The request may have ended a connection that others shared: a repetition gets one of its own."""


class ConnectFailed(UpstreamError):
    """No upstream connection could be opened: nothing was sent, so any request may be retried elsewhere.

    `kind` is the label under which such failures are counted. `is_prompt`: the endpoint was not reached, and no timeout
    was waited for, so that every other endpoint can be tried.
    """

    reason = "connect_failed"
    outcome = OutcomeKind.REFUSED
    kind = "other"
    is_prompt = True

    def __init__(self, detail: str, inside: str = "", kind: str | None = None) -> None:
        """`detail` is reported to the client, `inside` to the operator if it contains more."""
        super().__init__(detail)
        self.inside = inside or detail
        if kind is not None:
            self.kind = kind

    def repeated(self) -> ConnectFailed:
        """Return the error for a request that fails with it without a connect of its own."""
        error = type(self)(str(self), self.inside, self.kind)
        error.is_prompt = True
        return error


class NameUnresolved(ConnectFailed):
    """The worker's name has no addresses, or its resolution failed."""

    reason = "name_unresolved"
    kind = "name"


class WorkerUntrusted(ConnectFailed):
    """The TLS handshake failed, for example for the worker's certificate: nothing was sent."""

    reason = "tls_failed"
    kind = "tls"


class ConnectTimeout(ConnectFailed):
    """The worker did not complete the handshake in time."""

    status = 504
    reason = "connect_timeout"
    kind = "timeout"
    is_prompt = False


class ConnectionBroken(UpstreamError):
    """The connection ended before the response did."""

    reason = "connection_broken"


class StreamReset(ConnectionBroken):
    """The worker has reset the stream of the request with error code `code` (RFC 9113 § 7)."""

    def __init__(self, detail: str, code: int) -> None:
        super().__init__(detail)
        self.code = code


class StreamRefused(ConnectFailed):
    """The worker has not processed the request (RFC 9113 § 8.7): any request may be retried."""

    reason = "stream_refused"
    outcome = OutcomeKind.RESET
    is_prompt = False


class UnsupportedByTransport(UpstreamError):
    """The endpoint's transport cannot carry the request. Never charged to the endpoint."""

    status = 501
    reason = "not_carried"
    outcome = OutcomeKind.ABANDONED


class HeadTooLarge(UnsupportedByTransport):
    """The worker has announced that it takes no head of this size."""

    status = 431
    reason = "head_too_large"


class MalformedResponse(UpstreamError):
    """The worker's response is not a valid HTTP response to the request."""

    reason = "malformed_response"


class ResponseTimeout(UpstreamError):
    """The first byte of the response, or the next one, did not arrive in time."""

    status = 504
    reason = "response_timeout"
    outcome = OutcomeKind.TIMEOUT


class RequestOverdue(ResponseTimeout):
    """The request exceeded its total timeout."""

    reason = "request_timeout"


NOT_OF_CLIENTS: Final = frozenset((
    *("authorization_failed", "bytes_exhausted", "connect_failed", "connect_timeout", "connection_broken"),
    *("deadline_passed", "malformed_response", "name_unresolved", "no_endpoint_available", "not_carried"),
    *("overloaded", "queue_full", "queue_timeout", "request_timeout", "response_timeout", "shed"),
    *("shutting_down", "stream_refused", "tls_failed", "tunnel_idle"),
))  # fmt: skip
"""Reasons with a status of 5xx that are no fault of the client's request."""

REASONS: Final = NOT_OF_CLIENTS | frozenset((
    *("ambiguous_path", "bad_framing", "bad_grpc_timeout", "bad_host", "bad_max_forwards"),
    *("bad_request_line", "bad_scheme", "bad_target", "bad_version", "body_timeout", "body_too_large"),
    *("client_busy", "client_left", "client_stalled", "denied", "head_timeout", "head_too_large"),
    *("http2_error", "loop", "malformed_body", "malformed_request", "max_forwards", "method_not_allowed"),
    *("no_route", "not_found", "plain_http", "rate_limited", "target_too_long", "too_many_fields"),
    *("unknown_coding", "unknown_expectation", "unknown_origin", "unknown_path", "unknown_protocol"),
))  # fmt: skip
"""Reasons of all error responses, which docs/operations.md explains."""
