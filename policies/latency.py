"""What an endpoint's latency will be, given what is on its way there.

Rule of this file: only what was measured counts, and it fades. Nobody states capacities.

A latency is a fixed part (round trip and bare service) and a wait. Three numbers per endpoint tell them
apart:

  floor   the least latency of the last 30–60 s: what it takes when nothing waits;
  mean    the latency of the last few seconds;
  ahead   how many requests were in flight before those were sent, on average.

The wait that was seen, mean − floor, is taken to grow with what is in flight: × (n + 1)/(ahead + 1). The
floor is not: over a WAN most of what is in flight is on the wire, and a score that multiplies round trips
by it drowns the load in them.
"""

from __future__ import annotations

from math import exp

from policies.load import WindowedMinimum

TAU = 3.0
"""Seconds after which a sample counts 1/e. Several WAN round trips, so that a control loop on it is stable;
short enough that a slowed region is left within a few seconds."""

FORGET_AFTER = 10.0
"""Seconds without a sample after which an endpoint counts as unmeasured. A slow one is tried again then, one
request at a time; never trying again is how Traefik starved a worker for good (#12306)."""

FLOOR_WINDOW = 30.0
"""Seconds of one bucket of the minimum. Any endpoint below saturation is idle now and then in 30 s."""

FAILURE_COST = 5.0
"""Seconds charged for a failure, at least. Fast errors attract traffic (the sinkhole) unless each is dearer
than any success is slow; 5 s is what Finagle and Linkerd charge."""


class LatencyModel:
    """Floor, mean and failures of one endpoint. `ahead` is its in-flight count without the request itself."""

    __slots__ = ("_ahead", "_failures", "_floor", "_latency", "_successes", "charge", "measured_at")

    def __init__(self) -> None:
        self._successes = self._failures = self._latency = self._ahead = 0.0
        self._floor = WindowedMinimum(FLOOR_WINDOW)
        self.measured_at = -FORGET_AFTER
        self.charge = FAILURE_COST

    def record(self, latency: float, ahead: int, now: float) -> None:
        """Count in a success of `latency` seconds that was sent with `ahead` requests before it."""
        age = now - self.measured_at
        if age > 0.0:
            keep = exp(-age / TAU) if age < FORGET_AFTER else 0.0
            self._successes = self._successes * keep + 1.0
            self._latency = self._latency * keep + latency
            self._ahead = self._ahead * keep + ahead
            self._failures *= keep
            self.measured_at = now
        else:
            self._successes += 1.0
            self._latency += latency
            self._ahead += ahead
        self._floor.add(latency, now)

    def record_failure(self, charge: float, now: float) -> None:
        """Count in a failure that is to weigh like a latency of `charge` seconds."""
        keep = exp(-max(0.0, now - self.measured_at) / TAU) if self.is_measured(now) else 0.0
        self._successes *= keep
        self._latency *= keep
        self._ahead *= keep
        self._failures = self._failures * keep + 1.0
        self.measured_at = max(now, self.measured_at)
        self.charge = max(FAILURE_COST, charge)

    def is_measured(self, now: float) -> bool:
        """Whether anything is known that is not stale."""
        return now - self.measured_at < FORGET_AFTER

    @property
    def floor(self) -> float:
        """Seconds that an idle endpoint takes; `inf` before the first success."""
        return self._floor.read()

    @property
    def has_succeeded(self) -> bool:
        """Whether a latency is known: failures alone tell none."""
        return self._successes > 0.0

    @property
    def failure_cost(self) -> float:
        """Seconds that a request sent now is expected to lose by failing."""
        if not self._failures:
            return 0.0
        return self.charge * self._failures / (self._failures + self._successes)

    def predict(self, in_flight: int, silence: float, wait_price: float) -> float:
        """Seconds to a success behind `in_flight` others, each second of wait counted `wait_price` times.

        Only if `has_succeeded`. `silence` is the least age of the oldest request that is still out: its
        latency will be no less, so a worker that hangs is seen before anything times out.
        """
        successes = self._successes
        mean = self._latency / successes
        floor = self._floor.read()
        wait = (mean if mean > silence else silence) - floor
        if wait > 0.0:
            floor += wait_price * wait * (in_flight + 1) * successes / (self._ahead + successes)
        return floor + self.failure_cost if self._failures else floor
