"""Panic: when too few are fit, what is known of them is ignored.

Rule of this file: if most of a pool looks ill, either the looking is wrong or the few that are left will be next, and
both are made worse by leaving the many out. That is the argument, so it reaches no further than it holds:

- A region panics only under a policy that keeps sending its share there however few are left
  (`Policy.keeps_to_regions`). Other policies take the load elsewhere, and to them the pool is one.
- A region in which nobody is fit is lost, not in panic: its requests go to other regions.
- Who cannot be reached stays out. That no connection comes about is a fact, and no request is helped by one more try;
  unless nobody else is left, and then any try is better than none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from policies.routing.facts import AdminState, Region

if TYPE_CHECKING:
    from policies.health.ejection_limit import Census
    from policies.routing.endpoint_state import EndpointState


class Panic:
    """Where health is ignored now. `share` is the part that must be fit (0: never panic).

    `times` counts how often panic began anywhere, `requests` how many were routed while it lasted.
    """

    def __init__(self, share: float = 0.5) -> None:
        self.share = share
        self.is_everywhere = False
        self.regions: frozenset[Region] = frozenset()
        self.times = 0
        self._requests = 0
        self._routed_before: int | None = None

    def __bool__(self) -> bool:
        return self.is_everywhere or bool(self.regions)

    def requests(self, routed: int) -> int:
        """How many were routed in panic, of the `routed` so far."""
        return self._requests + (routed - self._routed_before if self._routed_before is not None else 0)

    def judge(self, census: Census, keeps_to_regions: bool, routed: int) -> None:
        """See from the census whether there is panic."""
        was_everywhere, were = self.is_everywhere, self.regions
        self.is_everywhere = census.fit_share(None) < self.share
        ill = (region for region in census.size if region is not None) if keeps_to_regions else ()
        self.regions = frozenset(region for region in ill if 0 < census.fit_share(region) < self.share)
        self.times += len(self.regions - were) + (self.is_everywhere and not was_everywhere)
        self._count(routed)

    def _count(self, routed: int) -> None:
        self._requests = self.requests(routed)
        self._routed_before = routed if self else None

    def admit(self, states: Sequence[EndpointState]) -> None:
        """Say of each who is fit, on its own merits or because of the panic."""
        for state in states:
            is_admitted = self.is_everywhere or state.region in self.regions
            state.is_fit = state.is_sound or (is_admitted and is_wanted(state) and not is_unreachable(state))
        if self.is_everywhere and not any(state.is_fit for state in states):
            for state in states:
                state.is_fit = is_wanted(state)


def is_wanted(state: EndpointState) -> bool:
    """Whether it would take requests if it were well."""
    return state.is_member and state.standing is AdminState.UP


def is_unreachable(state: EndpointState) -> bool:
    """Whether it is out because no connection to it can be made."""
    return not state.is_reachable or state.record.is_unreachable
