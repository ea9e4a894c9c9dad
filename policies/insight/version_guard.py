"""Guard rails of a version canary: whether its requests fail more often, or take longer, than those of the versions
beside it. Pure.

A difference must be a relevant one and beyond chance. If both versions were alike, each failure would be one of the
canary's with the probability of its share of the requests; so the number of its failures is binomial, and Chernoff's
bound limits the probability of as many or more. Slow requests, those beyond a quantile of the others, are compared in
the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Final

from policies.stats.load import Histogram

RELEVANT: Final = 1.25
"""Factor by which the share of failures or a quantile of the latency must be higher."""

CERTAINTY: Final = -log(1e-6)
"""Least negative logarithm of the probability of chance. Small, because it is compared once a second."""

LEAST_DELAY: Final = 0.005
"""Seconds by which a quantile must be higher as well: less is within what the event loops of two clusters differ by."""

QUANTILES: Final = (0.5, 0.9, 0.99)

MIN_ANSWERED: Final = 100
"""Least answered requests of each side for a comparison of latencies."""


@dataclass(frozen=True, slots=True)
class Record:
    """Requests that have ended, those that failed, and the buckets of the latencies of the others."""

    requests: int
    failed: int
    buckets: Sequence[int]


def problem_of(canary: Record, others: Record) -> str | None:
    """Return what is worse about the canary, in words; None if nothing is, beyond chance."""
    if not (canary.requests and others.requests):
        return None
    failed, usual = canary.failed / canary.requests, others.failed / others.requests
    if failed > RELEVANT * usual and _is_beyond_chance(
        canary.failed, others.failed, canary.requests / (canary.requests + others.requests)
    ):
        return f"{failed:.2%} of its requests failed, and {usual:.2%} of the others"
    return _slower(Histogram.of([*canary.buckets], 0.0), Histogram.of([*others.buckets], 0.0))


def _slower(canary: Histogram, others: Histogram) -> str | None:
    answered, usually_answered = canary.count, others.count
    if min(answered, usually_answered) < MIN_ANSWERED:
        return None
    share = answered / (answered + usually_answered)
    for quantile in QUANTILES:
        taken, usual = canary.quantile(quantile), others.quantile(quantile)
        if taken is None or usual is None:
            continue
        if taken > max(RELEVANT * usual, usual + LEAST_DELAY) and _is_beyond_chance(
            _slower_than(canary, usual), _slower_than(others, usual), share
        ):
            return f"its p{quantile * 100:g} is {taken * 1e3:.3g} ms, and {usual * 1e3:.3g} ms of the others"
    return None


def _slower_than(histogram: Histogram, seconds: float) -> int:
    """Return the number of samples in the buckets above that of `seconds`."""
    reference = Histogram()
    reference.record(seconds)
    return sum(histogram.counts[reference.counts.index(1) + 1 :])


def _is_beyond_chance(number: int, elsewhere: int, share: float) -> bool:
    """Return whether `number` of `number` + `elsewhere` events are more than chance explains, if each is one of these
    with the probability `share`."""
    total = number + elsewhere
    found = number / total if total else 0.0
    if found <= share:
        return False
    exponent = found * log(found / share)
    if elsewhere:
        exponent += (1 - found) * log((1 - found) / (1 - share))
    return total * exponent > CERTAINTY
