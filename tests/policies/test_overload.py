"""A wait queue before twenty simulated servers under overload: how many requests are answered in time.

Arrivals and services are random and seeded, time is virtual. A client waits for `PATIENCE` seconds and then leaves
unseen, as behind a proxy, so a later answer is wasted work.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from random import Random

import pytest

from policies.overload.wait_queue import WaitQueue

SERVERS, SERVICE = 20, 0.1
CAPACITY = SERVERS / SERVICE
PATIENCE = 1.0
QUEUE_TIMEOUT = 30.0


def answered_in_time(queue: WaitQueue[float], load: Callable[[float], float], seconds: float) -> float:
    """The share of requests answered while their client waits; `load` is a multiple of the capacity."""
    rng, order = Random(1), count()
    events: list[tuple[float, int, float | None]] = [(0.0, next(order), None)]
    offered = in_time = busy = 0

    def serve(arrived_at: float, now: float) -> None:
        heapq.heappush(events, (now + rng.expovariate(1 / SERVICE), next(order), arrived_at))

    while events:
        now, _, arrived_at = heapq.heappop(events)
        if arrived_at is not None:
            busy -= 1
            in_time += now - arrived_at <= PATIENCE
        elif now < seconds:
            offered += 1
            heapq.heappush(events, (now + rng.expovariate(load(now) * CAPACITY), next(order), None))
            queue.join(now, 0, now, now + QUEUE_TIMEOUT)
        while busy < SERVERS and (ticket := queue.take(now)) is not None:
            if now <= ticket.deadline and ticket.waiter is not None:
                busy += 1
                serve(ticket.waiter, now)
    return in_time / offered


@pytest.mark.parametrize(
    ("is_adaptive", "at_least", "at_most"), [(True, 0.7, 1.0), (False, 0.0, 0.35)], ids=["adaptive", "fifo"]
)
def test_lasting_overload(is_adaptive: bool, at_least: float, at_most: float) -> None:
    """A third above capacity for half a minute: newest first answers nearly all that can be answered, first come,
    first served hardly any in time."""
    share = answered_in_time(WaitQueue(10_000, is_adaptive=is_adaptive), lambda now: 1.3, 30)
    assert at_least <= share <= at_most


@pytest.mark.parametrize("is_adaptive", [True, False])
def test_load_below_capacity(is_adaptive: bool) -> None:
    """At nine tenths of the capacity both orders answer all."""
    assert answered_in_time(WaitQueue(10_000, is_adaptive=is_adaptive), lambda now: 0.9, 30) > 0.99
