"""Admission control: each priority level is rejected by its own thresholds."""

from __future__ import annotations

from math import inf
from random import Random
from typing import Any, cast

import pytest

from balancer.cluster.admission import Admission, AdmissionRules
from balancer.cluster.wait_queue import RequestQueue
from balancer.config.schema.queue import LevelConfig
from balancer.errors import Shed
from policies import Endpoint, Router
from policies.algorithms.random_choice import RandomChoice
from policies.contract import ManualClock

BULK = LevelConfig(name="bulk", queue=0.25, in_flight=0.9)


def rejected_for(level: LevelConfig, waiting: int, limit: int, in_flight: int, capacity: int | None) -> int:
    """Seconds of Retry-After of a request beside this load, at a turn per second; 0 if it is admitted."""
    clock, endpoint = ManualClock(), Endpoint("a", "http://a", "r", max_in_flight=capacity)
    router = Router([endpoint], RandomChoice(Random(1)), clock, Random(1))
    queue = RequestQueue(router, clock.now, limit, 60.0, levels=2)
    router.in_flight = in_flight
    queue.tickets.limit, waiter = waiting, cast(Any, None)
    for _ in range(waiting):
        queue.tickets.join(waiter, 0, 0.0, inf)
    queue.tickets.limit = limit
    clock.time = 1.0
    rules = AdmissionRules(None, None, (LevelConfig(name="high"), level), 1)
    admission = Admission(rules, router, queue, clock.now)
    try:
        admission.admit(None)
    except Shed as error:
        return error.retry_after or 0
    return 0


@pytest.mark.parametrize(
    ("waiting", "in_flight", "retry_after"),
    [(0, 0, 0), (24, 0, 0), (25, 0, 1), (30, 0, 6), (100, 0, 30), (0, 89, 0), (0, 90, 1)],
)
def test_level_is_rejected_at_its_thresholds(waiting: int, in_flight: int, retry_after: int) -> None:
    """A quarter of a queue of 100, or nine tenths of 100 requests in flight; for as long as the excess takes."""
    assert rejected_for(BULK, waiting, 100, in_flight, 100) == retry_after


@pytest.mark.parametrize(
    ("level", "waiting", "limit", "in_flight", "capacity"),
    [
        (LevelConfig(name="critical"), 100, 100, 100, 100),  # it has no thresholds
        (BULK, 0, 100, 10**6, None),  # there is no capacity
        (BULK, 0, 0, 5, None),  # an empty queue, of any size
        (BULK, 0, 1, 5, None),
    ],
)
def test_level_is_not_rejected(
    level: LevelConfig, waiting: int, limit: int, in_flight: int, capacity: int | None
) -> None:
    assert rejected_for(level, waiting, limit, in_flight, capacity) == 0
