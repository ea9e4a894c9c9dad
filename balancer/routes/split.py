"""Weighted split of a route's requests between clusters, by turns or by a key of the request.

A request has a position in 0..1, and each cluster an interval as long as its share, in the order of the configuration.
Positions follow each other by the golden ratio, so shares are exact after few requests. That of a key is its hash: the
same in every process and after every change, so that a change moves no key but those whose interval has a new owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from random import Random
from typing import Any, Final

from balancer.cluster.affinity import key_of
from balancer.cluster.cluster import Cluster
from balancer.config.schema.routes import RouteConfig
from balancer.errors import CommandRefused
from balancer.http.h1.client import Client
from balancer.http.h1.request_head import KeyOf, Request
from balancer.log.output import complain
from balancer.routes.canary_guard import CanaryGuard
from policies.insight.version_guard import Tally
from policies.selection import hashing

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
        before, canary = [*self.config.split.items()] if self.requests else [], self.config.canary
        self.config = config
        self.names = tuple(config.split)
        self.clusters = [clusters[name] for name in self.names]
        self._key_of: KeyOf | None = key_of(config.split_key) if config.split_key is not None else None
        if tuple(name for name, _ in before) != self.names:
            self.requests = [0] * len(self.names)
        if before != [*config.split.items()]:
            self.change(config.split)
        elif canary != config.canary:
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
        return None if canary is None else CanaryGuard(len(self.names), self.names.index(canary))

    def assign(self, request: Request, client: Client) -> tuple[Cluster, Tally | None]:
        """Return the cluster that a request goes to, and the tally of its attempts if there is a guard; count it."""
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
        return self.clusters[at], None if self.guard is None else self.guard.tallies[at]

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
        between = [split for split in self.by_route.values() if set(split.names) == set(weights)]
        found = [split for split in between if route in (None, split.route)]
        if not found:
            known = "; ".join(f"{', '.join(split.names)} ({split.route})" for split in self.by_route.values())
            rule = (
                "route: must be one that is split"
                if between
                else "weights: must be those of all clusters of a split"
            )
            raise CommandRefused(f"{rule}: {known or 'no route has one'}", 404)
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
