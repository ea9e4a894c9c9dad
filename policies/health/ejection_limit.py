"""Maximum number of ejected endpoints (Envoy's max ejection percent).

At most half of the cluster is ejected, of two endpoints one, so that ejection alone never leads to panic. Within a
region it is half as well, at least one, since its clients may be bound to it. The limit per region applies to ejections
by outlier detection only: endpoints that are unreachable, or in a region without any success for a while, are no use in
the cluster, and a whole region of them may be ejected within the limit of the cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from policies.endpoint.state import EndpointState
from policies.facts import AdminState, Region

LOST_AFTER = 5.0
"""Seconds without any success after which a region whose endpoints fail is lost."""


def max_ejected(size: int) -> int:
    """Return how many endpoints of a cluster of `size` may be ejected."""
    return size // 2


def max_ejected_in_region(size: int) -> int:
    """Return how many endpoints of a region of `size` may be ejected: at least one, if the cluster's limit allows."""
    return max(1, size // 2)


class HealthCounts:
    """Counts of endpoints and of unhealthy ones, per region, and in all under None.

    Only endpoints in ready state count, except for `level_size` and `level_out`, by priority.
    """

    def __init__(self, states: Iterable[EndpointState] = ()) -> None:
        self.size: Counter[Region | None] = Counter()
        self.out: Counter[Region | None] = Counter()
        self.level_size: Counter[int] = Counter()
        self.level_out: Counter[int] = Counter()
        for state in states:
            self.add(state)

    def add(self, state: EndpointState) -> None:
        """Count `state` in, by its present `admin_state`, region and `is_healthy`."""
        self._count(state, 1)

    def remove(self, state: EndpointState) -> None:
        """Undo `add`; call it before `admin_state`, region or `is_healthy` change."""
        self._count(state, -1)

    def _count(self, state: EndpointState, number: int) -> None:
        priority = state.endpoint.priority
        self.level_size[priority] += number
        self.level_out[priority] += 0 if state.is_healthy else number
        if not self.level_size[priority]:
            del self.level_size[priority]
        if state.admin_state is AdminState.READY:
            self._add(self.size, state, number)
            if not state.is_healthy:
                self._add(self.out, state, number)

    def _add(self, counter: Counter[Region | None], state: EndpointState, number: int) -> None:
        for key in (state.region, None):
            counter[key] += number
            if not counter[key]:
                del counter[key]  # else the counters of removed regions would be kept

    def can_spare(self) -> bool:
        """Whether the cluster may lose one more endpoint."""
        return self.out[None] < max_ejected(self.size[None])

    def region_can_spare(self, region: Region) -> bool:
        """Whether the region may lose one more endpoint."""
        return self.out[region] < max_ejected_in_region(self.size[region])

    def exceeds_limit(self, region: Region) -> bool:
        """Whether more are out than may be ejected, of all or of `region`."""
        out, size = self.out, self.size
        return out[None] > max_ejected(size[None]) or out[region] > max_ejected_in_region(size[region])

    def healthy_levels(self) -> dict[int, float]:
        return {priority: 1 - self.level_out[priority] / size for priority, size in self.level_size.items()}

    def healthy_share(self, region: Region | None) -> float:
        """Return the healthy share of a region, or of all under None; 1 if it is empty."""
        size = self.size[region]
        return 1 - self.out[region] / size if size else 1.0


class LastSuccesses:
    """Time of the last success of each region, with the resolution of ticks."""

    def __init__(self) -> None:
        self._totals: Counter[Region] = Counter()
        self._at: dict[Region, float] = {}

    def look(self, states: Iterable[EndpointState], now: float) -> None:
        """Compare the totals of successes with those of the last call."""
        totals: Counter[Region] = Counter()
        for state in states:
            totals[state.region] += state.successes
        for region, total in totals.items():
            if total != self._totals[region] or region not in self._at:
                self._at[region] = now
        self._totals = totals

    def is_lost(self, region: Region, now: float) -> bool:
        """Whether no request to the region has succeeded for LOST_AFTER seconds."""
        return now - self._at.get(region, now) >= LOST_AFTER
