"""Guard rails of a version canary: what is worse beyond chance, and what may be chance."""

from __future__ import annotations

from random import Random

import pytest

from policies.facts import Outcome, OutcomeKind
from policies.insight.version_guard import Tally, problem_of
from policies.stats.load import Histogram


def record(requests: int, failed: int, latency: float = 0.01, seed: int = 1, left: int = 0) -> list[int]:
    """What a guard counts. Latencies are exponential, with the mean `latency`."""
    histogram, rng = Histogram(), Random(seed)
    for _ in range(requests - failed):
        histogram.record(rng.expovariate(1 / latency))
    return [requests, failed, left, *histogram.counts]


@pytest.mark.parametrize(
    ("canary", "others", "words"),
    [
        (record(6, 6), record(54, 0), "100.00% of its requests failed, and 0.00% of the others"),
        (record(1000, 60), record(9000, 180), "6.00% of its requests failed, and 2.00% of the others"),
        (record(1000, 0, 0.02), record(9000, 0, 0.01), "its p50 is "),
        (
            record(100, 0, left=20),
            record(900, 0, left=9),
            "16.67% of its clients left, and 0.99% of the others",
        ),
        (record(0, 0, left=9), record(90, 0), "100.00% of its clients left, and 0.00% of the others"),
        (record(100, 0, left=20), record(900, 0, left=180), None),
        (record(4, 4), record(36, 0), None),
        (record(1000, 30), record(9000, 180), None),
        (record(1000, 0), record(9000, 9000), None),
        (record(90, 0, 10.0), record(9000, 0), None),
        ([100 * n for n in record(1000, 24)], [100 * n for n in record(9000, 180)], None),
        (record(0, 0), record(100, 0), None),
        (record(100, 100), record(0, 0), None),
    ],
    ids=[
        *("fails-at-once", "fails-more", "slower", "left", "all-left", "usually-left"),
        *("too-few", "by-chance", "better", "few-slow"),
        *("irrelevant", "no-canary", "no-others"),
    ],
)
def test_what_is_worse(canary: list[int], others: list[int], words: str | None) -> None:
    found = problem_of(canary, others)
    assert found is None if words is None else found is not None and found.startswith(words), found


def test_equal_versions_are_not_judged_worse() -> None:
    """In none of 1,100 comparisons, with few and with many requests."""
    rng = Random(7)
    for number, comparisons in ((50, 1000), (1000, 100)):
        for seed in range(comparisons):
            failed = [sum(rng.random() < 0.02 for _ in range(size)) for size in (number // 10, number)]
            canary = record(number // 10, failed[0], seed=seed)
            assert problem_of(canary, record(number, failed[1], seed=seed + 5000)) is None


def test_tail_alone() -> None:
    """Of the canary's requests five in a hundred take a second."""
    usual = record(9000, 0)
    slow = Histogram()
    for at in range(1000):
        slow.record(1.0 if at % 20 == 0 else 0.007)
    found = problem_of([1000, 0, *slow.counts], usual)
    assert found is not None
    assert found.startswith("its p99 is ")


def test_tally_counts_what_ended_at_an_endpoint() -> None:
    """Not what a client has left, nor what lost a race."""
    tally = Tally()
    for kind in OutcomeKind:
        tally.record(Outcome(kind, None, 1.0, 1.1, 1.2), picked_at=0.2)
    judged = [kind for kind in OutcomeKind if kind.is_success or kind.is_failure]
    failures = [kind for kind in judged if kind.is_failure]
    assert OutcomeKind.ABANDONED not in judged
    assert (tally.ended, tally.failed) == (len(judged), len(failures))
    assert (tally.latency.count, tally.latency.total) == (1, 1.0)
    tally.unserved()
    assert tally.row[:2] == [len(judged) + 1, len(failures) + 1]
