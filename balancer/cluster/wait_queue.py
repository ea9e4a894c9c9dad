"""Requests that wait because every endpoint is full.

There is one queue for all endpoints, ordered by `policies/overload/wait_queue.py`. A request gets an endpoint only when
one has room, so it never waits behind a slow endpoint while a fast one is free. The length of the queue and the time in
it are limited: a request that has waited too long is rejected and never sent to a worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import ceil, inf
from typing import Final, Protocol

from balancer.errors import (
    DeadlinePassed,
    NoEndpoint,
    PoolOverloaded,
    QueueFull,
    QueueTimeout,
    Shed,
    Unserved,
)
from policies.errors import Overloaded
from policies.overload.wait_queue import Ticket, WaitQueue
from policies.routing.router import Router

LONGEST_RETRY: Final = 30
"""Maximum Retry-After in seconds: the estimate reaches no further."""


TOO_LATE: Final = "no answer would come within the time given"

MAX_WAIT_RATIO: Final = 2.0
"""A request is rejected if its expected wait exceeds this multiple of its remaining deadline: the expectation is an
estimate."""


class Waiter(Protocol):
    """A request in the wait queue.

    `deadline` is when the client stops waiting, less the time that a response takes; `queued_at` when it entered
    the queue, less what it had waited before its earlier attempts; `level` its priority, 0 the highest; `ticket` its
    current ticket; `client` whose turn it takes.
    """

    deadline: float
    level: int
    queued_at: float
    ticket: Ticket[Waiter] | None

    @property
    def client(self) -> object: ...
    def served(self) -> None: ...
    def decline(self, error: Unserved) -> None: ...


class RequestQueue:
    """Wait queue before a router whose endpoints are full. `timeout` is the maximum wait in seconds.

    `joined`, `served` and `left` count requests that had to wait, whose turn came, and that ended otherwise while they
    waited. `dropped` counts, by reason, those that waited in vain or were rejected; `shed` counts, by level, those of
    them that were shed in favour of higher levels.
    """

    def __init__(
        self,
        router: Router,
        now: Callable[[], float],
        limit: int,
        timeout: float,
        levels: int = 1,
        is_adaptive: bool = False,
    ) -> None:
        self._router = router
        self._now = now
        self.timeout = timeout
        self.tickets: WaitQueue[Waiter] = WaitQueue(limit, levels, is_adaptive)
        self.joined = self.served = self.left = 0
        self.dropped: Counter[str] = Counter()
        self.shed = [0] * levels
        router.on_available = self.serve

    def __len__(self) -> int:
        return len(self.tickets)

    def apply(self, limit: int, timeout: float, levels: int, is_adaptive: bool) -> None:
        """Apply the configuration; waiting requests keep their tickets."""
        self.timeout = timeout
        self.tickets.limit, self.tickets.is_adaptive = limit, is_adaptive
        self.tickets.set_levels(levels)
        self.shed += [0] * (levels - len(self.shed))

    def join(self, waiter: Waiter, *, is_first: bool = False) -> None:
        """Add a request to the queue, as the next one if it `is_first`.

        Raises `NoEndpoint` if no endpoint is eligible, `DeadlinePassed`, `QueueFull`.
        """
        if not self._router.has_eligible:
            raise NoEndpoint("no endpoint is up")
        now, tickets = self._now(), self.tickets
        if waiter.deadline < inf:
            self._check_deadline(waiter, now)
        if len(tickets) >= tickets.limit:
            self._make_room(waiter, now)
        self.joined += 1
        until = min(waiter.queued_at + self.timeout, waiter.deadline)
        waiter.ticket = tickets.join(waiter, waiter.level, now, until, waiter.client, is_first=is_first)

    def _check_deadline(self, waiter: Waiter, now: float) -> None:
        """Raise `DeadlinePassed` if the expected wait is far beyond the request's deadline."""
        tickets, remaining = self.tickets, waiter.deadline - now
        wait = 0.0 if tickets.is_adaptive else tickets.time_to_clear(tickets.ahead(waiter.level), now)
        if remaining <= 0.0 or wait > MAX_WAIT_RATIO * remaining:
            raise self.too_late(waiter.level, now)

    def _make_room(self, newcomer: Waiter, now: float) -> None:
        """Reject the last request of a lower level, else that of the client with most requests of this level, unless it
        is the newcomer's; raise `QueueFull` if there is neither."""
        level, retry_after = newcomer.level, self.retry_after(now)
        ticket = self.tickets.last_below(level)
        error: Unserved = Shed("more important requests take the room there is", retry_after)
        if ticket is None:
            ticket = self.tickets.last_of_longest(level, newcomer.client)
            error = QueueFull(
                f"every endpoint is full and {self.tickets.limit} requests wait already", retry_after
            )
        waiter = ticket.waiter if ticket is not None else None
        if ticket is None or waiter is None:
            self.note_dropped(level, error)
            raise error
        self.tickets.leave(ticket)
        self._drop(waiter, error)

    def leave(self, waiter: Waiter) -> None:
        """Remove a request that has ended otherwise."""
        ticket, waiter.ticket = waiter.ticket, None
        if ticket is not None and ticket.waits:
            self.left += 1
            self.tickets.leave(ticket)

    def serve(self) -> None:
        """Serve waiting requests in order while endpoints have room."""
        tickets, router = self.tickets, self._router
        while len(tickets) and router.has_room:
            now = self._now()
            ticket = tickets.take(now)
            waiter = ticket.waiter if ticket is not None else None
            if ticket is None or waiter is None:
                return
            ticket.waiter = None  # its lane may keep the ticket for a while
            if now > ticket.deadline:
                self._decline(waiter, ticket, now)
            else:
                self.served += 1
                waiter.ticket = None  # break the reference cycle of waiter and ticket
                waiter.served()

    def check(self, waiter: Waiter, now: float) -> None:
        """Reject a request whose wait has exceeded its deadline; called by the sweep."""
        ticket = waiter.ticket
        if ticket is not None and ticket.waits and now > ticket.deadline:
            self.tickets.leave(ticket)
            self._decline(waiter, ticket, now)

    def close(self) -> None:
        """Clear the queue at shutdown; the connections are closed separately."""
        self.tickets.clear()

    def retry_after(self, now: float, turns: float | None = None) -> int:
        """Return whole seconds until `turns` requests have been served at the current rate; by default, all that wait
        now."""
        count = float(len(self.tickets)) if turns is None else turns
        return max(1, ceil(min(LONGEST_RETRY, self.tickets.time_to_clear(count, now))))

    def _decline(self, waiter: Waiter, ticket: Ticket[Waiter], now: float) -> None:
        """Reject a request after its deadline or the queue timeout."""
        retry_after = self.retry_after(now)
        if ticket.deadline < waiter.queued_at + self.timeout:
            error: Unserved = DeadlinePassed(TOO_LATE, retry_after)
        else:
            error = QueueTimeout(f"every endpoint stayed full for {self.timeout:g} s", retry_after)
        self._drop(waiter, error)

    def _drop(self, waiter: Waiter, error: Unserved) -> None:
        self.note_dropped(waiter.level, error)
        waiter.ticket = None
        waiter.decline(error)

    def overloaded(self, waiter: Waiter) -> PoolOverloaded:
        """Count a request that the policy rejected, and return its error."""
        error = PoolOverloaded(str(Overloaded()), self.retry_after(self._now()))
        self.note_dropped(waiter.level, error)
        return error

    def too_late(self, level: int, now: float) -> DeadlinePassed:
        """Count a request whose deadline has passed, and return its error."""
        error = DeadlinePassed(TOO_LATE, self.retry_after(now))
        self.note_dropped(level, error)
        return error

    def note_dropped(self, level: int, error: Unserved) -> None:
        """Count a rejected request by reason and, if shed, by level."""
        self.dropped[error.reason] += 1
        if isinstance(error, Shed):
            self.shed[level] += 1
