"""When a second endpoint is asked because the first is late, and which one.

Rule of this file: nobody states how long a request takes; late is who is slower than nineteen in twenty at his place
(Dean and Barroso, "The Tail at Scale", CACM 2013). Hedges are extra load, so they are bounded by a share of the
requests and stop where not one endpoint is slow but all are.

What is usual is learned as a quantile without samples: for an endpoint where a share `quantile` of the requests is in
time the wait stays as it is, because each late one raises it by as much as the others together lower it (Ma,
Muthukrishnan and Sandler, "Frugal Streaming", 2013, on a scale of ratios). That a hedged request is not waited for to
its end costs nothing: it was late, and more is not asked. A region's wait is the lower median of its endpoints' waits,
so one that hangs is not what is usual.
"""

from __future__ import annotations

from math import exp, inf
from statistics import median_low
from typing import Final

from policies.routing.available import Available
from policies.routing.endpoint_state import EndpointState
from policies.routing.facts import Region
from policies.stats.load import Ewma

STEP: Final = 0.1
"""How far one request moves a wait, in logarithms: twenty late ones multiply it by seven, and it varies by a few per
cent where nothing changes."""

START: Final = 1.0
"""Seconds that count as usual where nobody has been measured: some hundred requests bring it down."""

BURST: Final = 10.0
"""Hedges that may be saved up: enough for a pause of one endpoint, too few to be felt by all."""

SIMILAR: Final = 1.5
"""A region is as good as the own one if its wait is no longer than this many of it."""

SLOW: Final = 0.5
"""Share of late requests above which it is not one endpoint that is slow."""

FEW: Final = 4.0
"""Requests that say nothing of a share."""

SLOW_TAU: Final = 1.0
"""Seconds over which lateness is looked at."""

RENEW_AFTER: Final = 0.1
"""Seconds between two looks at all endpoints of a region."""

FORGET_AFTER: Final = 60.0
"""Seconds after which an endpoint without requests has no part in what is usual."""


class Waits:
    """A region's endpoints: how long a request to each takes at most, `quantile` of the time. Seconds."""

    __slots__ = ("_by_id", "_judged_at", "_renewed_at", "usual")

    def __init__(self) -> None:
        self._by_id: dict[str, float] = {}
        self._judged_at: dict[str, float] = {}
        self._renewed_at = -inf
        self.usual = START

    def of(self, endpoint_id: str) -> float:
        """Its wait; of one that is new, what is usual."""
        return self._by_id.get(endpoint_id, self.usual)

    def learn(self, endpoint_id: str, wait: float, now: float) -> None:
        """Its wait is another."""
        self._by_id[endpoint_id] = wait
        self._judged_at[endpoint_id] = now
        if now - self._renewed_at >= RENEW_AFTER:
            self._renew(now)

    def _renew(self, now: float) -> None:
        for endpoint_id in [one for one, at in self._judged_at.items() if now - at > FORGET_AFTER]:
            del self._by_id[endpoint_id], self._judged_at[endpoint_id]
        self.usual = median_low(self._by_id.values())
        self._renewed_at = now


class Hedging:
    """Waits between `least` and `most` seconds; hedges up to `share` of the requests and `BURST`.

    `denied` counts what the budget did not allow, `withheld` what was not sent because all are slow.
    """

    def __init__(
        self, quantile: float = 0.95, share: float = 0.05, least: float = 0.01, most: float = 10.0
    ) -> None:
        self._raise = exp(STEP * quantile)
        self._lower = exp(-STEP * (1.0 - quantile))
        self._share = share
        self._least = least
        self._most = most
        self._tokens = 1.0
        self._late = Ewma(SLOW_TAU)
        self._by_region: dict[Region, Waits] = {}
        self.denied = self.withheld = 0

    def follow(self, other: Hedging) -> None:
        """Go by the rules of `other` from now on; what was learned stays."""
        self._raise, self._lower, self._share = other._raise, other._lower, other._share
        self._least, self._most = other._least, other._most

    @property
    def usual(self) -> dict[Region, float]:
        """Seconds after which a request is late, by region."""
        return {region: waits.usual for region, waits in self._by_region.items()}

    def wait(self, region: Region) -> float:
        """Seconds after which a request that is sent to `region` now will be late. It counts for the budget."""
        if self._tokens < BURST:
            self._tokens += self._share
        return self._usual(region)

    def _usual(self, region: Region) -> float:
        waits = self._by_region.get(region)
        return waits.usual if waits is not None else START

    def judge(self, state: EndpointState, latency: float | None, now: float) -> None:
        """A request has taken `latency` seconds to its first byte; None: longer than it was given."""
        waits = self._by_region.get(state.region)
        if waits is None:
            waits = self._by_region[state.region] = Waits()
        wait = waits.of(state.id)
        wait *= self._raise if latency is None or latency > wait else self._lower
        waits.learn(state.id, min(max(wait, self._least), self._most), now)
        self._late.add(latency is None, now)

    def is_slow(self, now: float) -> bool:
        """Whether so many are late that another endpoint would be no quicker."""
        share = self._late.read(now)
        return share is not None and share > SLOW and self._late.weight(now) > FEW

    def take(self, now: float) -> bool:
        """Whether a late request may be hedged, and then it counts as hedged."""
        if self.is_slow(now):
            self.withheld += 1
            return False
        if self._tokens < 1.0:
            self.denied += 1
            return False
        self._tokens -= 1.0
        return True

    def others(self, late: EndpointState, available: Available) -> list[EndpointState]:
        """Who may be asked beside `late`: whole other regions that are as near, for what slows an endpoint often slows
        its neighbours; else its neighbours; else anybody else."""
        near = SIMILAR * self._usual(late.region)
        regions = available.by_region.items()
        similar = [
            state
            for region, members in regions
            if region != late.region and self._usual(region) <= near
            for state in members
        ]
        neighbours = [state for state in available.by_region.get(late.region, ()) if state is not late]
        return similar or neighbours or [state for state in available if state is not late]
