"""Pace of an endpoint: the answers that came compared with those that its usual service lets expect.

The expected number grows while requests wait for their first byte, by the endpoint's usual rate; each answer counts
one. The logarithm of their ratio is how much slower than usual it is: a rate estimate from censored observations (gamma
prior, Poisson counts). So requests that are not answered yet count, and slow and silent are one.
"""

from __future__ import annotations

from math import exp, log
from typing import Final

TAU_S: Final = 0.5
"""Seconds after which an answer that was expected or came counts 1/e. Traffic returns two seconds after an endpoint was
slow, three with 1 s; ten after a region was with 3 s. Random scenarios do not tell them apart."""

FEW: Final = 4.0
"""Answers that are too few to judge by. As many at the usual pace are assumed before any is counted."""

CHANCE: Final = 4.0
"""Squared difference in standard errors up to which it may be chance."""


class Pace:
    """Expected and received answers until `at`, decayed with TAU_S."""

    def __init__(self) -> None:
        self.at = self._expected = self._received = 0.0

    def advance(self, expected: float, answers: int, now: float) -> None:
        """Count answers expected and received since the last call."""
        if now > self.at:
            keep = exp((self.at - now) / TAU_S)
            self._expected *= keep
            self._received *= keep
            self.at = now
        self._expected += expected
        self._received += answers

    def slowdown(self, pending: float, now: float) -> float:
        """Return the logarithm of how many times slower than usual it is, 0 if that may be chance; `pending` answers
        were expected since the last `advance`."""
        # Mostly the difference is within chance whatever has decayed since. That needs no logarithm:
        # |log(e/r)| ≤ |e − r| / √(e·r), and e/r is most extreme before all decay or after it.
        expected, received = self._expected + pending + FEW, self._received + FEW
        least, most = (expected, received) if expected < received else (received, expected)
        apart, chance = most - least, 0.999 * CHANCE  # whatever the rounding errors
        if apart * apart < chance * least and pending * pending * most < chance * FEW * (pending + FEW):
            return 0.0
        keep = exp((self.at - now) / TAU_S) if now > self.at else 1.0
        expected, received = self._expected * keep + pending + FEW, self._received * keep + FEW
        apart = log(expected / received)
        return apart if apart * apart * max(expected, received) > CHANCE else 0.0
