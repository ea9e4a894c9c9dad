"""Latencies that failures decide: a failure counts as the deadline, so beyond 1 % of failures the p99 is the deadline.

Two entries whose p99 is the deadline do not differ in it, however unlike they are. The odds of a miss, a request that
failed or was later than the SLO, decide between them: (1 - goodput) / goodput. They have no bound; their ratio is near
that of the misses while these are few, and near the inverse of that of the goodput where nearly all miss.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

GOODPUT = "goodput"
"""What such a comparison is judged by."""

BEYOND = {"p50": 0.5, "p75": 0.25, "p90": 0.1, "p95": 0.05, "p99": 0.01, "p999": 0.001, "max": 0.0}
"""Share of the requests that lies beyond each percentile."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Blocks in which a latency is the deadline, by label, the `odds` of a miss by block, and their factors by part of
    a replayed record.
    """

    blocks: Mapping[str, Set[int]]
    odds: Mapping[str, Mapping[int, float]]
    parts: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    def tied(self, label: str, other: str) -> set[int]:
        """Blocks in which both are at the ceiling."""
        return set(self.blocks.get(label, ())) & set(self.blocks.get(other, ()))


def is_at_ceiling(measure: str, failed: int, requests: int) -> bool:
    """Whether `failed` of `requests` make the measure the deadline. A mean is only if all failed, a rate never is."""
    if measure == "mean":
        return failed == requests > 0
    return measure in BEYOND and failed > int(BEYOND[measure] * requests + 1e-9)


def odds_of_miss(goodput: float, requests: int) -> float:
    """Odds of a request that is not answered in time; half a request is added to either side (Haldane 1956)."""
    good = goodput * requests
    return (requests - good + 0.5) / (good + 0.5)
