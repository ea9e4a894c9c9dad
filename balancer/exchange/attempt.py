"""One try of a request at one endpoint: its place there, its connection and its times.

Rule of this file: an attempt is settled exactly once and parts from its connection exactly once, whatever happens, in
whatever order. Settled, it knows its exchange no more: a connection that comes for it then goes back to the pool, and
whoever still holds the attempt holds nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from balancer.errors import ConnectFailed
from balancer.log.formats import NOT_CONNECTED
from balancer.upstream.connection import UpstreamConnection
from policies.routing.assignment import Assignment
from policies.routing.facts import Outcome, OutcomeKind, ReportedLoad
from policies.routing.router import Router

if TYPE_CHECKING:
    from balancer.exchange.forwarding import ForwardedExchange
    from policies.insight.canary import Arm

OK: Final = OutcomeKind.OK


class Attempt:
    """A `LeaseWaiter`. `exchange` is None once nobody waits for it, `upstream` before it has a connection, and after.

    Instants in seconds: `sent_at` is when it had a connection, before that when it was routed; `first_byte_at` when a
    head came, if one has. `has_failed`: it is settled, and not as OK. `connection` is for the access log. `load` is
    what the worker said of itself, where that is read; `why` a line that tells the client why this one was asked, where
    that is to be told, and `arm` which of two policies has placed it, where there are two.
    """

    # Not slots: what is not set costs nothing.
    upstream: UpstreamConnection | None = None
    first_byte_at: float | None = None
    has_failed = False
    connection = NOT_CONNECTED
    load: ReportedLoad | None = None
    why = b""
    arm: Arm | None = None

    def __init__(self, exchange: ForwardedExchange, assignment: Assignment) -> None:
        self.exchange: ForwardedExchange | None = exchange
        self.assignment = assignment
        self.sent_at = assignment.routed_at

    # --- Lessee

    def connected(self, upstream: UpstreamConnection) -> None:
        """Here is the connection that was waited for."""
        exchange = self.exchange
        if exchange is None:
            upstream.release()
        else:
            exchange.connected(self, upstream)

    def connect_failed(self, error: ConnectFailed) -> None:
        """There will be no connection."""
        exchange = self.exchange
        if exchange is not None:
            exchange.connect_failed(self, error)

    # --- ends

    def release(self, is_clean: bool) -> None:
        """Part from the connection: back to its pool, or closed."""
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
        """Tell the router how it ended; the second time is none."""
        if self.assignment.is_settled:
            return
        self.exchange = None
        self.has_failed = kind is not OK
        outcome = Outcome(kind, status, self.sent_at, self.first_byte_at, now, bytes_in, bytes_out, self.load)
        router.settle(self.assignment, outcome)
        if self.arm is not None:
            self.arm.record(outcome, self.assignment.routed_at)
