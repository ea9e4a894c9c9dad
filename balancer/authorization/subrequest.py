"""Subrequest of a forward authorisation, at an endpoint that the policy of the asked cluster picks."""

from __future__ import annotations

from typing import Final, Protocol

from balancer.cluster.cluster import Cluster
from balancer.errors import ConnectFailed, MalformedResponse, UpstreamError
from balancer.exchange.routed_attempt import RoutedAttempt
from balancer.http.h1.response_head import Response
from balancer.upstream.request import UpstreamRequest
from policies.facts import OutcomeKind, kind_of_answer
from policies.routing.assignment import Assignment

BODY_LIMIT: Final = 65_536
"""Bytes of an answer's body, which is sent to a client whose request is denied."""


class Asking(Protocol):
    """What asks: it gets the whole answer, or an error."""

    def decided(self, response: Response, body: bytes) -> None: ...
    def undecided(self, error: UpstreamError) -> None: ...


class Subrequest(RoutedAttempt):
    """One attempt at a subrequest, which reports to `asking` once, unless it is ended before."""

    def __init__(self, asking: Asking, head: bytes, cluster: Cluster, assignment: Assignment) -> None:
        super().__init__(cluster, assignment)
        self._asking: Asking | None = asking
        self._head = head
        self._response: Response | None = None
        self._pieces: list[bytes] = []

    def connect_failed(self, error: ConnectFailed) -> None:
        self.response_failed(error)

    def send(self, upstream: UpstreamRequest) -> None:
        self.upstream = upstream
        head = self._head
        if self.assignment.endpoint.host:
            head = self.addressed(head, b"GET")
        upstream.send(head, self, b"GET", None)

    # --- the response (`ResponseSink`)

    def response_whole(self, response: Response, body: bytes) -> None:
        self._note_head(response)
        self.response_body(body)
        self.response_ended(b"")

    def response_started(self, response: Response) -> None:
        if response.status == 101:
            self.response_failed(MalformedResponse("101 for a request without Upgrade"))
        elif response.status >= 200:
            self._note_head(response)

    def _note_head(self, response: Response) -> None:
        self._response = response
        self.head_came(response)

    def response_body(self, data: bytes) -> None:
        self.bytes_out += len(data)
        self._pieces.append(data)
        if self.bytes_out > BODY_LIMIT:
            self.response_failed(MalformedResponse(f"more than {BODY_LIMIT >> 10} KiB of body"))

    def response_ended(self, trailers: bytes) -> None:
        asking, response = self._asking, self._response
        if asking is None or response is None:
            return
        self.end(kind_of_answer(response.status), is_clean=True)
        asking.decided(response, b"".join(self._pieces))

    def response_failed(self, error: UpstreamError) -> None:
        asking = self._asking
        if asking is not None:
            self.end(error.outcome, is_clean=False)
            asking.undecided(error)

    # --- ends

    def end(self, kind: OutcomeKind, *, is_clean: bool = False) -> None:
        """Give up the connection, and settle; nothing more is reported."""
        self._asking = None
        self.release(is_clean)
        self.settle(kind, self.cluster.now(), 0)
