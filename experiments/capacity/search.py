"""Capacity search: up by half until a rate fails, then geometric bisection to 2 %. Pure.

A rate whose run is unusable (the generator was late) is repeated, and ends the search if it stays unusable.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from experiments.capacity.criteria import Trial

STEP = 1.5
PRECISION = 1.02
MOST_TRIALS = 60
LOWEST_PART = 1e-3
"""Fraction of the first rate below which the search reports that no rate passes."""

AGAIN = 2
"""Number of repetitions of an unusable run."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Result of a search. `bears` is the highest rate that passed (0: none), `fails` the lowest that failed (inf:
    none).

    `trials` are all, in order; `blind` says why the search ended early, empty otherwise.
    """

    bears: float
    fails: float
    trials: tuple[Trial, ...]
    blind: str = ""

    @property
    def is_found(self) -> bool:
        return self.bears > 0 and self.fails <= self.bears * PRECISION * (1 + 1e-9)


def search(attempt: Callable[[float], Trial], first: float) -> Capacity:
    """Search from the rate `first` on, in requests per second."""
    bears, fails, trials = 0.0, math.inf, list[Trial]()
    while len(trials) < MOST_TRIALS:
        rate = following(bears, fails, first)
        if rate is None:
            break
        trial = repeated_until_usable(attempt, rate, trials)
        if trial.blind:
            return Capacity(bears, fails, tuple(trials), f"at {rate:.4g}/s {trial.blind}")
        bears, fails = (rate, fails) if trial.passed else (bears, rate)
    return Capacity(bears, fails, tuple(trials))


def following(bears: float, fails: float, first: float) -> float | None:
    """Next rate to try; None if the search has converged."""
    if not bears and math.isinf(fails):
        return first
    if math.isinf(fails):
        return bears * STEP
    if not bears:
        return fails / STEP if fails > first * LOWEST_PART else None
    return math.sqrt(bears * fails) if fails > bears * PRECISION else None


def repeated_until_usable(attempt: Callable[[float], Trial], rate: float, trials: list[Trial]) -> Trial:
    """Repeat a trial until it is usable, at most `AGAIN` times more."""
    for _ in range(AGAIN + 1):
        trials.append(attempt(rate))
        if not trials[-1].blind:
            break
    return trials[-1]
