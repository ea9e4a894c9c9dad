"""Request hedging: when a late request is sent to a second endpoint, and to which.

The delay is learned, not configured: a request is late if it is slower than nineteen in twenty of its region (Dean and
Barroso, "The Tail at Scale", CACM 2013). Hedges are extra load, so they are limited to a share of the requests and stop
where all endpoints are slow, not one.

The delay is a streaming quantile without samples: for an endpoint where a share `quantile` of the requests is in time
the delay is stable, because each late one raises it by as much as the others together lower it (Ma, Muthukrishnan and
Sandler, "Frugal Streaming", 2013, on a scale of ratios). It does not matter that a hedged request is not measured to
its end: that it was late is all that is needed. A region's delay is the lower median of its endpoints' delays, so one
that hangs does not change it.

Requests are hedged sooner at an endpoint that has become silent: it owes more answers than chance explains, as in a
garbage collection pause.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, inf
from statistics import median_low
from typing import Final

from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.facts import Region
from policies.stats.load import Ewma

STEP: Final = 0.1
"""How far one request moves a delay, in logarithms: twenty late ones multiply it by seven, and it varies by a few per
cent where nothing changes."""

START: Final = 1.0
"""Delay in seconds of a region without measurements: some hundred requests bring it down."""

BURST: Final = 10.0
"""Hedges that may be saved up: enough for a pause of one endpoint, too few to load all of them."""

NEAR_DELAY_RATIO: Final = 1.5
"""A region counts as near if its delay is at most this multiple of the delay of the late endpoint's region."""

SLOW_SHARE: Final = 0.5
"""Share of late requests above which more than one endpoint is slow."""

CHANCE_LATE: Final = 4.0
"""Number of requests up to which a share of late ones is not significant."""

SLOW_TAU: Final = 1.0
"""Seconds over which the share of late requests is averaged."""

SILENT_ANSWERS: Final = 5.0
"""Answers that an endpoint owes (`EndpointState.overdue`) above which it counts as silent: with exponential latencies
that happens by chance once in 150 answers. Simulated, pauses of 200 ms every 2 s, service times of 20 ms, at most 5 %
hedges: p99 208 ms without, 196 with 4, 189 with 5."""

AHEAD_STEP: Final = 0.01
"""Weight of one request in the mean number ahead of requests."""

MAX_MORE_AHEAD: Final = 1.0
"""Requests ahead of a hedge beyond the usual number, at most. A hedge that would wait longer than usual delays others
more than it helps. Simulated, pauses of 200 ms every 2 s, load of 50 and 75 %: p99 171 and 316 ms without this limit,
192 and 271 with none more than usual, 169 and 268 with one, 164 and 279 with two."""

TICK: Final = 0.005
"""Seconds per bucket of late requests: half of the smallest hedging delay."""

SEARCH_EVERY: Final = 0.01
"""Seconds between two searches for silent endpoints."""

RENEW_AFTER: Final = 0.1
"""Seconds between two updates of a region's median."""

FORGET_AFTER: Final = 60.0
"""Seconds without requests after which an endpoint no longer counts in the median."""


