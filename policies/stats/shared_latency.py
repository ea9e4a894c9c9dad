"""Latency measurements that sibling processes share.

Immutable values. Sums hold as of `at` and decay from then on like those of `latency.py`. A process must publish only
what it has measured itself, or an old floor would circulate for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf
from typing import NamedTuple


class SharedLatency(NamedTuple):
    """Decayed sums over successes (number, seconds, requests ahead), decayed failures, the least latency and the least
    pace in seconds, and the time `at` of the newest sample."""

    successes: float = 0.0
    latency: float = 0.0
    ahead: float = 0.0
    failures: float = 0.0
    floor: float = inf
    pace: float = inf
    at: float = -inf

    def faded(self, keep: float) -> SharedLatency:
        """Return a copy with all sums multiplied by `keep` (0..1)."""
        return self._replace(
            successes=self.successes * keep,
            latency=self.latency * keep,
            ahead=self.ahead * keep,
            failures=self.failures * keep,
        )


NOTHING = SharedLatency()


def pooled(reports: Sequence[SharedLatency], tau: float) -> SharedLatency:
    """Merge the measurements, as of the newest of them; sums decay by e^(−age/tau)."""
    newest = max(
        (evidence.at for evidence in reports if evidence.successes or evidence.failures), default=-inf
    )
    if newest == -inf:
        return NOTHING
    sums = [evidence.faded(exp(min(0.0, evidence.at - newest) / tau)) for evidence in reports]
    return SharedLatency(
        sum(evidence.successes for evidence in sums),
        sum(evidence.latency for evidence in sums),
        sum(evidence.ahead for evidence in sums),
        sum(evidence.failures for evidence in sums),
        min(evidence.floor for evidence in sums),
        min(evidence.pace for evidence in sums),
        newest,
    )
