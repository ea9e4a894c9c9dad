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
"""Answers that are too few to judge by. As many at the usual pace are assumed unless a difference is CLEAR."""

ASSUMED: Final = 1.0
"""Answers at the usual pace that are assumed where the difference is CLEAR. With FEW an endpoint that is 4.5 times
slower and gets little would seem twice as slow, and get a sixth of the traffic instead of an eighth."""

CHANCE: Final = 4.0
"""Squared difference in standard errors up to which it may be chance."""

CLEAR: Final = 16.0
"""Squared difference in standard errors from which it is clear. With 4 or 9 the p99 of `heavy-tail` and `regions` is
some 4 % longer."""


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

    def restart(self) -> None:
        """Forget the counts: as fast as usual."""
        self._expected = self._received = 0.0

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
        expected, received = self._expected * keep + pending, self._received * keep
        apart = log((expected + FEW) / (received + FEW))
        squared = apart * apart * (max(expected, received) + FEW)
        if squared > CLEAR:
            return log((expected + ASSUMED) / (received + ASSUMED))
        return apart if squared > CHANCE else 0.0
