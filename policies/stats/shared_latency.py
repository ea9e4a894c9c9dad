"""Latency measurements that sibling processes and several units share.

Immutable values. Sums hold as of `at` and decay from then on like those of `latency.py`. A process must publish only
what it has measured itself, or an old floor would circulate for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, isfinite
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

RECORD_VERSION = 1
"""Version of the fields of a record; units ignore records of another version."""

MOST_SAMPLES, LONGEST_LATENCY, OLDEST = 1e6, 3600.0, 60.0
"""Bounds of a credible record: decayed samples, seconds of latency, and seconds of age."""


def to_record(own: SharedLatency, now: float) -> tuple[float, ...]:
    """Return the measurements as numbers that are valid on other machines: the last is an age instead of a time."""
    return (*own[:-1], max(0.0, now - own.at))


def from_record(record: Sequence[float], now: float) -> SharedLatency | None:
    """Return the measurements of a record that arrives at `now`; None if it is not credible."""
    successes, latency, ahead, failures, floor, pace, age = record
    is_credible = (
        0.0 <= age <= OLDEST
        and 0.0 <= successes <= MOST_SAMPLES
        and 0.0 <= failures <= MOST_SAMPLES
        and 0.0 <= latency <= successes * LONGEST_LATENCY
        and 0.0 <= ahead <= successes * MOST_SAMPLES
        and floor >= 0.0
        and pace >= 0.0
        and (not successes or (isfinite(floor) and isfinite(pace)))
    )
    return SharedLatency(successes, latency, ahead, failures, floor, pace, now - age) if is_credible else None


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
