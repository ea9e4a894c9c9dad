"""The search for a capacity: up by half until a rate fails, then the middle, until pass and failure are 2 % apart.

Rule of this file: pure. It is told what became of a rate and says which to try next. A rate that says nothing (the
generator was late) is tried again, and ends the search when it stays silent: beyond it nobody can see.
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
"""Of the first rate: below it the search says that nothing passes."""

AGAIN = 2
"""Times that a rate which says nothing is tried again."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """`bears` is the highest rate that passed (0: none), `fails` the lowest that did not (inf: none was found).

    `trials` are all, in order; `blind` says why the search ended early, empty when it did not.
    """

    bears: float
    fails: float
    trials: tuple[Trial, ...]
    blind: str = ""

    @property
    def is_found(self) -> bool:
        return self.bears > 0 and self.fails <= self.bears * PRECISION * (1 + 1e-9)


def search(attempt: Callable[[float], Trial], first: float) -> Capacity:
    """Find the capacity from `first` on, requests per second."""
    bears, fails, trials = 0.0, math.inf, list[Trial]()
    while len(trials) < MOST_TRIALS:
        rate = following(bears, fails, first)
        if rate is None:
            break
        trial = insisted(attempt, rate, trials)
        if trial.blind:
            return Capacity(bears, fails, tuple(trials), f"at {rate:.4g}/s {trial.blind}")
        bears, fails = (rate, fails) if trial.passed else (bears, rate)
    return Capacity(bears, fails, tuple(trials))


def following(bears: float, fails: float, first: float) -> float | None:
    """The next rate, or None when there is nothing left to learn."""
    if not bears and math.isinf(fails):
        return first
    if math.isinf(fails):
        return bears * STEP
    if not bears:
        return fails / STEP if fails > first * LOWEST_PART else None
    return math.sqrt(bears * fails) if fails > bears * PRECISION else None


def insisted(attempt: Callable[[float], Trial], rate: float, trials: list[Trial]) -> Trial:
    """Try until something can be said, or AGAIN times more."""
    for _ in range(AGAIN + 1):
        trials.append(attempt(rate))
        if not trials[-1].blind:
            break
    return trials[-1]
