"""The attempt of a copy at an endpoint of the mirror's pool: leases a connection, sends, reads, is settled.

It is settled as the attempt of a request would be, so that policy, health and limits of the pool work. Of the response
the status and the time of the head are kept, and the rest is discarded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from balancer.errors import ConnectFailed, MalformedResponse, ResponseTimeout, UpstreamError
from balancer.http.h1.load_report import reported_load
from policies.facts import Outcome, OutcomeKind

if TYPE_CHECKING:
    from balancer.exchange.cluster import Cluster
    from balancer.http.h1.response_head import Response
    from balancer.mirroring.request_copy import RequestCopy
    from balancer.upstream.request import UpstreamRequest
    from policies.facts import ReportedLoad
    from policies.insight.canary import Arm
    from policies.routing.assignment import Assignment

READ_LIMIT: Final = 1 << 20
READ_TIME: Final = 10.0
"""Bytes of a response, and seconds after its head, that are read so that the connection can be kept; of a response
that is longer or slower the rest is not read. Without these limits, the copy of an endless response would never end."""


class CopyAttempt:
    """The `LeaseWaiter` of its pool and the `ResponseSink` of its response. `copy` is None once it has ended."""

    def __init__(self, copy: RequestCopy, cluster: Cluster, assignment: Assignment) -> None:
        self._copy: RequestCopy | None = copy
        self._cluster = cluster
        self._assignment = assignment
        self._arm: Arm | None = cluster.canary.take() if cluster.canary is not None else None
        self._upstream: UpstreamRequest | None = None
        self._sent_at = assignment.routed_at
        self._first_byte_at: float | None = None
        self._status = self._bytes_in = self._bytes_out = 0
        self._load: ReportedLoad | None = None

    # --- the upstream connection (`LeaseWaiter`)

    def lease(self) -> bool:
        """Send on an idle connection, or wait for a new one. Returns False, and ends, if no descriptor is left for
        that."""
        pools = self._cluster.pools
        pool = pools.by_id[self._assignment.state.id]
        upstream = pool.lease_quiet()  # a copy is never sent a second time
        if upstream is not None:
            self._send(upstream)
        elif pools.room == 0:
            self._end(OutcomeKind.ABANDONED, is_clean=False)
            return False
        else:
            self._assignment.connecting()
            pool.wait(self)
        return True

    def connected(self, upstream: UpstreamRequest) -> None:
        if self._copy is None:
            upstream.release()
            return
        self._sent_at = self._cluster.now()
        self._assignment.connected(self._sent_at)
        self._send(upstream)

    def connect_failed(self, error: ConnectFailed) -> None:
        self.response_failed(error)

    def _send(self, upstream: UpstreamRequest) -> None:
        copy = self._copy
        if copy is not None:
            self._upstream = upstream
            head, body = copy.take_request()
            self._bytes_in = 0 if body is None else body.size
            upstream.send(head, self, copy.method, body)

    # --- the response (`ResponseSink`)

    def response_whole(self, response: Response, body: bytes) -> None:
        self._bytes_out = len(body)
        self._note_head(response)
        self._answered()

    def response_started(self, response: Response) -> None:
        if response.status == 101:
            self.response_failed(MalformedResponse("101 for a request without Upgrade"))
        elif response.status >= 200:
            self._note_head(response)

    def _note_head(self, response: Response) -> None:
        self._first_byte_at = now = self._cluster.now()
        self._status = response.status
        self._assignment.answered(now)
        if self._cluster.reads_load:
            self._load = reported_load(response.block)

    def response_body(self, data: bytes) -> None:
        self._bytes_out += len(data)
        if self._bytes_out > READ_LIMIT:
            self._answered(is_cut=True)

    def response_paused(self) -> None:
        """Do nothing: the body is discarded as it comes."""

    def response_ended(self, trailers: bytes) -> None:
        self._answered()

    def response_failed(self, error: UpstreamError) -> None:
        copy = self._end(error.outcome, is_clean=False)
        if copy is not None:
            copy.failed(error.reason)

    def upstream_paused(self) -> None:
        """Do nothing: the whole request is in the write buffer, and is as small as its limit."""

    def upstream_resumed(self) -> None:
        """Do nothing: `upstream_paused` has paused nothing."""

    # --- ends

    def check(self, now: float) -> None:
        """Enforce the first-byte timeout of the pool, and the time to read a response; `now` is the cached time."""
        timeout = self._cluster.timeouts.first_byte
        if self._first_byte_at is not None:
            if now - self._first_byte_at > READ_TIME:
                self._answered(is_cut=True)
        elif self._upstream is not None and now - self._sent_at > timeout:
            self.response_failed(ResponseTimeout(f"no response within {timeout:g} s"))

    def abandon(self) -> None:
        """End the attempt at shutdown."""
        self._end(OutcomeKind.ABANDONED, is_clean=False)

    def _answered(self, *, is_cut: bool = False) -> None:
        kind = OutcomeKind.OK if self._status < 500 else OutcomeKind.ERROR_STATUS
        copy = self._end(kind, is_clean=not is_cut)
        if copy is not None and self._first_byte_at is not None:
            copy.answered(self._status, self._first_byte_at, is_cut=is_cut)

    def _end(self, kind: OutcomeKind, *, is_clean: bool) -> RequestCopy | None:
        """Give up the connection and settle; return the copy, or None if the attempt has ended before: the rest of a
        read is reported also after the connection was closed."""
        copy, self._copy = self._copy, None
        if copy is None:
            return None
        upstream, self._upstream = self._upstream, None
        if upstream is not None and is_clean:
            upstream.release()
        elif upstream is not None:
            upstream.close()
        outcome = Outcome(
            kind, self._status or None, self._sent_at, self._first_byte_at, self._cluster.now(), self._bytes_in,
            self._bytes_out, self._load,
        )  # fmt: skip
        self._cluster.router.settle(self._assignment, outcome)
        if self._arm is not None:
            self._arm.record(outcome, self._assignment.routed_at)
        return copy
