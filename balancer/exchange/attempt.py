"""An attempt to have a request answered by one endpoint: its assignment, upstream connection and times.

An attempt is settled exactly once and gives up its connection exactly once, in any order of events. A settled attempt
has no reference to its exchange: a connection that becomes ready for it later returns to the pool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from balancer.errors import ConnectFailed
from balancer.log.formats import NOT_CONNECTED
from balancer.upstream.request import UpstreamRequest
from policies.facts import Outcome, OutcomeKind, ReportedLoad
from policies.routing.assignment import Assignment
from policies.routing.router import Router

if TYPE_CHECKING:
    from balancer.exchange.exchange import Exchange
    from policies.insight.canary import Arm, Canary

OK: Final = OutcomeKind.OK


class Attempt:
    """An attempt at one endpoint; a `LeaseWaiter`.

    `exchange` is None once no exchange waits for the attempt. `upstream` is None before the attempt has a connection
    and after it has released it.

    Instants in seconds: `sent_at` is when it had a connection, before that when it was routed; `first_byte_at` when the
    response head came, None before. `has_failed`: it is settled with an outcome other than OK. `connection` is for the
    access log. `load` is the load that the worker reported, where load reports are read. `why` is a response line that
    explains the pick, where explanations are enabled. `arm` is the canary's arm that picked the endpoint, if there is a
    canary.
    """

    # Not slots: an attribute that keeps its class default costs nothing.
    upstream: UpstreamRequest | None = None
    first_byte_at: float | None = None
    has_failed = False
    connection = NOT_CONNECTED
    load: ReportedLoad | None = None
    why = b""
    arm: Arm | None = None

    def __init__(self, exchange: Exchange, assignment: Assignment, canary: Canary | None) -> None:
        self.exchange: Exchange | None = exchange
        self.assignment = assignment
        self.sent_at = assignment.routed_at
        if canary is not None:
            self.arm = canary.take()

    @property
    def is_awaiting(self) -> bool:
        """Whether an exchange waits for its response head."""
        return self.exchange is not None and self.first_byte_at is None

    # --- LeaseWaiter

    def connected(self, upstream: UpstreamRequest) -> None:
        """Take the upstream connection that was waited for."""
        exchange = self.exchange
        if exchange is None:
            upstream.release()
        else:
            exchange.connected(self, upstream)

    def connect_failed(self, error: ConnectFailed) -> None:
        """Report that no upstream connection could be opened."""
        exchange = self.exchange
        if exchange is not None:
            exchange.connect_failed(self, error)

    # --- ends

    def release(self, is_clean: bool) -> None:
        """Give up the upstream connection: return it to its pool if `is_clean`, else close it."""
        upstream, self.upstream = self.upstream, None
        if upstream is None:
            return
        if is_clean:
            upstream.release()
        else:
            upstream.close()

    def settle(
        self,
        router: Router,
        kind: OutcomeKind,
        status: int | None,
        now: float,
        bytes_in: int = 0,
        bytes_out: int = 0,
    ) -> None:
        """Report the outcome to the router. A repeated call does nothing."""
        if self.assignment.is_settled:
            return
        self.exchange = None
        self.has_failed = kind is not OK
        outcome = Outcome(kind, status, self.sent_at, self.first_byte_at, now, bytes_in, bytes_out, self.load)
        router.settle(self.assignment, outcome)
        if self.arm is not None:
            self.arm.record(outcome, self.assignment.routed_at)