class HedgeDelays:
    """Hedge delays of a region's endpoints: the `quantile` of the latency of each, in seconds.

    `ahead` is the mean number of requests that are in flight at an endpoint when another is sent there.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, tuple[float, float]] = {}  # delay, and when it was learned
        self._renewed_at = -inf
        self.usual = START
        self.ahead = 0.0

    def of(self, endpoint_id: str) -> float:
        """Return the endpoint's delay; for an unknown one the region's."""
        known = self._by_id.get(endpoint_id)
        return self.usual if known is None else known[0]

    def learn(self, endpoint_id: str, wait: float, now: float) -> None:
        """Set the endpoint's delay, and update the region's median when due."""
        self._by_id[endpoint_id] = wait, now
        if now - self._renewed_at >= RENEW_AFTER:
            self._renew(now)

    def _renew(self, now: float) -> None:
        self._by_id = {one: known for one, known in self._by_id.items() if now - known[1] <= FORGET_AFTER}
        self.usual = median_low(wait for wait, _ in self._by_id.values())
        self._renewed_at = now


class Hedging:
    """Hedging budget and delays: delays of `least` to `most` seconds, hedges for up to `share` of the requests and
    `BURST`.

    `denied` counts hedges that the budget did not allow, `withheld` those not sent because all endpoints are slow.
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
        self._by_region: dict[Region, HedgeDelays] = {}
        self.denied = self.withheld = 0

    def apply(self, other: Hedging) -> None:
        """Apply the rules of `other` from now on; learned delays stay."""
        self._raise, self._lower, self._share = other._raise, other._lower, other._share
        self._least, self._most = other._least, other._most

    @property
    def usual(self) -> dict[Region, float]:
        """Hedge delay in seconds by region."""
        return {region: waits.usual for region, waits in self._by_region.items()}

    def wait(self, state: EndpointState) -> float:
        """Return the hedge delay in seconds of a request just sent to `state`, and credit the budget."""
        if self._tokens < BURST:
            self._tokens += self._share
        waits = self._by_region.get(state.region)
        if waits is None:
            return START
        waits.ahead += AHEAD_STEP * (state.in_flight - 1 - waits.ahead)
        return waits.usual

    def _usual(self, region: Region) -> float:
        waits = self._by_region.get(region)
        return waits.usual if waits is not None else START

    def record(self, state: EndpointState, latency: float | None, now: float) -> None:
        """Record the seconds to the first byte of a request; None if it exceeded the hedge delay."""
        waits = self._by_region.get(state.region)
        if waits is None:
            waits = self._by_region[state.region] = HedgeDelays()
        wait = waits.of(state.id)
        wait *= self._raise if latency is None or latency > wait else self._lower
        waits.learn(state.id, min(max(wait, self._least), self._most), now)
        self._late.add(latency is None, now)

    def is_slow(self, now: float) -> bool:
        """Whether so many requests are late that another endpoint would be no faster."""
        share = self._late.read(now)
        return share is not None and share > SLOW_SHARE and self._late.weight(now) > CHANCE_LATE

    @property
    def has_budget(self) -> bool:
        return self._tokens >= 1.0

    def silent(self, states: Iterable[EndpointState], now: float) -> list[EndpointState]:
        """Return the silent endpoints; none where most are silent, since then the fault is elsewhere."""
        busy = [state for state in states if state.awaiting]
        silent = [state for state in busy if state.overdue(now) > SILENT_ANSWERS]
        return silent if len(silent) <= max(1, len(busy) // 2) else []

    def take(self, now: float) -> bool:
        """Whether a late request may be hedged; if so, charge the budget."""
        if self.is_slow(now):
            self.withheld += 1
            return False
        if not self.has_budget:
            self.denied += 1
            return False
        self._tokens -= 1.0
        return True

    def others(self, late: EndpointState, available: Available) -> list[EndpointState]:
        """Return the candidates for a hedge of a request to `late`.

        Endpoints of other regions that are as near, because what slows an endpoint often slows its whole region; else
        others of its region; else all others. None that has more in flight than usual."""
        near = NEAR_DELAY_RATIO * self._usual(late.region)
        regions = available.by_region.items()
        similar = [
            state
            for region, members in regions
            if region != late.region and self._usual(region) <= near
            for state in members
        ]
        neighbours = [state for state in available.by_region.get(late.region, ()) if state is not late]
        others = similar or neighbours or [state for state in available if state is not late]
        return [state for state in others if self._is_free(state)]

    def _is_free(self, state: EndpointState) -> bool:
        waits = self._by_region.get(state.region)
        return waits is None or state.in_flight <= waits.ahead + MAX_MORE_AHEAD
