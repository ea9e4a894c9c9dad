"""Process context: what all clusters of one process share, and all of its client connections.

It has time, counts and budgets, and implements no protocol; nothing in the package is global. It knows no cluster.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

from balancer.clients.client_usage import ByteBudget, ClientConnection, ClientUsage, ClientUsages
from balancer.clients.turns import Turns
from balancer.config.loading import Settings
from balancer.errors import SHUTTING_DOWN
from balancer.http.h1.client import OWN_NAME
from balancer.http.h1.own_responses import ErrorBodies
from balancer.http.h1.request_ids import fresh_ids
from balancer.http.h2.reset_counts import ResetCounts
from balancer.log.access_log import AccessLog
from balancer.tracing.tracing import Tracing
from policies.clock import SWEEP_PERIOD, Clock

CLOSE_ALL_IDLE: Final = -1.0
"""Idle limit in seconds that closes every idle client connection."""

ANSWERED_IN_S: Final = 0.02
"""Seconds in which a client that has closed answers an interim response with a reset: a round trip. The next sweep
finds a later one."""

FIRST_REQUEST: Final = 1.0
"""Seconds that any new client has for its handshake and the beginning of its first request; at shutdown within half of
the grace period."""


@dataclass(slots=True)
class ClientCounts:
    """Totals since the start.

    `failed_arrivals` counts connections that never reached HTTP because a TLS handshake or PROXY header failed.
    `connections` include those of HTTP/2, whose requests are streams: `http2_resets` counts streams that clients have
    reset, `http2_floods` and `http2_violations` connections ended because of a flood or of an error of the protocol.
    """

    connections: int = 0
    failed_arrivals: int = 0
    http2_connections: int = 0
    http2_streams: int = 0
    http2_resets: int = 0
    http2_floods: int = 0
    http2_violations: int = 0


class ProcessContext:
    """What one process has once."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.now = clock.now
        # The time of the last sweep. It is free to read, but up to a sweep behind: an instant from which a timeout is
        # measured is read from `now`, or the timeout would be early.
        self.cached_time = self.started_at = clock.now()
        # The Date field of the last sweep, for own responses and those without one (RFC 9110 § 6.6.1).
        self.date_line = b""
        self._looks_soon = False  # a check for resets is scheduled
        self.joins = False  # starts among siblings, which have the endpoints that its sources cannot read
        self.is_draining = False
        self.keeps_alive = True  # client connections are kept alive after a response
        self.idle_limit = 0.0  # seconds for which an idle one is kept
        self.first_request = FIRST_REQUEST
        self.counts = ClientCounts()
        self.resets = ResetCounts()
        self.buffer_budget = ByteBudget()
        self.usages = ClientUsages()
        self.turns = Turns()
        self.downstreams: dict[
            ClientConnection, None
        ] = {}  # in order of arrival; a set would be in order of addresses
        self.on_client_left: Callable[[], None] | None = None
        self.addresses: dict[str, str] = {}  # of the listeners; "" is that of `listen`
        self.fresh_id = fresh_ids()
        self.own_name = OWN_NAME  # in Via
        self.access_log: AccessLog | None = None  # receives an entry for every refused request
        self.error_bodies: ErrorBodies | None = None  # of error responses, where they are configured
        self.tracing: Tracing | None = None  # set while the trace context is propagated

    def apply(self, settings: Settings) -> None:
        """Apply the bounds of the whole process; what is kept beyond a lower one stays until it is sent."""
        if not self.is_draining:
            self.idle_limit = settings.timeouts.keep_alive
        self.usages.budget.total = settings.limits.pending
        self.buffer_budget.total = settings.buffering.total

    def drain(self, idle_limit: float = CLOSE_ALL_IDLE, grace: float = inf) -> None:
        """Drain: close each client connection after its response, or when idle for `idle_limit` seconds; all within
        `grace` seconds."""
        self.is_draining = True
        self.keeps_alive = False
        self.idle_limit = idle_limit
        self.first_request = min(FIRST_REQUEST, grace / 2 - SWEEP_PERIOD)  # which the sweep may add

    def set_crowded(self, is_crowded: bool) -> None:
        """Disable keep-alive while clients wait in the kernel's accept queue, so that descriptors are shared in
        turn."""
        self.keeps_alive = not (is_crowded or self.is_draining)

    def look_soon(self) -> None:
        """Look for resets soon: a client was asked whether it still reads."""
        if not self._looks_soon:
            self._looks_soon = True
            asyncio.get_running_loop().call_later(ANSWERED_IN_S, self.abort_reset)

    def abort_reset(self) -> None:
        """Abort the connections that the client has reset while reading from them is paused.

        Asks the kernel, in one system call, about paused connections only: the event loop reports a reset of the
        others. A FIN is not a disconnect: a client may half-close and still read (RFC 9112 § 9.6), and the loop finds
        the FIN in order, after the bytes before it. Nor is a hang-up without an error: a FIN in each direction or, at a
        Unix socket, a close, before which bytes may be unread. An interim response to a client that has sent its FIN
        shows which it is: a closed one answers with a reset (`Exchange.client_ended`).
        """
        self._looks_soon = False
        paused = {}
        for downstream in self.downstreams:
            transport = downstream.transport
            if (downstream.ended_at or not transport.is_reading()) and not transport.is_closing():
                paused[transport.get_extra_info("socket").fileno()] = downstream
        if not paused or not hasattr(select, "poll"):  # Windows
            return
        looked_at = select.poll()
        for descriptor in paused:
            looked_at.register(descriptor, 0)  # poll() always reports errors and hang-ups
        events_of = [(paused[descriptor], events) for descriptor, events in looked_at.poll(0)]
        found = [one for one, events in events_of if one.ended_at or events & select.POLLERR]
        for downstream in sorted(found, key=lambda one: one.ended_at):
            downstream.abort()

    def abort(self) -> None:
        """End all client connections when the grace period is over."""
        for downstream in list(self.downstreams):
            downstream.abort(SHUTTING_DOWN)

    def connected(self, downstream: ClientConnection, address: bytes) -> ClientUsage:
        """Count a connection of the client at `address`. Returns the record of the client."""
        self.counts.connections += 1
        self.downstreams[downstream] = None
        return self.usages.connected(address)

    def forget(self, downstream: ClientConnection) -> None:
        """Count a connection that has ended, or belongs to another protocol now, no more; repeated calls do nothing."""
        if downstream in self.downstreams:
            del self.downstreams[downstream]
            self.turns.forget(downstream)
            self.usages.release(downstream.usage)

    def client_left(self) -> None:
        """Report that a client's descriptor has become free."""
        if self.on_client_left is not None:
            self.on_client_left()

    @property
    def in_flight(self) -> int:
        """Number of requests of clients that are being answered."""
        return sum(downstream.answering for downstream in self.downstreams)
