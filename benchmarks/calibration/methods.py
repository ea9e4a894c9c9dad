"""Methods for a confidence interval of a few log ratios: the one in use and its alternatives.

No campaign is judged with these; they let `python -m benchmarks calibration --methods …` repeat the choice.

In null campaigns all entries are equal, one under several names, so that every ranking is false.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from statistics import NormalDist

import numpy as np

from experiments.run_data import Floats
from experiments.scenario.scenario import Scenario
from experiments.stats.estimates import CONFIDENCE, Estimate, paired_student, unknown

SeededMethod = Callable[[Floats, int], Estimate]
"""(log ratio of each block, seed of what is drawn) -> estimate."""

LABELS = ("a", "b", "c", "d", "e", "f", "g", "h")
CONTROL = "a again"


def null_campaign(scenario: Scenario, blocks: int, rivals: int, has_control: bool = True) -> Scenario:
    """Scenario with baseline `a`, its A/A control `a again` if wanted, and `rivals` copies of the first entry."""
    first = scenario.entries[0].model_copy(update={"repeat_of": None, "thresholds": ()})
    entries = [first.model_copy(update={"label": label}) for label in LABELS[: rivals + 1]]
    if has_control:
        entries.append(first.model_copy(update={"label": CONTROL, "repeat_of": LABELS[0]}))
    changes = {"entries": tuple(entries), "baseline": LABELS[0], "blocks": blocks, "thresholds": ()}
    return scenario.model_copy(update=changes)


def lasting(scenario: Scenario, requests: int) -> Scenario:
    """The scenario with about `requests` requests per run; open-loop bursts and events scale with the duration."""
    load = scenario.load
    if load.mode == "closed":
        return scenario.model_copy(update={"load": load.model_copy(update={"requests": requests})})
    part = requests / load.planned
    events = tuple(event.compressed(part) for event in scenario.events)
    return scenario.model_copy(update={"load": load.shortened(load.duration * part), "events": events})


RESAMPLES = 5_000
MOST_SIGNS = 14
"""Blocks up to which all sign patterns are enumerated; beyond, `RESAMPLES` random ones."""

TAILS = (50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE))
NORMAL = NormalDist()


def percentile(logs: Floats, seed: int) -> Estimate:
    """Percentile bootstrap (Efron 1979); in use here before. Too narrow for few blocks."""
    if len(logs) < 2:
        return unknown(float(logs.mean()))
    means = logs[draws(len(logs), seed)].mean(axis=1)
    low, high = np.percentile(means, TAILS)
    tail = min(int(np.sum(means <= 0)), int(np.sum(means >= 0)))
    return Estimate(float(logs.mean()), float(low), float(high), min(1.0, 2 * (tail + 1) / (RESAMPLES + 1)))


def bca(logs: Floats, seed: int) -> Estimate:
    """Bias-corrected and accelerated bootstrap (Efron 1987): corrects skewness, not the small sample size."""
    if len(logs) < 2 or np.ptp(logs) <= 1e-12:
        return paired_student(logs)
    mean, means = float(logs.mean()), np.sort(logs[draws(len(logs), seed)].mean(axis=1))
    bias = normal_place(means, mean)
    kept = (logs.sum() - logs) / (len(logs) - 1)
    away = kept.mean() - kept
    speed = float(np.sum(away**3) / (6 * np.sum(away**2) ** 1.5))
    ends = [bias + NORMAL.inv_cdf(percent / 100) for percent in TAILS]
    places = [100 * NORMAL.cdf(bias + end / (1 - speed * end)) for end in ends]
    low, high = np.percentile(means, places)
    from_zero = normal_place(means, 0.0) - bias
    side = NORMAL.cdf(from_zero / (1 + speed * from_zero) - bias)
    return Estimate(mean, float(low), float(high), 2 * min(side, 1 - side))


def normal_place(ordered: Floats, value: float) -> float:
    """Normal deviate of the rank of `value` among sorted values; always finite."""
    below = (np.searchsorted(ordered, value, "left") + np.searchsorted(ordered, value, "right")) / 2
    return NORMAL.inv_cdf((below + 0.5) / (len(ordered) + 1))


def studentised(logs: Floats, seed: int) -> Estimate:
    """Studentised bootstrap (bootstrap-t): correct coverage with few blocks, but wide."""
    if len(logs) < 2 or np.ptp(logs) <= 1e-12:
        return paired_student(logs)
    mean, error = float(logs.mean()), float(logs.std(ddof=1)) / len(logs) ** 0.5
    drawn = logs[draws(len(logs), seed)]
    errors = drawn.std(axis=1, ddof=1) / len(logs) ** 0.5
    pivots = (drawn.mean(axis=1) - mean)[errors > 0] / errors[errors > 0]
    low, high = np.percentile(pivots, TAILS)
    share = (1 + int(np.sum(np.abs(pivots) >= abs(mean / error)))) / (len(pivots) + 1)
    return Estimate(mean, mean - float(high) * error, mean - float(low) * error, share)


def sign_flip(logs: Floats, seed: int) -> Estimate:
    """Sign-flip permutation test (Fisher 1935): under equality each block's sign is random. Student's interval."""
    plain = paired_student(logs)
    if len(logs) < 2:
        return plain
    flipped = np.abs((signs(len(logs), seed) * logs).mean(axis=1))
    share = float(np.mean(flipped >= abs(logs.mean()) * (1 - 1e-9)))
    return plain._replace(p_value=share)


def draws(count: int, seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """`RESAMPLES` sets of `count` indexes, with replacement."""
    return np.random.default_rng(seed).integers(0, count, size=(RESAMPLES, count))


def signs(count: int, seed: int) -> Floats:
    """All patterns of `count` signs, or `RESAMPLES` random ones if there are too many; one per row."""
    if count <= MOST_SIGNS:
        return np.array(list(itertools.product((-1.0, 1.0), repeat=count)))
    return np.random.default_rng(seed).choice([-1.0, 1.0], size=(RESAMPLES, count))


METHODS: dict[str, SeededMethod] = {
    "student": lambda logs, seed: paired_student(logs),
    "percentile": percentile,
    "bca": bca,
    "studentised": studentised,
    "sign-flip": sign_flip,
}
