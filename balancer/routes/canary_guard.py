"""Guard of a version canary: compares its cluster with the others of a split once a second, from counts that the data
path keeps anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import sub
from typing import Final

from balancer.cluster.cluster import Cluster
from balancer.errors import NoEndpoint, QueueFull, QueueTimeout, Shed
from policies.insight.version_guard import problem_of
from policies.stats.load import Histogram

PERIOD: Final = 1.0
"""Seconds between two comparisons."""

WINDOW: Final = 600.0
"""Seconds after which counts begin anew: a fault of today must not be diluted by the requests of a week."""

UNSERVED: Final = (NoEndpoint.reason, QueueFull.reason, QueueTimeout.reason, Shed.reason)
"""Errors of requests that no endpoint of the cluster was there for; other failures are those of attempts."""

Counts = dict[str, list[int]]
"""By endpoint, and "" for requests without one: ended, failed, and the buckets of latencies."""


class CanaryGuard:
    """Guard of the cluster at place `canary` among `clusters`."""

    def __init__(self, clusters: Sequence[Cluster], canary: int) -> None:
        self._clusters = clusters
        self._canary = canary
        self._before: list[Counts] = []
        self._began_at = self._next_at = 0.0

    def problem(self, now: float) -> str | None:
        """Return what is worse about the canary than about the others; None if nothing is, or it is not yet time."""
        if now < self._next_at:
            return None
        self._next_at = now + PERIOD
        counts = [_counts_of(cluster) for cluster in self._clusters]
        if not self._before or now > self._began_at + WINDOW:
            self._before, self._began_at = counts, now
            return None
        changes = [*map(_change, counts, self._before)]
        canary = changes.pop(self._canary)
        return problem_of(canary, _summed(changes))


def _counts_of(cluster: Cluster) -> Counts:
    unserved = sum(cluster.counts.errors[reason] for reason in UNSERVED)
    counts = {"": [unserved, unserved, *Histogram().counts]}
    for state in cluster.router.states:
        failed = sum(number for kind, number in state.outcomes.items() if kind.is_failure)
        counts[state.id] = [sum(state.outcomes.values()), failed, *state.histogram.counts]
    return counts


def _change(counts: Counts, before: Counts) -> list[int]:
    """Return the difference; an endpoint that was not there before, or was replaced, counts as a whole."""
    earlier = {name: row for name, row in before.items() if name in counts and row[0] <= counts[name][0]}
    return [*map(sub, _summed(counts.values()), _summed(earlier.values()))]


def _summed(rows: Iterable[list[int]]) -> list[int]:
    return [*map(sum, zip(*rows, strict=True))]
