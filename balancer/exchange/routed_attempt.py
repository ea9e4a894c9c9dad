"""Attempt at the endpoint that a router has picked, for a request or for a copy: leases, and reports the outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from balancer.cluster.cluster import Cluster
from balancer.http.h1.fields import with_host
from balancer.http.h1.load_report import find_any
from balancer.http.h1.response_head import Response, retry_after
from balancer.inference.answer_reader import AnswerReader
from balancer.log.formats import NOT_CONNECTED
from balancer.upstream.pool import Pool
from balancer.upstream.request import UpstreamAttempt, UpstreamRequest
from policies.clock import SWEEP_PERIOD
from policies.facts import Outcome, OutcomeKind, ReportedLoad
from policies.insight.canary import Arm
from policies.insight.version_guard import Tally
from policies.routing.assignment import Assignment

if TYPE_CHECKING:
    from balancer.exchange.attempt_span import AttemptSpan

OK: Final = OutcomeKind.OK
ERROR_STATUS: Final = OutcomeKind.ERROR_STATUS
ABANDONED: Final = OutcomeKind.ABANDONED

LEFT_WITHIN_S: Final = 2.0 * SWEEP_PERIOD
"""Seconds within which it is noticed that a client has left. One that reset its connection later had half-closed."""


class RoutedAttempt(UpstreamAttempt):
    """An attempt with an assignment, which it settles once; abstract."""

    # Not slots: an attribute that keeps its class default costs nothing.
    first_byte_at: float | None = None  # instant of the response head
    status = 0  # of the response; 0 before its head
    bytes_out = 0  # of its body, as far as it is used
    load: ReportedLoad | None = None  # that the worker reported, where load reports are read
    stated: tuple[OutcomeKind, int] | None = None  # what policies see of a busy answer, or by grpc-status
    answer: AnswerReader | None = None  # of a request with a prompt
    connection = NOT_CONNECTED  # for the access log
    has_lost = False  # another attempt at the request was answered first
    left_at = 0.0  # when the client sent a FIN
    has_failed = False  # the attempt is settled with an outcome other than OK
    arm: Arm | None = None  # of the canary, that picked the endpoint
    tally: Tally | None = None  # of the version that the request is for, where one is on trial
    span: AttemptSpan | None = None  # while the request is traced

    def __init__(self, cluster: Cluster, assignment: Assignment) -> None:
        self.cluster = cluster
        self.assignment = assignment
        self.sent_at = assignment.routed_at  # later the instant at which it had a connection
        if cluster.canary is not None:
            self.arm = cluster.canary.take()

    def lease(self, pool: Pool, is_idempotent: bool) -> None:
        """Send the request on an idle connection of the endpoint, or wait for a new one."""
        upstream = (
            pool.lease_own() if self.needs_own else pool.lease() if is_idempotent else pool.lease_quiet()
        )
        if upstream is None:
            self.assignment.connecting()
            pool.wait(self)
        else:
            self.send(upstream)

    def connected(self, upstream: UpstreamRequest) -> None:
        if not self.is_over:
            self.sent_at = self.cluster.now()
            self.assignment.connected(self.sent_at)
            if self.span is not None:
                self.span.connected(upstream)
        super().connected(upstream)

    def addressed(self, head: bytes, method: bytes) -> bytes:
        """Return the head with the Host of the endpoint. That of CONNECT is the target's (RFC 9112 § 3.2)."""
        return head if method == b"CONNECT" else with_host(head, self.assignment.endpoint.host)

    def is_refused(self, response: Response) -> bool:
        """Return whether the worker refuses the request as busy; note it, and let the endpoint rest."""
        if response.status not in self.cluster.retries.config.busy:
            return False
        self.stated = (OutcomeKind.BUSY, response.status)
        stated = retry_after(response.block)
        self.cluster.rests.begin(self.assignment.state.id, stated, self.cluster.now())
        return True

    def head_came(self, response: Response) -> None:
        """Note a final head that no client gets, and the load that it reports."""
        self.is_refused(response)
        self.answered(response.status, self.cluster.now())
        if self.cluster.reads_load:
            self.read_load(response)

    def read_load(self, response: Response) -> None:
        """Read the load report of a response; a repeated head is not searched again."""
        if response.may_report is None:
            response.may_report = find_any(response.block) is not None
        self.load = self.cluster.reports.read(response.block) if response.may_report else None

    def answered(self, status: int, now: float) -> None:
        """Note the final status, and the instant at which it came."""
        self.status = status
        self.first_byte_at = now
        self.assignment.answered(now)

    def settle(self, kind: OutcomeKind, now: float, bytes_in: int) -> None:
        """Report the outcome to the router. A repeated call does nothing."""
        if self.is_over:
            return
        self.is_over = True
        status = self.status or None
        if self.stated is not None:
            status = self.stated[1]
            if kind is OK or kind is ERROR_STATUS:
                kind = self.stated[0]
        self.has_failed = kind is not OK
        ended_at = now
        if kind is ABANDONED and self.first_byte_at is None and self.left_at > now - LEFT_WITHIN_S:
            ended_at = max(self.left_at, self.sent_at)
        outcome = Outcome(
            kind, status, self.sent_at, self.first_byte_at, ended_at, bytes_in, self.bytes_out, self.load
        )
        if self.answer is not None:
            outcome.prompt = self.assignment.facts.prompt
            outcome.answer = self.answer.settled()
        self.cluster.router.settle(self.assignment, outcome, now)
        if self.arm is not None:
            self.arm.record(outcome, self.assignment.routed_at)
        if self.tally is not None:
            self.tally.record(outcome, self.assignment.routed_at)
        if self.span is not None:
            self.span.ended(self, kind, now)
