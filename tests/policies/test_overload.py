"""A line before twenty simulated servers, in more load than they can take: who is answered while it still matters.

Rule of this file: arrivals and services are random and seeded, time is counted. A client waits for `PATIENCE` seconds
and then does not care; that it has gone is not seen, as behind a proxy, so what is served to it is served in vain.
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


def answered_in_time(
    line: WaitQueue[float], load: Callable[[float], float], seconds: float, seed: int = 1
) -> float:
    """The share of requests that are answered while their client waits; `load` is a multiple of the capacity."""
    rng, order = Random(seed), count()
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
            line.join(now, 0, now, now + QUEUE_TIMEOUT)
        while busy < SERVERS and (place := line.take(now)) is not None:
            if now <= place.deadline and place.waiter is not None:
                busy += 1
                serve(place.waiter, now)
    return in_time / offered


@pytest.mark.parametrize(
    ("is_adaptive", "at_least", "at_most"), [(True, 0.7, 1.0), (False, 0.0, 0.35)], ids=["adaptive", "fifo"]
)
def test_an_overload_that_lasts(is_adaptive: bool, at_least: float, at_most: float) -> None:
    """A third more than can be done, for half a minute: newest first answers nearly all that can be answered, first
    come, first served nearly nobody in time."""
    share = answered_in_time(WaitQueue(10_000, is_adaptive=is_adaptive), lambda now: 1.3, 30)
    assert at_least <= share <= at_most


@pytest.mark.parametrize("is_adaptive", [True, False])
def test_load_that_can_be_borne(is_adaptive: bool) -> None:
    """At nine tenths of the capacity both answer everybody."""
    assert answered_in_time(WaitQueue(10_000, is_adaptive=is_adaptive), lambda now: 0.9, 30) > 0.99
