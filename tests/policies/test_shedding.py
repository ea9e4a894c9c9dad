"""Load shedding of the steelyard policy: when it begins and ends, and which failures count."""

from __future__ import annotations

from collections import deque
from contextlib import nullcontext

import pytest

from policies import Outcome, OutcomeKind, RequestFacts
from policies.errors import NoEndpointAvailable, Overloaded
from policies.facts import BUSY_STATUS
from policies.overload.shedding import LOST, MIN_LOST, MIN_QUEUED, PERIOD, WATCH, Shedding
from policies.steelyard.costs import expected_wait
from tests.support.steelyard_routers import endpoint, measure, outcome, router

ABANDONED, OK, TIMEOUT = OutcomeKind.ABANDONED, OutcomeKind.OK, OutcomeKind.TIMEOUT
HOME = RequestFacts(region="near")
SERVICE = 0.02


TO_NEAR = RequestFacts(region="near", tried=frozenset({"far"}))


class Queue:
    """An endpoint that serves one request at a time, in 20 ms, and the requests in flight there. With `distance`
    another region has such an endpoint, as many seconds away."""

    def __init__(self, waiting: int, distance: float = 0.0, **options: float) -> None:
        latencies = {"near": SERVICE} | ({"far": SERVICE + distance} if distance else {})
        members = [endpoint(name, name) for name in latencies]
        self.router, self.clock = router(*members, explore=0.0, **options)
        measure(self.router, self.clock, 30, **latencies)
        for _ in range(4):  # answers of far away are then no longer the longest
            self.clock.time += 10.0
            measure(self.router, self.clock, 2, near=SERVICE)
        self.requests = deque(self.router.route(TO_NEAR) for _ in range(waiting))

    def end(self, number: int, kind: OutcomeKind, apart: float = 0.002, *, by_sweep: bool = False) -> None:
        """End the oldest requests, `apart` seconds from each other; `by_sweep`: all are noticed at the end."""
        first, last = self.clock.time + apart, self.clock.time + number * apart
        for i in range(number):
            ended_at = first + i * apart
            self.clock.time = last if by_sweep else ended_at
            oldest = self.requests.popleft()
            self.router.settle(oldest, outcome(oldest.routed_at, ended_at, kind), self.clock.time)

    def send(self) -> str | None:
        """Send one more request; return its endpoint, or None if it is rejected."""
        try:
            self.requests.append(self.router.route(HOME))
        except Overloaded:
            return None
        return self.requests[-1].state.id


def busy(**options: float) -> Queue:
    """A queue of a hundred, in which requests are answered after two seconds."""
    queue = Queue(100, **options)
    for _ in range(150):
        queue.clock.time += SERVICE
        queue.end(1, OK)
        queue.requests.append(queue.router.route(TO_NEAR))
    return queue


def test_clients_that_leave_one_by_one_count_though_a_sweep_notices_them_together() -> None:
    """An HTTP/1.1 client may have half-closed: whether it has left is asked by the next sweep, of all at once."""
    queue = busy()
    queue.end(int(MIN_LOST) + 1, ABANDONED, SERVICE, by_sweep=True)
    assert queue.send() is None


def overloaded(kind: OutcomeKind = ABANDONED, failed: int = int(MIN_LOST) + 1, **options: float) -> Queue:
    """The same, after the oldest `failed` requests have ended in another way, a little later."""
    queue = busy(**options)
    queue.clock.time += 0.1 + failed * SERVICE
    queue.end(failed, kind)
    return queue


@pytest.mark.parametrize("kind", [ABANDONED, TIMEOUT])
def test_requests_that_would_wait_are_rejected_after_some_have_failed_in_a_queue(kind: OutcomeKind) -> None:
    queue = overloaded(kind)
    assert {queue.send() for _ in range(50)} == {None}
    while queue.requests:
        queue.clock.time += SERVICE
        queue.end(1, OK)
    assert queue.send() == "near"
    assert [queue.send() for _ in range(9)][-1] is None


@pytest.mark.parametrize("slots", range(1, 9))
def test_request_behind_one_per_slot_is_admitted_without_a_distance_as_with_one(slots: int) -> None:
    """Without one it waits for exactly one service, up to rounding, and with any for less."""
    shedding = Shedding()
    for _ in range(int(MIN_LOST) + 1):
        shedding.lose(0.0)
    for in_flight, is_admitted in ((2 * slots - 1, True), (2 * slots, False)):
        for distance in (0.0, 1e-5):
            wait = expected_wait(in_flight, SERVICE, distance, float(slots)) / SERVICE
            with nullcontext() if is_admitted else pytest.raises(Overloaded):
                shedding.admit(wait, float(slots), 1.0)


def test_clients_count_that_leave_a_little_sooner_than_others_are_answered() -> None:
    """It is noticed up to two sweeps later that a client has left; meanwhile its request may be answered."""
    queue = busy()
    gone = queue.requests.popleft()
    for _ in range(15):
        queue.clock.time += SERVICE
        queue.end(1, OK)
        queue.requests.append(queue.router.route(TO_NEAR))
    queue.router.settle(gone, outcome(gone.routed_at, queue.clock.time, OK))
    assert queue.clock.time - gone.routed_at > 1.1 * (queue.clock.time - queue.requests[0].routed_at)
    queue.end(int(MIN_LOST) + 1, ABANDONED)
    assert queue.send() is None


