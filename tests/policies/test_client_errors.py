"""Answers of 4xx under `steelyard`: a worker that gives them at once does not attract the traffic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random

import pytest

from policies import Endpoint, Outcome, OutcomeKind, RequestFacts, Router, make
from policies.contract import ManualClock
from policies.routing.assignment import Assignment
from policies.stats.latency import FORGET_AFTER

RATE, SERVICE_S = 100.0, 0.02
WORKERS = ("a", "b", "c")
FACTS = RequestFacts(region="home")

Answer = Callable[[str, float], tuple[float, int]]


def picked(
    answer: Answer,
    seconds: float,
    members: dict[str, str] | None = None,
    since: float = 0.0,
) -> Counter[str]:
    """Requests per worker of a Poisson stream; `answer` gives latency and status of a request by worker and time."""
    clock, rng = ManualClock(), Random(1)
    endpoints = [
        Endpoint(name, f"http://{name}", region)
        for name, region in (members or dict.fromkeys(WORKERS, "home")).items()
    ]
    router = Router(endpoints, make("steelyard", {}, Random(2)), clock, Random(3))
    ends: list[tuple[float, int, Outcome | None]] = []
    assignments, counts = dict[int, Assignment](), Counter[str]()
    at, number, ticked_at = 0.0, 0, 0.0
    while (at := at + rng.expovariate(RATE)) < seconds:
        heappush(ends, (at, number := number + 1, None))
    while ends:
        clock.time, key, outcome = heappop(ends)
        if clock.time > ticked_at + 1.0:
            router.tick()
            ticked_at = clock.time
        if outcome is not None:
            router.settle(assignments.pop(key), outcome)
            continue
        assignment = router.route(FACTS)
        worker = assignment.state.id
        counts[worker] += clock.time >= since
        latency, status = answer(worker, clock.time)
        end = clock.time + latency
        assignments[number := number + 1] = assignment
        heappush(ends, (end, number, Outcome(OutcomeKind.OK, status, clock.time, end, end)))
    assert router.last_fault is None
    return counts


@pytest.mark.parametrize("begins_at", [0.0, 5.0])
def test_worker_that_answers_404_at_once_gets_no_more_than_its_share(begins_at: float) -> None:
    rng = Random(4)

    def answer(worker: str, now: float) -> tuple[float, int]:
        return (0.0005, 404) if worker == "a" and now >= begins_at else (rng.expovariate(1 / SERVICE_S), 200)

    counts = picked(answer, begins_at + 40.0, since=begins_at)
    assert counts["a"] / counts.total() < 0.4, counts


@pytest.mark.parametrize("share", [0.5, 0.95, 1.0])
def test_client_errors_that_take_their_time_change_nothing(share: float) -> None:
    """Half, nearly all or all requests of both regions get a 4xx after the usual time: home serves them."""
    rng = Random(4)

    def answer(worker: str, now: float) -> tuple[float, int]:
        service = rng.expovariate(1 / SERVICE_S)
        return service + (0.05 if worker == "far" else 0.0), 404 if rng.random() < share else 200

    members = dict.fromkeys(WORKERS, "home") | {"far": "away"}
    counts = picked(answer, 60.0, members, since=FORGET_AFTER + 5.0)
    assert counts["far"] / counts.total() < 0.05, counts
    assert all(counts[worker] / counts.total() > 0.2 for worker in WORKERS), counts
