"""Handlers of requests that the balancer answers itself: a redirect, a fixed response, an error such as 429, and the
refusal of a message."""

from __future__ import annotations

from balancer.cluster.cluster import Cluster
from balancer.errors import ConnectionCut, ForwardingError, RequestRejected
from balancer.exchange.field_edits import Edits
from balancer.exchange.responder import Responder
from balancer.http.h1.field_list import REASONS
from balancer.http.h1.fields import host_of
from balancer.http.h1.own_responses import ErrorAnswer, edited
from balancer.http.h1.request_fields import RequestFields
from balancer.http.h1.request_head import Request
from balancer.log.formats import (
    NOT_CONNECTED,
    TARGET_LIMIT,
    Entry,
    excerpt,
    fault_of,
    grpc_status_of,
    requested,
)
from balancer.routes.route import Route
from balancer.routes.table import RouteTable

HOST_LIMIT = 256
"""Bytes of a refused request's Host that are logged."""


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
        self._arrived = request.arrived or downstream.arrived

    @property
    def head(self) -> bytes:
        return self._request.raw

    def start(self) -> None:
        request, downstream, cluster, answer = self._request, self._downstream, self._cluster, self._answer
        stays = request.fields.keep_alive and self._is_complete and cluster.process.keeps_alive
        is_head = request.method == b"HEAD"
        if isinstance(answer, Route):
            status, fields, body = answer.response(request)
            if status not in (204, 304):  # RFC 9110 § 8.6
                fields += b"Content-Length: %d\r\n" % len(body)
            if not stays:
                fields += b"Connection: close\r\n"
            head = b"HTTP/1.1 %d %b\r\n%b%b\r\n" % (
                status,
                REASONS.get(status, b""),
                cluster.process.date_line,
                fields,
            )
            status = downstream.respond(edited(head if is_head else head + body, self._edit))
            self._ended(None, status, 0 if is_head else len(body), stays)
        else:
            self._answer_by(answer, stays=stays)

    def _answer_by(self, error: ForwardingError, *, stays: bool) -> None:
        is_head = self._request.method == b"HEAD"
        self._cluster.counts.count_error(error)
        form = self._cluster.error_form
        self._downstream.write_error(ErrorAnswer(error, self._request.id, stays, is_head, self._edit, form))
        self._ended(error, error.status, 0, stays)

    def _ended(self, error: ForwardingError | None, status: int, size: int, stays: bool) -> None:
        self._cluster.counts.responses[status] += 1
        self._log(error, status, size)
        self._downstream.exchange_ended(stays)

    def _log(self, error: ForwardingError | None, status: int, size: int) -> None:
        log, request = self._cluster.process.access_log, self._request
        if log is not None and log.takes(status, error):
            fault = fault_of(error, self._cluster.process.error_bodies, self._cluster.error_form)
            route = "" if self._route is None else self._route.label
            method, target, head = self._logged(request)
            log.add(Entry(
                self._cluster.now(), fault, 0 if error is not None else status, method, target, request.id, head,
                request.fields.is_http10, self._downstream.client, None, 0, NOT_CONNECTED, self._arrived,
                0.0, 0.0, None, 0, size,
                cluster=self._cluster.name, grpc_status=grpc_status_of(self._downstream.call),
                policy=self._cluster.policy,
                extra=None if log.chosen is None else log.chosen.extra(request.head or request.raw, b"", route),
            ))  # fmt: skip

    def _logged(self, request: Request) -> tuple[bytes, bytes, bytes]:
        """Return method, target and head for the access log."""
        return request.method, request.received_target[:TARGET_LIMIT], excerpt(request.head)

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
        self._answer_by(error, stays=False)

    def check(self, now: float) -> None:
        """Ignored: the client connection's own timeouts apply."""


class Refusal(OwnResponse):
    """Answers a message that may not be forwarded, or of which only a part has come, with an error. It waits for the
    requests before it like any other, and closes a connection of HTTP/1.1.
    """

    def __init__(
        self,
        cluster: Cluster,
        downstream: Responder,
        error: RequestRejected,
        head: bytes,
        routes: RouteTable | None,
    ) -> None:
        method = b"HEAD" if head.startswith(b"HEAD ") else b""
        fields = RequestFields(b"", keep_alive=False, is_http10=b" HTTP/1.0\r" in head)
        unread = Request(method, b"", b"", b"", fields, head)
        super().__init__(cluster, downstream, unread, error, edits=None if routes is None else routes.edits)

    def _logged(self, request: Request) -> tuple[bytes, bytes, bytes]:
        """Return what an unvalidated head shows."""
        return *requested(request.raw), b"\r\nHost: %b\r\n" % host_of(request.raw)[:HOST_LIMIT]

    def reject(self, error: ForwardingError) -> None:
        """Ignored: the request is rejected already."""
