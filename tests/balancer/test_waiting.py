"""The queue before a full router: bounded in number and in time, whoever comes and goes."""

from __future__ import annotations

from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.errors import DeadlinePassed, NoEndpoint, QueueFull, QueueTimeout, Shed, Unserved
from balancer.exchange.wait_queue import LONGEST_RETRY, RequestQueue
from balancer.exchange.wait_queue import Waiter as AnyWaiter
from policies.facts import Endpoint, Outcome, OutcomeKind, RequestFacts
from policies.least_in_flight import LeastInFlight
from policies.overload.wait_queue import Ticket
from policies.routing.assignment import Assignment
from policies.routing.router import Router
from tests.balancer.conftest import ManualClock
from tests.balancer.diligence import tries

TIMEOUT = 30.0
SWEEP = 0.25


class Waiter:
    """Takes its place when its turn comes."""

    def __init__(self, world: World, level: int = 0, limit: float = inf) -> None:
        self.world = world
        self.level = level
        self.queued_at = world.clock.at
        self.deadline = world.clock.at + limit
        self.ticket: Ticket[AnyWaiter] | None = None
        self.served_at: float | None = None
        self.error: Unserved | None = None
        self.ended_at = inf

    def attempt(self) -> None:
        self.world.running.append(self.world.router.route(RequestFacts()))
        self.served_at = self.ended_at = self.world.clock.at
        self.world.order.append(self)

    def decline(self, error: Unserved) -> None:
        assert self.error is None
        assert self.served_at is None
        self.error = error
        self.ended_at = self.world.clock.at


class World:
    """One endpoint with so many places, and a queue before it."""

    def __init__(self, places: int = 1, limit: int = 2, levels: int = 1, is_adaptive: bool = False) -> None:
        self.clock = ManualClock()
        endpoint = Endpoint("a", "http://a", "r", max_in_flight=places)
        self.router = Router([endpoint], LeastInFlight(Random(1)), self.clock, Random(1))
        self.queue = RequestQueue(self.router, self.clock.now, limit, TIMEOUT, levels, is_adaptive)
        self.running: list[Assignment] = []
        self.order: list[Waiter] = []

    def come(self, level: int = 0, limit: float = inf) -> Waiter:
        """A request, which is served at once where there is room. Raises what `join` raises."""
        waiter = Waiter(self, level, limit)
        if self.router.has_room:
            waiter.attempt()
        else:
            self.queue.join(waiter)
        return waiter

    def fill(self) -> None:
        while self.router.has_room:
            self.come()

    def finish(self) -> None:
        """The request that was sent first is answered."""
        self.router.settle(self.running.pop(0), Outcome(OutcomeKind.OK, 200, 0.0, 0.0, self.clock.at))

    def sweep(self, waiters: list[Waiter]) -> None:
        for waiter in waiters:
            self.queue.check(waiter, self.clock.at)


def test_who_gave_up_takes_no_place_in_the_line() -> None:
    """They are neither counted nor served, and make room when the line is full."""
    world = World()
    world.fill()
    first, second = world.come(), world.come()
    with pytest.raises(QueueFull):
        world.come()
    world.queue.leave(first)
    third = world.come()
    assert (len(world.queue), world.queue.left) == (2, 1)
    world.finish()
    world.finish()
    assert [waiter.served_at is not None for waiter in (first, second, third)] == [False, True, True]
    assert world.queue.served == 2


def test_nobody_waits_for_what_cannot_serve() -> None:
    """A line before endpoints that are all down would never move."""
    world = World()
    world.router.set_enabled("a", False)
    with pytest.raises(NoEndpoint):
        world.come()


def test_what_comes_too_late_is_not_sent() -> None:
    """Room that comes after the time is for the next one; who is too late hears it then, if not before."""
    world = World(limit=3)
    world.fill()
    hasty, patient = world.come(limit=1.0), world.come()
    world.clock.at += 1.1
    world.finish()
    assert isinstance(hasty.error, DeadlinePassed)
    assert patient.served_at is not None
    assert world.queue.dropped == {"deadline_passed": 1}


def test_the_sweep_ends_waits() -> None:
    world = World(limit=3)
    world.fill()
    hasty, patient = world.come(limit=5.0), world.come()
    world.clock.at += 5.1
    world.sweep([hasty, patient])
    assert (type(hasty.error), patient.error) == (DeadlinePassed, None)
    world.clock.at += 25
    world.sweep([hasty, patient])
    assert isinstance(patient.error, QueueTimeout)
    assert len(world.queue) == 0


