"""Conditions under which a system sustains an offered rate; each one reports by how much it was missed.

A run in which the generator's lag may decide is unusable, which is distinct from failed.

The search for the highest rate goes up by half until a rate fails, then bisects geometrically to 2 %. A rate whose run
is unusable is repeated, and ends the search if it stays unusable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from balancer.syntax.printable import with_digits
from experiments.run_data import Run, Samples
from experiments.stats.measures import ACHIEVED_LIMIT, LEAST_BEYOND, deadline_mapped, percentile, without_lag

MOST_ERRORS = 0.001
MOST_GROWTH = 0.01
"""Fraction of the arrivals by which requests in flight may grow."""

LEAST_GROWTH = 5.0
"""Number of requests: growth by less is chance where there are few arrivals."""

WATCHED = 0.75
"""Last fraction of the arrivals in which growth is measured: a linearly growing queue quadruples in it."""

INSTANTS = 200


@dataclass(frozen=True, slots=True)
class RateTrial:
    """One run at one rate. `rate` and `achieved` (sent) per second of the scenario, `errors` a share, `p99` in measured
    seconds with failures at the deadline. `missed`: failed conditions; `unusable`: why the run cannot be judged.
    """

    rate: float
    achieved: float
    errors: float
    p99: float
    missed: tuple[str, ...]
    unusable: str = ""

    @property
    def passed(self) -> bool:
        return not self.missed and not self.unusable


def tried(run: Run, rate: float, slo: float) -> RateTrial:
    """Check a run at `rate` (per second of the scenario) against the conditions; `slo` in the scenario's seconds."""
    scale = run.facts.time_scale
    achieved = run.facts.achieved_rate * scale
    errors, p99 = 1.0 - float(run.samples.ok.mean()), percentile(deadline_mapped(run), 99)
    limits = tuple(complaints(achieved / rate, errors, p99, slo * scale))
    return RateTrial(
        rate, achieved, errors, p99, (*limits, *queue_growth(run.samples)), unusable_reason(run, slo * scale)
    )


def complaints(achieved: float, errors: float, p99: float, slo: float) -> Iterator[str]:
    if achieved < ACHIEVED_LIMIT:
        yield f"{100 * achieved:.1f} % of the offered rate was sent, {100 * ACHIEVED_LIMIT:g} % needed"
    if errors > MOST_ERRORS:
        yield f"{100 * errors:.2f} % errors, {100 * MOST_ERRORS:g} % allowed"
    if not p99 <= slo:
        yield f"p99 {p99 * 1e3:.0f} ms, {slo * 1e3:g} ms allowed"


def queue_growth(samples: Samples) -> Iterator[str]:
    """Growth of requests in flight: by more than `MOST_GROWTH` of the arrivals, and to more than twice the initial
    level.

    Long queues fluctuate; the second condition keeps fluctuations from counting as growth.
    """
    span = float(samples.scheduled_at.max())
    slope, level = growth(samples, span)
    least = max(LEAST_GROWTH, MOST_GROWTH * len(samples))
    if slope * span > least and slope * span * WATCHED > level * 2 / 3:
        yield f"requests in flight grow by {with_digits(slope, 2)} per second"


def unusable_reason(run: Run, slo: float) -> str:
    """Reason why the run cannot be judged: the generator was late, or a process died; empty if it can. A p99 within
    `slo` (measured seconds) is so without the lag, too; one beyond it may be beyond it because of the lag.
    """
    p99, least = percentile(deadline_mapped(run), 99), percentile(without_lag(run), 99)
    if least <= slo < p99:
        lag = f"p99 {p99 * 1e3:.0f} ms, {least * 1e3:.0f} ms without the generator's lag"
        return f"{lag}, {slo * 1e3:g} ms allowed"
    died = [reason for reason in run.facts.invalid_reasons if "achieved" not in reason]
    return "; ".join(died)


def growth(samples: Samples, span: float) -> tuple[float, float]:
    """Slope (requests per second) and mean of requests in flight: linear fit over the last `WATCHED` of the run."""
    instants = np.linspace(span * (1 - WATCHED), span, INSTANTS)
    begun = np.searchsorted(np.sort(samples.scheduled_at), instants, side="right")
    ended = np.sort(samples.ended_at[np.isfinite(samples.ended_at)])
    lying = begun - np.searchsorted(ended, instants, side="right")
    slope = float(np.polyfit(instants, lying, 1)[0]) if span > 0 else 0.0
    return slope, float(lying.mean())


STEP = 1.5
PRECISION = 1.02
MOST_TRIALS = 60
LEAST_REQUESTS = 100 * LEAST_BEYOND
"""Minimum number of requests of a run: with fewer, a p99 is a few requests."""

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


def search(attempt: Callable[[float], RateTrial], first: float, least: float) -> Capacity:
    """Search from the rate `first` on, not below `least`, in requests per second."""
    trials = list[RateTrial]()
    while len(trials) < MOST_TRIALS:
        found = so_far(trials)
        rate = following(found.passed, found.failed, first, least)
        if rate is None:
            break
        trial = repeated_until_usable(attempt, rate, trials)
        if trial.unusable:
            return so_far(trials, f"at {with_digits(rate, 4)}/s {trial.unusable}")
    return so_far(trials)


def so_far(trials: Sequence[RateTrial], unusable: str = "") -> Capacity:
    """Result of the trials up to now; `unusable` says why there are no more."""
    passed = max((trial.rate for trial in trials if trial.passed), default=0.0)
    failed = min((trial.rate for trial in trials if trial.missed and not trial.unusable), default=math.inf)
    return Capacity(passed, failed, tuple(trials), unusable)


def following(passed: float, failed: float, first: float, least: float) -> float | None:
    """Next rate to try; None if the search has converged."""
    if not passed and math.isinf(failed):
        return first
    if math.isinf(failed):
        return passed * STEP
    if not passed:
        return failed / STEP if failed >= least * STEP else None
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
