"""`RequestQueue` before endpoints at their limit: bounded length, deadlines, priorities, Retry-After."""

from __future__ import annotations

from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.cluster.wait_queue import LONGEST_RETRY, RequestQueue
from balancer.cluster.wait_queue import Waiter as AnyWaiter
from balancer.errors import DeadlinePassed, NoEndpoint, QueueFull, Shed, Unserved
from policies.algorithms.least_in_flight import LeastInFlight
from policies.facts import Endpoint, Outcome, OutcomeKind, RequestFacts
from policies.overload.wait_queue import Ticket
from policies.routing.assignment import Assignment
from policies.routing.router import Router
from tests.support.example_counts import examples
from tests.support.stage import ManualClock

TIMEOUT = 30.0
SWEEP = 0.25


class Waiter:
    """A waiting request that routes when it is its turn."""

    def __init__(
        self, queued: QueuedEndpoint, level: int = 0, limit: float = inf, client: object = None
    ) -> None:
        self.client = client
        self.world = queued
        self.level = level
        self.queued_at = queued.clock.at
        self.deadline = queued.clock.at + limit
        self.ticket: Ticket[AnyWaiter] | None = None
        self.served_at: float | None = None
        self.error: Unserved | None = None
        self.ended_at = inf

    def served(self) -> None:
        self.world.running.append(self.world.router.route(RequestFacts()))
        self.served_at = self.ended_at = self.world.clock.at
        self.world.order.append(self)

    def decline(self, error: Unserved) -> None:
        assert self.error is None
        assert self.served_at is None
        self.error = error
        self.ended_at = self.world.clock.at


class QueuedEndpoint:
    """One endpoint with `places` places, its router and its queue."""

    def __init__(self, places: int = 1, limit: int = 2, levels: int = 1, is_adaptive: bool = False) -> None:
        self.clock = ManualClock()
        endpoint = Endpoint("a", "http://a", "r", max_in_flight=places)
        self.router = Router([endpoint], LeastInFlight(Random(1)), self.clock, Random(1))
        self.queue = RequestQueue(self.router, self.clock.now, limit, TIMEOUT, levels, is_adaptive)
        self.running: list[Assignment] = []
        self.order: list[Waiter] = []

    def arrive(self, level: int = 0, limit: float = inf, client: object = None) -> Waiter:
        """Add a request, which is routed at once where there is room. Raises what `join` raises."""
        waiter = Waiter(self, level, limit, client)
        if self.router.has_room:
            waiter.served()
        else:
            self.queue.join(waiter)
        return waiter

    def fill(self) -> None:
        while self.router.has_room:
            self.arrive()

    def finish(self) -> None:
        """Settle the request that was routed first."""
        self.router.settle(self.running.pop(0), Outcome(OutcomeKind.OK, 200, 0.0, 0.0, self.clock.at))

    def sweep(self, waiters: list[Waiter]) -> None:
        for waiter in waiters:
            self.queue.check(waiter, self.clock.at)


def test_abandoned_request_leaves_the_queue() -> None:
    """It is neither counted nor served, and makes room in a full queue."""
    queued = QueuedEndpoint()
    queued.fill()
    first, second = queued.arrive(), queued.arrive()
    with pytest.raises(QueueFull):
        queued.arrive()
    queued.queue.leave(first)
    third = queued.arrive()
    assert (len(queued.queue), queued.queue.left) == (2, 1)
    queued.finish()
    queued.finish()
    assert [waiter.served_at is not None for waiter in (first, second, third)] == [False, True, True]
    assert queued.queue.served == 2


def test_nothing_waits_without_an_available_endpoint() -> None:
    queued = QueuedEndpoint()
    queued.router.set_enabled("a", False)
    with pytest.raises(NoEndpoint):
        queued.arrive()


def test_expired_request_is_not_served() -> None:
    """The room goes to the next request."""
    queued = QueuedEndpoint(limit=3)
    queued.fill()
    hasty, patient = queued.arrive(limit=1.0), queued.arrive()
    queued.clock.at += 1.1
    queued.finish()
    assert isinstance(hasty.error, DeadlinePassed)
    assert patient.served_at is not None
    assert queued.queue.dropped == {"deadline_passed": 1}


