"""Guard rails of a version canary: whether its requests fail more often, or take longer, than those of the versions
beside it. Pure.

A difference must be a relevant one and beyond chance. If both versions were alike, each failure would be one of the
canary's with the probability of its share of the requests; so the number of its failures is binomial, and Chernoff's
bound limits the probability of as many or more. Slow requests, those beyond a quantile of the others, are compared in
the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Final

from policies.facts import Outcome, OutcomeKind
from policies.stats.load import Histogram

_OK: Final = OutcomeKind.OK

RELEVANT: Final = 1.25
"""Factor by which the share of failures or a quantile of the latency must be higher."""

CERTAINTY: Final = -log(1e-6)
"""Least negative logarithm of the probability of chance. Small, because it is compared once a second."""

LEAST_DELAY: Final = 0.005
"""Seconds by which a quantile must be higher as well: less is within what the event loops of two clusters differ by."""

QUANTILES: Final = (0.5, 0.9, 0.99)

MIN_ANSWERED: Final = 100
"""Least answered requests of each side for a comparison of latencies."""


class Tally:
    """Attempts at the requests of one version: those that succeeded or failed, of these the failed ones, requests whose
    clients left, and latencies of successes, from the pick to the last byte.
    """

    def __init__(self) -> None:
        self.ended = self.failed = self.left = 0
        self.latency = Histogram()

    def record(self, outcome: Outcome, picked_at: float) -> None:
        kind = outcome.kind
        if kind is _OK:
            self.latency.record(outcome.ended_at - picked_at)
        elif kind.is_failure:
            self.failed += 1
        elif not kind.is_success:
            return
        self.ended += 1

    def unserved(self) -> None:
        """Count a request that no endpoint was there for, as a failed attempt."""
        self.ended += 1
        self.failed += 1

    @property
    def row(self) -> list[int]:
        return [self.ended, self.failed, self.left, *self.latency.counts]


def problem_of(canary: Sequence[int], others: Sequence[int]) -> str | None:
    """Return what is worse about the canary, in words; None if nothing is, beyond chance.

    Both are rows of tallies, that of the others their sum.
    """
    (ended, failed, left, *buckets), (usually_ended, usually_failed, usually_left, *usual_buckets) = (
        canary,
        others,
    )
    for number, of, elsewhere, of_elsewhere, what in (
        (failed, ended, usually_failed, usually_ended, "of its requests failed"),
        (left, ended + left, usually_left, usually_ended + usually_left, "of its clients left"),
    ):
        if not (of and of_elsewhere):
            continue
        share, usual_share = number / of, elsewhere / of_elsewhere
        if share > RELEVANT * usual_share and _is_beyond_chance(number, of, elsewhere, of_elsewhere):
            return f"{share:.2%} {what}, and {usual_share:.2%} of the others"
    if not (ended and usually_ended):
        return None
    took, usually_took = Histogram.of(buckets, 0.0), Histogram.of(usual_buckets, 0.0)
    if min(took.count, usually_took.count) < MIN_ANSWERED:
        return None
    for quantile in QUANTILES:
        taken, usual = took.quantile(quantile) or 0.0, usually_took.quantile(quantile) or 0.0
        slower, usually_slower = (_slower_than(each, usual) for each in (took, usually_took))
        if taken > max(RELEVANT * usual, usual + LEAST_DELAY) and _is_beyond_chance(
            slower, took.count, usually_slower, usually_took.count
        ):
            return f"its p{quantile * 100:g} is {taken * 1e3:.3g} ms, and {usual * 1e3:.3g} ms of the others"
    return None


def _slower_than(histogram: Histogram, seconds: float) -> int:
    """Return the number of samples in the buckets above that of `seconds`."""
    reference = Histogram()
    reference.record(seconds)
    return sum(histogram.counts[reference.counts.index(1) + 1 :])


def _is_beyond_chance(number: int, of: int, elsewhere: int, of_elsewhere: int) -> bool:
    """Return whether more of the canary's requests are concerned than chance explains, if each of all that are is one
    of the canary's with the probability of its share of the requests."""
    share, found = of / (of + of_elsewhere), number / ((number + elsewhere) or 1)
    if found <= share:
        return False
    exponent = found * log(found / share)
    if elsewhere:
        exponent += (1 - found) * log((1 - found) / (1 - share))
    return (number + elsewhere) * exponent > CERTAINTY
