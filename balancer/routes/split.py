"""Weighted split of a route's requests between clusters, by turns or by a key of the request.

A request has a position in 0..1, and each cluster an interval as long as its share, in the order of the configuration.
Positions follow each other by the golden ratio, so shares are exact after few requests. That of a key is its hash: the
same in every process and after every change, so that a change moves no key but those whose interval has a new owner.

A guard compares the cluster of a canary with the others of its split once a second, from counts that the data path
keeps anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from operator import sub
from random import Random
from typing import Any, Final

from balancer.cluster.affinity import key_of
from balancer.cluster.cluster import Cluster
from balancer.config.schema.routes import RouteConfig
from balancer.errors import CommandRefused, NoEndpoint, PoolOverloaded, QueueFull, QueueTimeout, Shed
from balancer.http.h1.client import Client
from balancer.http.h1.request_head import KeyOf, Request
from balancer.log.output import complain
from policies.insight.version_guard import problem_of
from policies.selection import hashing
from policies.stats.load import Histogram

PERIOD: Final = 1.0
"""Seconds between two comparisons."""

WINDOW: Final = 600.0
"""Seconds after which counts begin anew: a fault of today must not be diluted by the requests of a week."""

UNSERVED: Final = tuple(one.reason for one in (NoEndpoint, PoolOverloaded, QueueFull, QueueTimeout, Shed))
"""Errors of requests that no endpoint of the cluster was there for; other failures are those of attempts."""

Counts = dict[str, list[int]]
"""By endpoint, and "" for requests without one: judged, of these failed, and the buckets of latencies."""


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
        counts[state.id] = [state.successes + state.failures, state.failures, *state.histogram.counts]
    return counts


def _change(counts: Counts, before: Counts) -> list[int]:
    """Return the difference; an endpoint that was not there before, or was replaced, counts as a whole."""
    earlier = {name: row for name, row in before.items() if name in counts and row[0] <= counts[name][0]}
    return [*map(sub, _summed(counts.values()), _summed(earlier.values()))]


def _summed(rows: Iterable[list[int]]) -> list[int]:
    return [*map(sum, zip(*rows, strict=True))]


GOLDEN: Final = 0.6180339887498949
"""Step between positions: of all numbers its multiples modulo 1 are spread most evenly (Knuth, TAOCP 3, 6.4)."""

BEYOND: Final = 2.0
"""Bound that every position is below."""


class Split:
    """The split of one route. `weights` are those in force, `requests` the counts of its clusters; `is_changed` while
    the weights are not those of the configuration, and `reason` why, if somebody has said so.
    """

    def __init__(self, config: RouteConfig, clusters: Mapping[str, Cluster], rng: Random) -> None:
        self.route = str(config)
        self.config = config
        self.requests: list[int] = []
        self.guard: CanaryGuard | None = None
        self._position = rng.random()
        self.apply(config, clusters)

    def apply(self, config: RouteConfig, clusters: Mapping[str, Cluster]) -> None:
        """Apply the configuration from the next request on; changes at run time stay while its weights are the same."""
        before = [*self.config.split.items()] if self.requests else []
        self.config = config
        self.names = tuple(config.split)
        self.clusters = [clusters[name] for name in self.names]
        self._key_of: KeyOf | None = key_of(config.split_key) if config.split_key is not None else None
        if tuple(name for name, _ in before) != self.names:
            self.requests = [0] * len(self.names)
        if before != [*config.split.items()]:
            self.change(config.split)
        self.guard = self._new_guard()

    def change(self, weights: Mapping[str, float], reason: str | None = None) -> None:
        """Change the weights from the next request on."""
        self.weights = {name: weights[name] for name in self.names}
        self.reason = reason
        self.is_changed = self.weights != self.config.split
        total = sum(self.weights.values())
        self.shares = [weight / total for weight in self.weights.values()]
        last = max(at for at, share in enumerate(self.shares) if share)
        self._bounds = [BEYOND if at >= last else bound for at, bound in enumerate(accumulate(self.shares))]
        self.guard = self._new_guard()

    def _new_guard(self) -> CanaryGuard | None:
        canary = self.config.canary
        return None if canary is None else CanaryGuard(self.clusters, self.names.index(canary))

    def cluster_of(self, request: Request, client: Client) -> Cluster:
        """Return the cluster that a request goes to, and count it."""
        key = None if self._key_of is None else request.key_by(self._key_of, client)
        if key is not None:  # mixed: policies place keys within a cluster by the same hash
            position = hashing.mixed(hashing.of_key(key)) * hashing.UNIT
        else:
            position = self._position + GOLDEN
            if position >= 1.0:
                position -= 1.0
            self._position = position
        at, bounds = 0, self._bounds
        while position >= bounds[at]:
            at += 1
        self.requests[at] += 1
        return self.clusters[at]

    def problem(self, now: float) -> str | None:
        """Return what is worse about the canary than about the other clusters; None if nothing is."""
        guard, canary = self.guard, self.config.canary
        if guard is None or not 0 < self.shares[self.names.index(canary or "")] < 1:
            return None
        return guard.problem(now)


class Splits:
    """The splits of all routes, by the conditions of the route. `on_reset` is called for each whose canary gets no more
    requests, with the weights and the reason.
    """

    def __init__(self) -> None:
        self.by_route: dict[tuple[Any, ...], Split] = {}
        self.on_reset: Callable[[Split], None] | None = None

    def apply(self, routes: Iterable[RouteConfig], clusters: Mapping[str, Cluster], seed: int | None) -> None:
        """Apply the routes of a configuration; a split of the same route between the same clusters keeps its counts."""
        before, self.by_route = self.by_route, {}
        for route in (route for route in routes if route.split):
            known = before.get(route.conditions)
            if known is not None:
                known.apply(route, clusters)
            self.by_route[route.conditions] = known or Split(route, clusters, Random(seed))

    def change(
        self, weights: Mapping[str, float], route: str | None = None, reason: str | None = None
    ) -> list[Split]:
        """Change the weights of all splits between these clusters, or of one route. Raises `CommandRefused`."""
        found = [
            split
            for split in self.by_route.values()
            if set(split.names) == set(weights) and route in (None, split.route)
        ]
        if not found:
            between = "; ".join(
                f"{', '.join(split.names)} ({split.route})" for split in self.by_route.values()
            )
            raise CommandRefused(
                f"weights: must be those of all clusters of a split: {between or 'no route has one'}", 404
            )
        for split in found:
            split.change(weights, reason)
        return found

    def sweep(self, now: float) -> None:
        """Take the requests from each canary that is worse than the clusters beside it."""
        for split in self.by_route.values():
            problem = split.problem(now)
            if problem is not None:
                canary = split.config.canary
                split.change({**split.weights, str(canary): 0.0}, f"canary {canary}: {problem}")
                complain(f"split {split.route}: no more requests to canary {canary}: {problem}")
                if self.on_reset is not None:
                    self.on_reset(split)