def test_a_deadline_that_has_passed_is_not_waited_for() -> None:
    world = World()
    world.fill()
    with pytest.raises(DeadlinePassed):
        world.come(limit=0.0)


def test_a_deadline_that_the_line_cannot_keep() -> None:
    """One turn a second, ten before: two seconds will not do, six may, though it would be ten."""
    world = World(limit=100)
    world.fill()
    for _ in range(20):
        world.come()
    for _ in range(10):
        world.clock.at += 1.0
        world.finish()
    with pytest.raises(DeadlinePassed):
        world.come(limit=2.0)
    world.come(limit=6.0)


def test_the_more_important_take_the_place_of_the_less() -> None:
    """In a full queue the newest of the lowest level gives way; among equals nobody does."""
    world = World(limit=2, levels=2)
    world.fill()
    old, new = world.come(level=1), world.come(level=1)
    high = world.come(level=0)
    assert (old.error, type(new.error)) == (None, Shed)
    with pytest.raises(QueueFull):
        world.come(level=1)
    assert (world.queue.shed, dict(world.queue.dropped)) == ([0, 1], {"shed": 1, "queue_full": 1})
    world.finish()
    world.finish()
    assert world.order[-2:] == [high, old]


def test_when_to_come_again() -> None:
    """As long as the line takes at its pace: at ten a second three seconds for thirty; 30 s at most; 1 s at least."""
    world = World(limit=30)
    world.fill()
    waiters = [world.come() for _ in range(30)]
    assert world.queue.retry_after(world.clock.at) == 1
    for _ in range(100):
        world.clock.at += 0.1
        world.finish()
        waiters.append(world.come())
    with pytest.raises(QueueFull) as full:
        world.come()
    assert full.value.retry_after == 3
    world.clock.at += TIMEOUT + 1
    assert world.queue.retry_after(world.clock.at) == LONGEST_RETRY
    world.sweep(waiters)
    assert len(world.queue) == 0
    assert world.queue.retry_after(world.clock.at) == 1


Event = tuple[str, int, float]
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("come"), st.integers(0, 2), st.sampled_from([inf, inf, 0.1, 3.0, 40.0])),
        st.tuples(st.just("finish"), st.just(0), st.just(0.0)),
        st.tuples(st.just("leave"), st.integers(0, 20), st.just(0.0)),
        st.tuples(st.just("wait"), st.just(0), st.sampled_from([0.0, 0.01, 0.2, 1.0, 12.0])),
    ),
    max_size=80,
)


@tries(200)
@given(EVENTS, st.integers(1, 3), st.integers(0, 6), st.booleans())
def test_whatever_happens(events: list[Event], places: int, limit: int, is_adaptive: bool) -> None:
    """Bounded; nothing is turned away while there is room; nobody is served too late, or waits longer than its time
    and a sweep; each ends once, or waits; and nobody waits while an endpoint has room."""
    world = World(places, limit, levels=3, is_adaptive=is_adaptive)
    come: list[Waiter] = []
    for what, number, amount in events:
        before = len(world.queue)
        if what == "come":
            try:
                come.append(world.come(number, amount))
            except QueueFull:
                assert before == limit
                assert not world.queue.line.last_below(number)
            except DeadlinePassed:
                assert amount < inf
                assert before >= 1
        elif what == "finish" and world.running:
            world.finish()
        elif what == "leave" and come:
            waiter = come[number % len(come)]
            if waiter.ticket is not None:
                waiter.ended_at = world.clock.at
            world.queue.leave(waiter)
        elif what == "wait":
            for _ in range(max(1, round(amount / SWEEP))):
                world.clock.at += min(amount, SWEEP)
                world.sweep(come)
        must_hold(world, come, limit)


def must_hold(world: World, come: list[Waiter], limit: int) -> None:
    now = world.clock.at
    waiting = [waiter for waiter in come if waiter.ticket is not None]
    assert len(world.queue) == len(waiting) <= limit
    assert not (waiting and world.router.has_room)
    assert all(waiter.ended_at == inf for waiter in waiting)
    for waiter in come:
        until = min(waiter.deadline, waiter.queued_at + TIMEOUT)
        assert min(now, waiter.ended_at) <= until + SWEEP + 1e-6 or waiter.served_at == waiter.queued_at
        assert waiter.served_at is None or waiter.served_at <= until
        assert isinstance(waiter.error, Shed) or waiter.error is None or waiter.ended_at > until
    ended = world.queue.served + world.queue.left + len(waiting)
    assert world.queue.joined == ended + sum(waiter.error is not None for waiter in come)
