"""Panic mode: when too few endpoints are healthy, health is ignored.

If most of a cluster looks unhealthy, either the detection is wrong or the few that are left will fail next, and both
get worse by leaving the many out. Panic is limited to where this argument holds:

- A region panics only under a policy that keeps sending its share there however few are left
  (`Policy.keeps_to_regions`). Other policies send the load elsewhere, and treat the cluster as one.
- A region without any healthy endpoint is lost, not in panic: its requests go to other regions.
- An unreachable endpoint stays out, as one more attempt helps no request; unless no other is left.
- With several priority levels there is panic only if all of them together cannot carry the load.
"""

from __future__ import annotations

from collections.abc import Sequence

from policies.endpoint.state import EndpointState
from policies.facts import AdminState, Region
from policies.health.ejection_limit import HealthCounts
from policies.health.priority_levels import OVERPROVISIONING, Loads, capacity_of, loads_of


class Panic:
    """Panic state of the cluster and of regions. `share` is the part that must be healthy (0: never panic). `loads` are
    those of the priority levels, whose capacity is `overprovisioning` times their healthy share.

    `times` counts how often panic began anywhere, `requests` how many were routed while it lasted.
    """

    def __init__(self, share: float = 0.5, overprovisioning: float = OVERPROVISIONING) -> None:
        self.share = share
        self.overprovisioning = overprovisioning
        self.keeps_to_regions = False  # the policy in force does
        self.loads: Loads = {}
        self.is_everywhere = False
        self.regions: frozenset[Region] = frozenset()
        self.times = 0
        self._requests = 0
        self._routed_before: int | None = None

    def __bool__(self) -> bool:
        return self.is_everywhere or bool(self.regions)

    def requests(self, routed: int) -> int:
        """Return how many of the `routed` requests so far were routed in panic."""
        return self._requests + (routed - self._routed_before if self._routed_before is not None else 0)

    def evaluate(self, counts: HealthCounts, routed: int) -> None:
        was_everywhere, were = self.is_everywhere, self.regions
        carries_all = False
        self.loads = {}
        if len(counts.level_size) > 1:
            healthy = counts.healthy_levels()
            carries_all = capacity_of(healthy, self.overprovisioning) >= 1.0
            self.loads = loads_of(healthy, self.overprovisioning)
        self.is_everywhere = not carries_all and counts.healthy_share(None) < self.share
        if self.is_everywhere:
            self.loads = {}
        has_regions = self.keeps_to_regions and not carries_all
        ill = (region for region in counts.size if region is not None) if has_regions else ()
        self.regions = frozenset(region for region in ill if 0 < counts.healthy_share(region) < self.share)
        self.times += len(self.regions - were) + (self.is_everywhere and not was_everywhere)
        self._requests = self.requests(routed)
        self._routed_before = routed if self else None

    def admit(self, states: Sequence[EndpointState]) -> None:
        """Update `is_eligible` of all endpoints: healthy, or admitted by the panic."""
        for state in states:
            is_admitted = self.is_everywhere or state.region in self.regions
            state.is_eligible = state.is_healthy or (
                is_admitted and is_wanted(state) and not is_unreachable(state)
            )
        if self.is_everywhere and not any(state.is_eligible for state in states):
            for state in states:
                state.is_eligible = is_wanted(state)


def is_wanted(state: EndpointState) -> bool:
    """Whether it would take requests if it were healthy."""
    return state.is_member and state.admin_state is AdminState.READY


def is_unreachable(state: EndpointState) -> bool:
    """Whether it is out because no connection to it can be made."""
    return not state.is_reachable or state.record.is_unreachable
