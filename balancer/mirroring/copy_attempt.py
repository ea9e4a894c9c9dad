"""The attempt of a copy at an endpoint of the mirror's cluster: leases a connection, sends, reads, is settled.

It is settled as the attempt of a request would be, so that policy, health and limits of the cluster work. Of the
response the status and the time of the head are kept, and the rest is discarded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from balancer.cluster.cluster import Cluster
from balancer.errors import ConnectFailed, ResponseTimeout, UpstreamError
from balancer.exchange.routed_attempt import RoutedAttempt
from balancer.http.h1.response_head import Response
from balancer.upstream.request import UpstreamRequest
from policies.facts import OutcomeKind, kind_of_answer
from policies.routing.assignment import Assignment

if TYPE_CHECKING:
    from balancer.mirroring.mirror import RequestCopy

READ_LIMIT: Final = 1 << 20
READ_TIME: Final = 10.0
"""Bytes of a response, and seconds after its head, that are read so that the connection can be kept; of a response
that is longer or slower the rest is not read. Without these limits, the copy of an endless response would never end."""


class CopyAttempt(RoutedAttempt):
    """An attempt at a copy, which is never sent a second time."""

    def __init__(self, copy: RequestCopy, cluster: Cluster, assignment: Assignment) -> None:
        super().__init__(cluster, assignment)
        self._copy = copy
        self._bytes_in = 0

    def connect_failed(self, error: ConnectFailed) -> None:
        self.response_failed(error)

    def send(self, upstream: UpstreamRequest) -> None:
        self.upstream = upstream
        head, body = self._copy.take_request()
        if self.assignment.endpoint.host:
            head = self.addressed(head, self._copy.method)
        self._bytes_in = 0 if body is None else body.size
        upstream.send(head, self, self._copy.method, body)

    # --- the response (`ResponseSink`)

    def response_whole(self, response: Response, body: bytes) -> None:
        self.bytes_out = len(body)
        self.head_came(response)
        self._end()

    def response_started(self, response: Response) -> None:
        if response.status >= 200:
            self.head_came(response)

    def response_body(self, data: bytes) -> None:
        self.bytes_out += len(data)
        if self.bytes_out > READ_LIMIT:
            self._end(is_cut=True)

    def response_ended(self, trailers: bytes) -> None:
        if trailers and self.cluster.reads_load:
            self.load = self.cluster.reports.read(trailers) or self.load
        self._end()

    def response_failed(self, error: UpstreamError) -> None:
        if not self.is_over:
            self.end(error.outcome, is_clean=False)
            self._copy.failed(error.reason)

    # --- ends

    def check(self, now: float) -> None:
        """Enforce the first-byte timeout of the cluster, and the time to read a response; `now` is the cached time."""
        timeout = self.cluster.timeouts.first_byte
        if self.first_byte_at is not None:
            if now - self.first_byte_at > READ_TIME:
                self._end(is_cut=True)
        elif self.upstream is not None and now - self.sent_at > timeout:
            self.response_failed(ResponseTimeout(f"no response within {timeout:g} s"))

    def end(self, kind: OutcomeKind, *, is_clean: bool) -> None:
        """Give up the connection, and settle."""
        self.release(is_clean)
        self.settle(kind, self.cluster.now(), self._bytes_in)

    def _end(self, *, is_cut: bool = False) -> None:
        """End after the response, unless that has happened: the rest of a read is reported also after it was cut."""
        if not self.is_over and self.first_byte_at is not None:
            self.end(kind_of_answer(self.status), is_clean=not is_cut)
            self._copy.answered(self.status, self.first_byte_at, is_cut=is_cut)