def test_passed_deadline_is_rejected() -> None:
    queued = QueuedEndpoint()
    queued.fill()
    with pytest.raises(DeadlinePassed):
        queued.arrive(limit=0.0)


def test_deadline_below_the_expected_wait_is_rejected() -> None:
    """At one request per second with ten waiting, 2 s are too short, and 6 s are accepted although 10 s are likely."""
    queued = QueuedEndpoint(limit=100)
    queued.fill()
    for _ in range(20):
        queued.arrive()
    for _ in range(10):
        queued.clock.at += 1.0
        queued.finish()
    with pytest.raises(DeadlinePassed):
        queued.arrive(limit=2.0)
    queued.arrive(limit=6.0)


def test_retry_after() -> None:
    """Queue length by pace: three seconds for thirty requests at ten per second; from 1 s to 30 s."""
    queued = QueuedEndpoint(limit=30)
    queued.fill()
    waiters = [queued.arrive() for _ in range(30)]
    assert queued.queue.retry_after(queued.clock.at) == 1
    for _ in range(100):
        queued.clock.at += 0.1
        queued.finish()
        waiters.append(queued.arrive())
    with pytest.raises(QueueFull) as full:
        queued.arrive()
    assert full.value.retry_after == 3
    queued.clock.at += TIMEOUT + 1
    assert queued.queue.retry_after(queued.clock.at) == LONGEST_RETRY
    queued.sweep(waiters)
    assert len(queued.queue) == 0
    assert queued.queue.retry_after(queued.clock.at) == 1


Event = tuple[str, int, float]
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.integers(0, 2), st.sampled_from([inf, inf, 0.1, 3.0, 40.0])),
        st.tuples(st.just("finish"), st.just(0), st.just(0.0)),
        st.tuples(st.just("leave"), st.integers(0, 20), st.just(0.0)),
        st.tuples(st.just("wait"), st.just(0), st.sampled_from([0.0, 0.01, 0.2, 1.0, 12.0])),
    ),
    max_size=80,
)


@examples(50)
@given(EVENTS, st.integers(1, 3), st.integers(0, 6), st.booleans())
def test_arbitrary_events_keep_the_invariants(
    events: list[Event], places: int, limit: int, is_adaptive: bool
) -> None:
    """The queue is bounded, rejects nothing while there is room, and serves nothing after its deadline.

    A wait ends within one sweep after its deadline, each request ends once, and nothing waits while an endpoint has
    room.
    """
    queued = QueuedEndpoint(places, limit, levels=3, is_adaptive=is_adaptive)
    arrived: list[Waiter] = []
    for what, number, amount in events:
        before = len(queued.queue)
        if what == "arrive":
            try:
                arrived.append(queued.arrive(number, amount))
            except QueueFull:
                assert before == limit
                assert not queued.queue.tickets.last_below(number)
            except DeadlinePassed:
                assert amount < inf
                assert before >= 1
        elif what == "finish" and queued.running:
            queued.finish()
        elif what == "leave" and arrived:
            waiter = arrived[number % len(arrived)]
            if waiter.ticket is not None:
                waiter.ended_at = queued.clock.at
            queued.queue.leave(waiter)
        elif what == "wait":
            for _ in range(max(1, round(amount / SWEEP))):
                queued.clock.at += min(amount, SWEEP)
                queued.sweep(arrived)
        check_invariants(queued, arrived, limit)


def check_invariants(queued: QueuedEndpoint, arrived: list[Waiter], limit: int) -> None:
    now = queued.clock.at
    waiting = [waiter for waiter in arrived if waiter.ticket is not None]
    assert len(queued.queue) == len(waiting) <= limit
    assert not (waiting and queued.router.has_room)
    assert all(waiter.ended_at == inf for waiter in waiting)
    for waiter in arrived:
        until = min(waiter.deadline, waiter.queued_at + TIMEOUT)
        assert min(now, waiter.ended_at) <= until + SWEEP + 1e-6 or waiter.served_at == waiter.queued_at
        assert waiter.served_at is None or waiter.served_at <= until
        assert isinstance(waiter.error, Shed) or waiter.error is None or waiter.ended_at > until
    ended = queued.queue.served + queued.queue.left + len(waiting)
    assert queued.queue.joined == ended + sum(waiter.error is not None for waiter in arrived)
