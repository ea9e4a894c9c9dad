"""Pace of an endpoint: the answers that came compared with those that its usual service lets expect.

The expected number grows while requests wait for their first byte, by the endpoint's usual rate; each answer counts
one. The logarithm of their ratio is how much slower than usual it is: a rate estimate from censored observations (gamma
prior, Poisson counts), so requests that are not answered yet count. The prior of an endpoint is the pace of its region,
where many answers tell soon whether all are slower; the region's prior is the usual pace.
"""

from __future__ import annotations

from math import exp, log
from typing import Final

REGION_TAU_S: Final = 0.5
"""Seconds after which an expected or received answer of a region counts 1/e, as one of an endpoint does after TAU.
Simulated, a region that becomes four and five times slower: 0.7 and 1.5 % of the answers are late, 1.0 and 1.7 % where
regions are not judged."""

FEW: Final = 8.0
"""Answers that are too few to judge the concurrency of a region or outliers of an endpoint by. As many at the prior's
pace are assumed before any is counted, and an endpoint is silent that owes more, times the variation of services: by
chance that is one in 3,000 silences (Poisson)."""

CHANCE: Final = 4.0
"""Squared difference in standard errors up to which it may be chance."""

STEP: Final = 0.125
"""Least time between two values that a `DelayedSum` stores, as a part of the delay. Between them it is interpolated."""


def beyond_chance(apart: float, variance: float) -> float:
    """Return the part of a difference that is not chance (the positive part of James and Stein's estimate)."""
    squared = apart * apart
    return apart * (1.0 - CHANCE * variance / squared) if squared > CHANCE * variance else 0.0


class Pace:
    """Expected and received answers until `at`, decayed with `tau` seconds."""

    def __init__(self, tau: float) -> None:
        self._tau = tau
        self.at = self._expected = self._received = 0.0

    def advance(self, expected: float, answers: int, now: float) -> None:
        """Count answers expected and received since the last call."""
        if now > self.at:
            keep = exp((self.at - now) / self._tau)
            self._expected *= keep
            self._received *= keep
            self.at = now
        self._expected += expected
        self._received += answers

    def restart(self) -> None:
        """Forget the counts: the endpoint is as fast as usual again."""
        self._expected = self._received = 0.0

    def slowdown(self, pending: float, variation: float, prior: float, now: float) -> float:
        """Return the logarithm of how many times slower than usual it is, beyond chance.

        `pending` answers were expected since the last `advance`, `prior` is the slowdown that is assumed, `variation`
        the squared coefficient of variation of services, at least 1, which is Poisson's."""
        if not prior:
            # Mostly the difference is within chance whatever has decayed since. That needs no logarithm:
            # |log(e/r)| ≤ |e − r| / √(e·r), and e/r is most extreme before all decay or after it.
            expected, received = self._expected + pending + FEW, self._received + FEW
            least, most = (expected, received) if expected < received else (received, expected)
            apart, chance = most - least, 0.999 * CHANCE * variation  # whatever the rounding errors
            if apart * apart < chance * least and pending * pending * most < chance * FEW * (pending + FEW):
                return 0.0
        keep = exp((self.at - now) / self._tau) if now > self.at else 1.0
        expected = self._expected * keep + pending + FEW
        received = self._received * keep + FEW * exp(-prior)
        apart, variance = log(expected / received) - prior, variation / max(expected, received)
        if apart * apart <= CHANCE * variance:
            return prior
        return prior + beyond_chance(apart, variance)


class DelayedSum:
    """A growing sum as it was some time ago: what had been waited for when the answers that arrive now were sent.

    Its stored values are none older than the delay needs.
    """

    def __init__(self) -> None:
        self._times = list[float]()
        self._values = list[float]()

    def store(self, value: float, delay: float, now: float) -> None:
        """Store the sum, unless the last stored value is recent."""
        times = self._times
        if delay and (not times or now - times[-1] >= STEP * delay):
            times.append(now)
            self._values.append(value)

    def before(self, value: float, delay: float, now: float) -> float:
        """Return what the sum, which is `value` now, was `delay` seconds ago."""
        if not self._times:
            return value
        times, values, then = self._times, self._values, now - delay
        while len(times) > 1 and times[1] <= then:
            del times[0], values[0]
        if not delay:
            return value
        begin, end, first, last = times[0], now, values[0], value
        if len(times) > 1:
            end, last = times[1], values[1]
        if then <= begin or end <= begin:
            return first
        return first + (last - first) * (then - begin) / (end - begin)
