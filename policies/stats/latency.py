"""Latency model of an endpoint: predicts the latency of a request from the requests in flight.

Only measurements count, and they decay; no capacity is configured.

A latency is a fixed part (round trip and bare service) and a wait. Four numbers per endpoint separate them:

  floor   the least latency of the last 30–60 s: what it takes when nothing waits;
  mean    the latency of the last few seconds;
  ahead   how many requests were in flight before those were sent, on average;
  pace    the least latency/(ahead + 1): a request that found n in flight and took x seconds has seen n + 1 return in
          x, so the endpoint has really delivered (n + 1)/x, the delivery-rate sample of BBR (Cardwell et al.,
          ACM Queue 2016).

The measured wait, mean − floor, is assumed to grow with what is in flight: × (n + 2)/(ahead + 2), see DOUBT. Far more
in flight than ever came back at once is priced as a queue before its wait is measured. The floor is not scaled: over a
WAN most of what is in flight is on the wire, and in a score that multiplies round trips by it the load is lost.
"""

from __future__ import annotations

from math import exp
from typing import Final

from policies.stats.load import NEGLIGIBLE_WEIGHT, WindowedMinimum
from policies.stats.shared_latency import NOTHING, SharedLatency

TAU: Final = 3.0
"""Seconds after which a sample counts 1/e. Several WAN round trips, so that a control loop on it is stable; short
enough that traffic leaves a slowed region within a few seconds."""

GRAIN: Final = TAU / 1000
"""Seconds within which samples count alike: at thousands a second, a decay per sample changes nothing."""

FORGET_AFTER: Final = 10.0
"""Seconds without a sample after which an endpoint counts as unmeasured. A slow one is tried again then, one request at
a time; never trying again is how Traefik starved a worker for good (#12306)."""

FLOOR_WINDOW: Final = 30.0
"""Seconds of one bucket of the minimum. Any endpoint below saturation is idle at some time in 30 s."""

PACE_WINDOW: Final = 10.0
"""Seconds of one bucket of the least pace, so that a rate proven ten to twenty seconds ago still counts."""

GROWTH: Final = 2.0
"""Multiple of the proven rate that an endpoint may be sent without a penalty: slow start, as TCP doubles per round
trip.

A burst reaches the worker long before its first response comes back. Simulated (regions 350–580 ms away, load raised
from 10 to 100 outstanding at once): mean latency of the next four seconds 595 ms without this guard, 505 with it; any
growth from 1.5 to 3 does the same.
"""

SPARE_REQUESTS: Final = 4
"""Requests in flight that are never a burst: an endpoint that was idle has proven no rate."""

DOUBT: Final = 1.0
"""Requests ahead that are added on both sides when a wait is scaled to another load.

Latency above the floor is not all wait: service time varies, too, and that does not grow with load. If it were taken
for wait, an endpoint whose recent requests found it idle would seem to bear no load, and would again be picked only
when idle. Simulated, six workers of one slot at 70 % load, two of them slower by half and one twice as fast: p99 138 ms
without, 134 with 1, 136 with 2, 155 with 4.
"""

FAILURE_COST: Final = 5.0
"""Least cost of a failure in seconds. Fast errors attract traffic (the sinkhole) unless each costs more than any
success: 5 s is longer than any usual slow success; where the 99th percentile is higher, that is charged."""