def test_client_that_leaves_with_many_requests_counts_once() -> None:
    queue = busy()
    queue.clock.time += 0.1 + 90 * SERVICE
    queue.end(90, ABANDONED, apart=0.0)
    assert [queue.send() for _ in range(50)] == ["near"] * 50


def served() -> Queue:
    """An overloaded queue that has been served, and one more request after it."""
    queue = overloaded()
    while queue.requests:
        queue.clock.time += SERVICE
        queue.end(1, OK)
    queue.clock.time += 10.0 * PERIOD
    assert [queue.send() for _ in range(20)][-1] is None  # no request sent since it began has been answered
    while queue.requests:
        queue.clock.time += SERVICE
        queue.end(1, OK)
    return queue


def test_shedding_ends_a_period_after_an_answer() -> None:
    """However many requests were rejected meanwhile."""
    queue = served()
    assert [queue.send() for _ in range(200)][-1] is None
    queue.clock.time += PERIOD
    assert [queue.send() for _ in range(20)] == ["near"] * 20


@pytest.mark.parametrize(
    ("watched", "requests", "begins"), [(0.5, 0.9, False), (0.9, 1.1, True), (1.1, 1.1, False)]
)
def test_long_queue_soon_afterwards_is_enough_to_begin_again(
    watched: float, requests: float, begins: bool
) -> None:
    """No request fails meanwhile. `watched` is a part of WATCH, `requests` relative to a queue beyond chance."""
    queue = served()
    queue.clock.time += PERIOD + watched * WATCH
    sent = [queue.send() for _ in range(int(requests * MIN_QUEUED))]
    assert (None in sent) is begins


def test_few_failures_may_be_chance() -> None:
    assert overloaded(failed=int(MIN_LOST)).send() == "near"


def test_clients_that_leave_before_others_are_answered_do_not_count() -> None:
    queue = busy()
    queue.requests.reverse()
    queue.end(40, ABANDONED)
    assert queue.send() == "near"


def test_clients_that_leave_amid_an_answer_do_not_count() -> None:
    queue = busy()
    queue.clock.time += 2.0
    for request in queue.requests:
        first_byte_at = request.routed_at + 1.0
        ended_at = queue.clock.time
        queue.router.settle(request, Outcome(ABANDONED, 200, request.routed_at, first_byte_at, ended_at))
    queue.requests.clear()
    queue.requests.extend(queue.router.route(TO_NEAR) for _ in range(20))
    assert queue.send() == "near"


def test_endpoint_that_answers_nothing_hangs_and_is_not_overloaded() -> None:
    queue = Queue(100)
    queue.clock.time += 2.0
    queue.end(50, TIMEOUT)
    assert queue.send() == "near"


def test_requests_that_hang_beside_a_queue_do_not_count() -> None:
    """They time out after four seconds, where others wait for two."""
    queue = busy()
    hanging = [queue.requests.pop() for _ in range(20)]
    for _ in range(220):
        queue.clock.time += SERVICE
        queue.end(1, OK)
        queue.requests.append(queue.router.route(TO_NEAR))
    for request in hanging:
        queue.router.settle(request, outcome(request.routed_at, queue.clock.time, TIMEOUT))
    assert queue.send() == "near"


def test_clients_that_leave_a_short_queue_do_not_count() -> None:
    queue = Queue(0)
    for _ in range(40):
        queue.requests.extend(queue.router.route(TO_NEAR) for _ in range(4))
        queue.clock.time += SERVICE
        queue.end(1, OK)
        queue.clock.time += 1.0
        queue.end(3, ABANDONED)
    assert queue.send() == "near"


@pytest.mark.parametrize(("waiting", "sheds"), [(15, False), (60, True)])
def test_rejections_of_a_worker_count_if_its_queue_is_far_too_long(waiting: int, sheds: bool) -> None:
    """A short queue bounds the wait by itself: its worker's limit is no reason for another one."""
    queue = Queue(waiting)
    rejected = [queue.router.route(TO_NEAR) for _ in range(8)]
    for request in rejected:
        now = queue.clock.time
        queue.router.settle(request, Outcome(OutcomeKind.ERROR_STATUS, BUSY_STATUS, now, now, now))
    assert (queue.send() is None) is sheds


def test_shedding_can_be_turned_off() -> None:
    assert overloaded(shed=True).send() is None
    assert overloaded(shed=False).send() == "near"


def test_endpoint_far_away_with_room_is_used_before_requests_are_rejected() -> None:
    """At 8 s of distance it is not used otherwise instead of a wait of 2 s."""
    assert overloaded(distance=8.0, shed=False).send() == "near"
    queue = overloaded(distance=8.0)
    sent = [queue.send() for _ in range(1000)]
    assert sent[0] == "far"
    assert sent[-1] is None
    assert "near" not in sent


def test_share_of_failures_decides() -> None:
    """One in a hundred of the recent requests."""
    for share, rejects in ((0.5 * LOST, False), (2.0 * LOST, True)):
        shedding, now = Shedding(), 0.0
        for _ in range(200):
            now += 0.1
            shedding.requests += round(1.0 / share)
            shedding.lose(now)
        assert (now < shedding.until) is rejects


def test_the_error_says_that_waiting_for_an_endpoint_does_not_help() -> None:
    error = Overloaded()
    assert isinstance(error, NoEndpointAvailable)
    assert error.status == 503
    assert str(error) == "every endpoint has a queue, and requests fail because they wait"
