"""Capacity search: up by half until a rate fails, then geometric bisection to 2 %. Pure.

A rate whose run is unusable (the generator was late) is repeated, and ends the search if it stays unusable.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from balancer.syntax.printable import with_digits
from experiments.capacity.criteria import RateTrial

STEP = 1.5
PRECISION = 1.02
MOST_TRIALS = 60
LOWEST_PART = 1e-3
"""Fraction of the first rate below which the search reports that no rate passes."""

REPETITIONS = 2
"""Number of repetitions of an unusable run."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Result of a search. `passed` is the highest rate that passed (0: none), `failed` the lowest that failed (inf:
    none).

    `trials` are all, in order; `unusable` says why the search ended early, empty otherwise.
    """

    passed: float
    failed: float
    trials: tuple[RateTrial, ...]
    unusable: str = ""

    @property
    def is_found(self) -> bool:
        return self.passed > 0 and self.failed <= self.passed * PRECISION * (1 + 1e-9)


def search(attempt: Callable[[float], RateTrial], first: float) -> Capacity:
    """Search from the rate `first` on, in requests per second."""
    passed, failed, trials = 0.0, math.inf, list[RateTrial]()
    while len(trials) < MOST_TRIALS:
        rate = following(passed, failed, first)
        if rate is None:
            break
        trial = repeated_until_usable(attempt, rate, trials)
        if trial.unusable:
            return Capacity(passed, failed, tuple(trials), f"at {with_digits(rate, 4)}/s {trial.unusable}")
        passed, failed = (rate, failed) if trial.passed else (passed, rate)
    return Capacity(passed, failed, tuple(trials))


def following(passed: float, failed: float, first: float) -> float | None:
    """Next rate to try; None if the search has converged."""
    if not passed and math.isinf(failed):
        return first
    if math.isinf(failed):
        return passed * STEP
    if not passed:
        return failed / STEP if failed > first * LOWEST_PART else None
    return math.sqrt(passed * failed) if failed > passed * PRECISION else None


def repeated_until_usable(
    attempt: Callable[[float], RateTrial], rate: float, trials: list[RateTrial]
) -> RateTrial:
    """Repeat a trial until it is usable, at most `REPETITIONS` times more."""
    for _ in range(REPETITIONS + 1):
        trials.append(attempt(rate))
        if not trials[-1].unusable:
            break
    return trials[-1]