class LatencyModel:
    """The four numbers of one endpoint, and its decayed `successes` and `failures`.

    Without `successes` no latency is known.

    `ahead` is its in-flight count without the request itself, `last_ahead` that of the last success; `failed_at` is the
    time of the last failure. Measurements of sibling processes are included, and kept in `_others` so that they can be
    subtracted again.
    """

    def __init__(self) -> None:
        self._floor = WindowedMinimum(FLOOR_WINDOW)
        self._pace = WindowedMinimum(PACE_WINDOW)
        self.charge = FAILURE_COST
        self.last_ahead = 0
        self.renew()

    def renew(self) -> None:
        """Forget recent latencies and failures: it counts as unmeasured.

        The floor stays, as the distance has not changed.

        Successes are forgotten with the failures: otherwise those of a good period long past would outweigh a new
        failure.
        """
        self.successes = self.failures = self._latency = self._ahead = 0.0
        self._others: SharedLatency | None = None
        self.measured_at = self.failed_at = -FORGET_AFTER

    def record(self, latency: float, ahead: int, now: float) -> None:
        """Record a success of `latency` seconds that was sent behind `ahead` requests."""
        age = now - self.measured_at
        if age > GRAIN:
            self._fade(age)
            self.measured_at = now
        self.last_ahead = ahead
        self.successes += 1.0
        self._latency += latency
        self._ahead += ahead
        floor, pace = self._floor, self._pace
        if latency < floor.current or now >= floor.turns_at:
            floor.add(latency, now)
        per_request = latency / (ahead + 1)
        if per_request < pace.current or now >= pace.turns_at:
            pace.add(per_request, now)

    def _fade(self, age: float) -> None:
        """Decay all sums by `age` seconds."""
        keep = exp(-age / TAU) if age < FORGET_AFTER else 0.0
        self.successes *= keep
        self._latency *= keep
        self._ahead *= keep
        self.failures = self.failures * keep if self.failures > NEGLIGIBLE_WEIGHT else 0.0
        if self._others is not None:
            self._others = self._others.faded(keep)

    def own(self) -> SharedLatency:
        """Return what this process measured, without what `pool` has added."""
        others = self._others or NOTHING
        successes = self.successes - others.successes
        failures = max(0.0, self.failures - others.failures)
        floor, pace = self._floor.own(), self._pace.own()
        if successes < NEGLIGIBLE_WEIGHT:  # rounding error of a subtraction that should give zero
            return SharedLatency(0.0, 0.0, 0.0, failures, floor, pace, self.measured_at)
        latency, ahead = self._latency - others.latency, self._ahead - others.ahead
        return SharedLatency(successes, latency, max(0.0, ahead), failures, floor, pace, self.measured_at)

    def pool(self, others: SharedLatency) -> None:
        """Include the measurements of sibling processes, in place of those of the previous call."""
        age = others.at - self.measured_at
        if age > 0:
            self._fade(age)
            self.measured_at = others.at
        else:
            others = others.faded(exp(age / TAU))
        own = self.own()
        self._others = others
        self.successes = own.successes + others.successes
        self._latency = own.latency + others.latency
        self._ahead = own.ahead + others.ahead
        failures = own.failures + others.failures
        self.failures = failures if failures > NEGLIGIBLE_WEIGHT else 0.0
        self._floor.include(others.floor)
        self._pace.include(others.pace)

    def record_failure(self, charge: float, now: float) -> None:
        """Record a failure that costs as much as a latency of `charge` seconds."""
        self._fade(max(0.0, now - self.measured_at))
        self.failures += 1.0
        self.measured_at = self.failed_at = max(now, self.measured_at)
        self.charge = max(FAILURE_COST, charge)

    @property
    def floor(self) -> float:
        """Latency of the idle endpoint in seconds; `inf` before the first success."""
        return self._floor.least

    @property
    def mean(self) -> float:
        """Mean latency of recent successes in seconds. Only if there are `successes`."""
        return self._latency / self.successes

    @property
    def failure_share(self) -> float:
        """Share (0..1) of failures among recent requests."""
        return self.failures / (self.failures + self.successes) if self.failures else 0.0

    def predict(self, in_flight: int, silence: float, wait_price: float) -> float:
        """Return the expected seconds to a success behind `in_flight` others, without the cost of failures.

        Each second of wait counts `wait_price` times. `silence` is a lower bound of the age of the oldest request still
        out: its latency will be no less, so a worker that hangs is detected before any timeout. Needs `successes`.
        """
        successes = self.successes
        mean = self._latency / successes
        floor = self._floor.least
        wait = (mean if mean > silence else silence) - floor
        if wait > 0.0:
            met = self._ahead / successes + 1.0 + DOUBT
            wait = wait * (in_flight + 1.0 + DOUBT) / met
        else:
            wait = 0.0
        if in_flight > SPARE_REQUESTS:
            unproven = (in_flight - SPARE_REQUESTS) * self._pace.least / GROWTH - floor
            wait = unproven if unproven > wait else wait
        return floor + wait_price * wait
