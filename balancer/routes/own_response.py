"""Handler of a request that the balancer answers itself: a redirect, a fixed response, or an error such as 429."""

from __future__ import annotations

from balancer.cluster.cluster import Cluster
from balancer.errors import ConnectionCut, ForwardingError, RateLimited
from balancer.exchange.field_edits import Edits
from balancer.exchange.responder import Responder
from balancer.http.h1.own_responses import edited
from balancer.http.h1.request_head import Request
from balancer.log.formats import NOT_CONNECTED, TARGET_LIMIT, Entry, excerpt, fault_of, grpc_status_of
from balancer.routes.route import Route, phrase_of


class OwnResponse:
    """Answers as a route states, or with an error. The body of the request is dropped.

    A connection whose request has been received whole stays open.
    """

    def __init__(
        self,
        cluster: Cluster,
        downstream: Responder,
        request: Request,
        answer: Route | ForwardingError,
        route: Route | None = None,
        edits: Edits | None = None,
    ) -> None:
        """`route` is the one that matches, where `answer` is an error."""
        self._cluster = cluster
        self._downstream = downstream
        self._request = request
        self._answer = answer
        self._route = answer if isinstance(answer, Route) else route
        self._edit = None if edits is None else edits.of_own(request, downstream.client, cluster)
        self._is_complete = not request.fields.has_body
        self._arrived = downstream.arrived

    @property
    def head(self) -> bytes:
        """Return the request head as received."""
        return self._request.raw

    def start(self) -> None:
        request, downstream, cluster, answer = self._request, self._downstream, self._cluster, self._answer
        stays = request.fields.keep_alive and self._is_complete and cluster.process.keeps_alive
        is_head = request.method == b"HEAD"
        error: ForwardingError | None = None
        if isinstance(answer, Route):
            status, fields, body = answer.response(request)
            if status not in (204, 304):  # RFC 9110 § 8.6
                fields += b"Content-Length: %d\r\n" % len(body)
            if not stays:
                fields += b"Connection: close\r\n"
            head = b"HTTP/1.1 %d %b\r\n%b%b\r\n" % (
                status,
                phrase_of(status),
                cluster.process.date_line,
                fields,
            )
            downstream.respond(edited(head if is_head else head + body, self._edit))
        else:
            error = answer
            status, body = error.status, b""
            field = error.fields if isinstance(error, RateLimited) else None
            cluster.counts.count_error(error)
            downstream.write_error(
                error, request.id, stays=stays, is_head=is_head, field=field, edit=self._edit
            )
        cluster.counts.responses[status] += 1
        self._log(error, status, 0 if is_head else len(body))
        downstream.exchange_ended(stays)

    def _log(self, error: ForwardingError | None, status: int, size: int) -> None:
        log, request = self._cluster.process.access_log, self._request
        if log is not None and log.takes(status, error):
            fault = fault_of(error, self._cluster.process.error_bodies)
            route = "" if self._route is None else self._route.label
            log.add(Entry(
                self._cluster.now(), fault, 0 if error is not None else status, request.method,
                request.received_target[:TARGET_LIMIT], request.id, excerpt(request.head), request.fields.is_http10,
                self._downstream.client, None, 0, NOT_CONNECTED, self._arrived, 0.0, 0.0, None, 0, size,
                cluster=self._cluster.name, grpc_status=grpc_status_of(self._downstream.call),
                extra=None if log.chosen is None else log.chosen.extra(request.head, b"", route),
            ))  # fmt: skip

    def request_body(self, data: bytes) -> None:
        """Ignored: the body is dropped."""

    def request_ended(self, trailers: bytes) -> None:
        self._is_complete = True

    def pause_response(self) -> None:
        """Ignored: the response is written at once."""

    def resume_response(self) -> None:
        """Ignored: the response is written at once."""

    def abandon(self, error: ConnectionCut) -> None:
        """Ignored: there is nothing to cancel."""

    def reject(self, error: ForwardingError) -> None:
        """Answer a malformed body with an error and close."""
        self._cluster.counts.count_error(error)
        self._cluster.counts.responses[error.status] += 1
        is_head = self._request.method == b"HEAD"
        self._downstream.write_error(error, self._request.id, stays=False, is_head=is_head, edit=self._edit)
        self._log(error, error.status, 0)
        self._downstream.exchange_ended(stays=False)

    def check(self, now: float) -> None:
        """Ignored: the client connection's own timeouts apply."""
