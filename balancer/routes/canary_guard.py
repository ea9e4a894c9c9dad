"""Guard of a version canary: compares its cluster with the others of a split once a second, from counts that the data
path keeps anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import add, sub
from typing import Final

from balancer.cluster.cluster import Cluster
from balancer.errors import NoEndpoint, QueueFull, QueueTimeout, Shed
from policies.insight.version_guard import Record, problem_of
from policies.stats.load import Histogram

PERIOD: Final = 1.0
"""Seconds between two comparisons."""

WINDOW: Final = 600.0
"""Seconds after which counts begin anew: a fault of today must not be diluted by the requests of a week."""

UNSERVED: Final = (NoEndpoint.reason, QueueFull.reason, QueueTimeout.reason, Shed.reason)
"""Errors of requests that no endpoint of the cluster was there for; other failures are those of attempts."""

Counts = dict[str, tuple[int, int, list[int]]]
"""By endpoint, and "" for requests without one: ended, failed, buckets of latencies."""


class CanaryGuard:
    """Guard of the cluster at place `canary` among `clusters`."""

    def __init__(self, clusters: Sequence[Cluster], canary: int) -> None:
        self._clusters = clusters
        self._canary = canary
        self._before: list[Counts] = []
        self._began_at = self._next_at = 0.0

    def begun_again(self) -> CanaryGuard:
        """Return a guard that does not know what has happened before."""
        return CanaryGuard(self._clusters, self._canary)

    def problem(self, now: float) -> str | None:
        """Return what is worse about the canary than about the others; None if nothing is, or it is not yet time."""
        if now < self._next_at:
            return None
        self._next_at = now + PERIOD
        counts = [_counts_of(cluster) for cluster in self._clusters]
        if not self._before or now > self._began_at + WINDOW:
            self._before, self._began_at = counts, now
            return None
        records = [_record(now_, before) for now_, before in zip(counts, self._before, strict=True)]
        canary = records.pop(self._canary)
        return problem_of(
            canary,
            Record(
                sum(each.requests for each in records),
                sum(each.failed for each in records),
                [sum(column) for column in zip(*(each.buckets for each in records), strict=True)],
            ),
        )


def _counts_of(cluster: Cluster) -> Counts:
    unserved = sum(cluster.counts.errors[reason] for reason in UNSERVED)
    counts: Counts = {"": (unserved, unserved, [])}
    for state in cluster.router.states:
        failed = sum(number for kind, number in state.outcomes.items() if kind.is_failure)
        counts[state.id] = (sum(state.outcomes.values()), failed, state.histogram.counts.copy())
    return counts


def _record(counts: Counts, before: Counts) -> Record:
    """Return the difference; an endpoint that was not there before, or was replaced, counts as a whole."""
    requests = failed = 0
    buckets = Histogram().counts
    for name, (ended, of_them, latencies) in counts.items():
        earlier = before.get(name)
        if earlier is not None and earlier[0] <= ended:
            ended, of_them = ended - earlier[0], of_them - earlier[1]
            latencies = [*map(sub, latencies, earlier[2])]
        requests, failed = requests + ended, failed + of_them
        if latencies:
            buckets = [*map(add, buckets, latencies)]
    return Record(requests, failed, buckets)
