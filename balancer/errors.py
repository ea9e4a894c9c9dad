"""What can go wrong while forwarding, and what the client is told.

Rule of this file: every error knows its HTTP status and its machine-readable reason; foreign exceptions
are translated into one of these where they appear, in `upstream.py`, so that nothing else has to know them.
"""

from __future__ import annotations

from policies.routing.facts import OutcomeKind


class ForwardingError(Exception):
    """Root of this room. `status`, `reason` and `retry_after` (seconds) are told to the client."""

    status = 502
    reason = "bad_gateway"
    retry_after: int | None = None


class ListenFailed(Exception):
    """The address to listen on cannot be had. Ends the command."""

    exit_code = 2


class LogFailed(Exception):
    """The access log cannot be opened. Ends the command."""

    exit_code = 2


class RecordingRefused(Exception):
    """A recording that cannot be begun. Ends the command."""

    exit_code = 2
    status = 409


class EndpointConflict(Exception):
    """A command that does not go with the endpoints that there are."""

    status = 409


class RequestRejected(ForwardingError):
    """The client's message may not be forwarded (RFC 9112 §§ 2–7); the connection closes after the answer."""

    def __init__(self, status: int, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.reason = reason


class MalformedBody(Exception):
    """Bytes that are no body as the head announced it; whose fault it is, the reader knows."""


class BodyTooLarge(MalformedBody):
    """A body beyond the limit."""


class NoEndpoint(ForwardingError):
    """No endpoint is able to take the request."""

    status = 503
    reason = "no_endpoint_available"
    retry_after = 1


class Unserved(ForwardingError):
    """Nobody had room for the request in its time. `retry_after` is worked out anew each time."""

    status = 503

    def __init__(self, detail: str, retry_after: int = 1) -> None:
        super().__init__(detail)
        self.retry_after = retry_after


class QueueFull(Unserved):
    """Every endpoint is full and so is the wait queue."""

    reason = "queue_full"


class QueueTimeout(Unserved):
    """Every endpoint stayed full for as long as a request may wait."""

    reason = "queue_timeout"


class DeadlinePassed(Unserved):
    """Whoever asked has said how long it waits, and no answer would be there by then."""

    reason = "deadline_passed"


class Shed(Unserved):
    """There is more to do than can be done, and others are more important."""

    reason = "shed"


class ShuttingDown(ForwardingError):
    """The unit is stopping and this request had not been sent to anyone."""

    status = 503
    reason = "shutting_down"
    retry_after = 1


class ClientLeft(ForwardingError):
    """The client left before it had its answer. Nobody is told; the status is the one that nginx logs."""

    status = 499
    reason = "client_left"


CLIENT_LEFT = ClientLeft("the client left")


class UpstreamError(ForwardingError):
    """An attempt at an endpoint failed. `outcome` is how the endpoint is charged for it."""

    outcome = OutcomeKind.RESET


class ConnectFailed(UpstreamError):
    """No connection could be made: nothing was sent, so any request may be tried elsewhere. `kind` is what such
    failures are counted by."""

    reason = "connect_failed"
    outcome = OutcomeKind.REFUSED
    kind = "other"

    def __init__(self, detail: str, inside: str = "", kind: str | None = None) -> None:
        """`detail` is told to the client, `inside` where it says more to whoever runs the unit."""
        super().__init__(detail)
        self.inside = inside or detail
        if kind is not None:
            self.kind = kind


class NameUnresolved(ConnectFailed):
    """The worker's name has no addresses, or nobody could say which."""

    reason = "name_unresolved"
    kind = "name"


class WorkerUntrusted(ConnectFailed):
    """The TLS handshake failed, the worker's certificate for one: nothing was sent."""

    reason = "tls_failed"
    kind = "tls"


class ConnectTimeout(ConnectFailed):
    """The worker did not complete the handshake in time."""

    status = 504
    reason = "connect_timeout"
    kind = "timeout"


class ConnectionBroken(UpstreamError):
    """The connection ended before the response did."""

    reason = "connection_broken"


class StreamRefused(ConnectFailed):
    """The worker has said that it has done nothing with the request (RFC 9113 § 8.7): any may be sent again."""

    reason = "stream_refused"
    outcome = OutcomeKind.RESET


class UnsupportedByTransport(UpstreamError):
    """The endpoint's transport has no way to pass this on. Never blamed on the endpoint."""

    status = 501
    reason = "not_carried"
    outcome = OutcomeKind.ABANDONED


class MalformedResponse(UpstreamError):
    """What the worker sent is not an HTTP response to this request."""

    reason = "malformed_response"


class ResponseTimeout(UpstreamError):
    """The first byte, or the next one, did not come in time."""

    status = 504
    reason = "response_timeout"
    outcome = OutcomeKind.TIMEOUT


class RequestOverdue(ResponseTimeout):
    """The whole of it took longer than a request may."""

    reason = "request_timeout"
