"""What others have measured of an endpoint: the processes of one unit pool their latencies.

Rule of this file: values only. Sums are worth what they were worth at `at`, and fade from then on like those of
`latency.py`. Everybody tells what it has measured itself and never what it was told, or an old floor would be passed
round for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf
from typing import NamedTuple


class SharedLatency(NamedTuple):
    """Faded sums over successes (how many, their seconds, how many were ahead), faded failures, the least latency and
    the least pace in seconds, and the instant `at` of the newest of it."""

    successes: float = 0.0
    latency: float = 0.0
    ahead: float = 0.0
    failures: float = 0.0
    floor: float = inf
    pace: float = inf
    at: float = -inf

    def faded(self, keep: float) -> SharedLatency:
        """The same when it is worth `keep` (0..1) of what it was."""
        return self._replace(
            successes=self.successes * keep,
            latency=self.latency * keep,
            ahead=self.ahead * keep,
            failures=self.failures * keep,
        )


NOTHING = SharedLatency()


def pooled(told: Sequence[SharedLatency], tau: float) -> SharedLatency:
    """All of it as one, as of the newest of it; sums fade by e^(−age/tau)."""
    newest = max((evidence.at for evidence in told if evidence.successes or evidence.failures), default=-inf)
    if newest == -inf:
        return NOTHING
    sums = [evidence.faded(exp(min(0.0, evidence.at - newest) / tau)) for evidence in told]
    return SharedLatency(
        sum(evidence.successes for evidence in sums),
        sum(evidence.latency for evidence in sums),
        sum(evidence.ahead for evidence in sums),
        sum(evidence.failures for evidence in sums),
        min(evidence.floor for evidence in sums),
        min(evidence.pace for evidence in sums),
        newest,
    )
