"""The mirror of one route, and those of all routes: which requests are copied, and what became of the copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any, Final

from balancer.cluster.cluster import Cluster
from balancer.config.schema.route_parts import MirrorConfig
from balancer.config.schema.routes import RouteConfig
from balancer.http.h1.client import Client
from balancer.http.h1.request_head import Request
from balancer.mirroring.request_copy import BODY_TOO_LONG, RequestCopy
from policies.stats.load import Histogram

BUSY: Final = "busy"
"""Reason for skipping: `max_in_flight` copies are in flight."""


class MirrorCounts:
    """Totals of one mirror since it was configured.

    Each request that was drawn is `skipped`, for a reason, or `sent`; each sent one has `answered` or `failed`, for a
    reason. Of the answered ones, those in `cut` were not read to their end. `classes` counts the pairs of status
    classes of original and copy, where both were answered, and the histograms have the latencies of these pairs.
    """

    def __init__(self) -> None:
        self.sent = self.answered = self.cut = 0
        self.skipped: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.classes: Counter[tuple[int, int]] = Counter()
        self.original_latency = Histogram()
        self.copy_latency = Histogram()

    def compare(self, original: tuple[int, float], copy: tuple[int, float]) -> None:
        """Record a pair; each is a status and the seconds from the complete request to the response's head."""
        self.classes[original[0] // 100, copy[0] // 100] += 1
        self.original_latency.record(original[1])
        self.copy_latency.record(copy[1])


class Mirror:
    """Copies of a share of the requests of one route go to `cluster`.

    `route` is the text of the route. `copies` are those in flight, their bodies perhaps still incomplete, in
    order of arrival.
    """

    def __init__(self, route: str, config: MirrorConfig, cluster: Cluster, rng: Random) -> None:
        self.route = route
        self.counts = MirrorCounts()
        self.copies: dict[RequestCopy, None] = {}
        self._random = rng.random
        self.apply(config, cluster)

    def apply(self, config: MirrorConfig, cluster: Cluster) -> None:
        """Apply the configuration from the next request on."""
        self.config = config
        self.cluster = cluster
        self._methods = frozenset(method.encode() for method in config.methods)

    def copy_of(self, request: Request, client: Client, limit: int | None) -> RequestCopy | None:
        """Return a copy of a request whose head has come; None if it is not drawn, or must not or cannot be copied, or
        has a body longer than `limit`, for which it is refused. The exchange of the request must end the copy.
        """
        config, fields = self.config, request.fields
        if limit is not None and fields.length > limit:
            return None
        if request.method not in self._methods or fields.is_offer or self._random() >= config.share:
            return None
        if fields.length > config.body:
            self.counts.skipped[BODY_TOO_LONG] += 1
            return None
        if len(self.copies) >= config.max_in_flight:
            self.counts.skipped[BUSY] += 1
            return None
        copy = RequestCopy(self, request, client)
        self.copies[copy] = None
        return copy


class Mirrors:
    """The mirrors of all routes, by the conditions of the route: its text may be that of another route, too."""

    def __init__(self) -> None:
        self.by_route: dict[tuple[Any, ...], Mirror] = {}
        self._leaving: list[Mirror] = []  # removed ones with copies in flight

    def apply(self, routes: Iterable[RouteConfig], clusters: Mapping[str, Cluster], seed: int | None) -> None:
        """Apply the routes of a configuration; a mirror of the same route to the same cluster keeps its counts."""
        before, self.by_route = self.by_route, {}
        for route in routes:
            config, key = route.mirror, route.conditions
            if config is None:
                continue
            known = before.get(key)
            if known is not None and known.config.cluster == config.cluster:
                del before[key]
                known.apply(config, clusters[config.cluster])
                self.by_route[key] = known
            else:
                self.by_route[key] = Mirror(str(route), config, clusters[config.cluster], Random(seed))
        self._leaving += before.values()

    def sweep(self, now: float) -> None:
        """Enforce the timeouts of all copies; called by the sweep."""
        for mirror in (*self.by_route.values(), *self._leaving):
            for copy in list(mirror.copies):
                copy.check(now)
        if self._leaving:
            self._leaving = [mirror for mirror in self._leaving if mirror.copies]

    def stop(self) -> None:
        """Abandon all copies."""
        for mirror in (*self.by_route.values(), *self._leaving):
            for copy in list(mirror.copies):
                copy.abandon()
