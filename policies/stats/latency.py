"""What an endpoint's latency will be, given what is on its way there.

Rule of this file: only what was measured counts, and it fades. Nobody states capacities.

A latency is a fixed part (round trip and bare service) and a wait. Four numbers per endpoint tell them
apart:

  floor   the least latency of the last 30–60 s: what it takes when nothing waits;
  mean    the latency of the last few seconds;
  ahead   how many requests were in flight before those were sent, on average;
  pace    the least latency/(ahead + 1): who found n in flight and took x seconds has seen n + 1 return in x,
          so the endpoint has really delivered (n + 1)/x, the delivery-rate sample of BBR (Cardwell et al.,
          ACM Queue 2016).

The wait that was seen, mean − floor, is taken to grow with what is in flight: × (n + 2)/(ahead + 2), see DOUBT. Far
more in flight than ever came back at once is priced as a queue before its wait is seen. The floor is not:
over a WAN most of what is in flight is on the wire, and a score that multiplies round trips by it drowns
the load in them.
"""

from __future__ import annotations

from math import exp

from policies.stats.load import FAINT, WindowedMinimum
from policies.stats.shared_latency import NOTHING, SharedLatency

TAU = 3.0
"""Seconds after which a sample counts 1/e. Several WAN round trips, so that a control loop on it is stable;
short enough that a slowed region is left within a few seconds."""

GRAIN = TAU / 1000
"""Seconds within which samples count alike: at thousands a second, fading each by itself changes nothing."""

FORGET_AFTER = 10.0
"""Seconds without a sample after which an endpoint counts as unmeasured. A slow one is tried again then, one
request at a time; never trying again is how Traefik starved a worker for good (#12306)."""

FLOOR_WINDOW = 30.0
"""Seconds of one bucket of the minimum. Any endpoint below saturation is idle now and then in 30 s."""

PACE_WINDOW = 10.0
"""Seconds of one bucket of the least pace, so that what was proven ten to twenty seconds ago still counts."""

GROWTH = 2.0
"""Times the proven rate that is taken on without a second thought: slow start, as TCP doubles per round trip.

A burst reaches the worker long before its first answer comes back. Simulated (regions 350–580 ms away, load
raised from 10 to 100 outstanding at once): mean latency of the next four seconds 595 ms without this guard,
505 with it; any growth from 1.5 to 3 does the same.
"""

SPARE = 4
"""Requests in flight that are no burst whatever was proven: an endpoint that was idle has proven nothing."""

DOUBT = 1.0
"""Requests ahead that are added on both sides when a wait is carried over to another load.

What is measured above the floor is not all wait: service varies, too, and that does not grow with load. Taken for wait,
it makes an endpoint that was lately asked when idle look as if it could bear nothing, so it is asked when idle again.
Simulated, six workers of one slot at 70 % load, two of them slower by half and one twice as fast: p99 138 ms without,
134 with 1, 136 with 2, 155 with 4.
"""

FAILURE_COST = 5.0
"""Seconds charged for a failure, at least. Fast errors attract traffic (the sinkhole) unless each is dearer
than any success is slow: 5 s is beyond what anyone calls a slow success; where 99 % take longer, that is
charged."""


class LatencyModel:
    """The four numbers of one endpoint, and its `failures`, faded like the rest.

    `ahead` is its in-flight count without the request itself, `last_ahead` that of the last success; `failed_at` is the
    instant of the last failure. What other processes of the unit have measured is counted in, and remembered in
    `_others`, so that it can be told apart.
    """

    __slots__ = (
        "_ahead",
        "_floor",
        "_latency",
        "_others",
        "_pace",
        "_successes",
        "charge",
        "failed_at",
        "failures",
        "last_ahead",
        "measured_at",
    )

    def __init__(self) -> None:
        self._floor = WindowedMinimum(FLOOR_WINDOW)
        self._pace = WindowedMinimum(PACE_WINDOW)
        self.charge = FAILURE_COST
        self.last_ahead = 0
        self.renew()

    def renew(self) -> None:
        """Forget how it was lately, good and bad: it counts as unmeasured. How far away it is has not changed.

        Successes go with the failures: beside those of a good time long past a new failure would weigh nothing.
        """
        self._successes = self.failures = self._latency = self._ahead = 0.0
        self._others: SharedLatency | None = None
        self.measured_at = self.failed_at = -FORGET_AFTER

    def record(self, latency: float, ahead: int, now: float) -> None:
        """Count in a success of `latency` seconds that was sent with `ahead` requests before it."""
        age = now - self.measured_at
        if age > GRAIN:
            self._fade(age)
            self.measured_at = now
        self.last_ahead = ahead
        self._successes += 1.0
        self._latency += latency
        self._ahead += ahead
        floor, pace = self._floor, self._pace
        if latency < floor.current or now >= floor.turns_at:
            floor.add(latency, now)
        per_request = latency / (ahead + 1)
        if per_request < pace.current or now >= pace.turns_at:
            pace.add(per_request, now)

    def _fade(self, age: float) -> None:
        """Let what is known count less, `age` seconds later."""
        keep = exp(-age / TAU) if age < FORGET_AFTER else 0.0
        self._successes *= keep
        self._latency *= keep
        self._ahead *= keep
        self.failures = self.failures * keep if self.failures > FAINT else 0.0
        if self._others is not None:
            self._others = self._others.faded(keep)

    def own(self) -> SharedLatency:
        """What was measured here, without what `pool` has added."""
        others = self._others or NOTHING
        successes = self._successes - others.successes
        failures = max(0.0, self.failures - others.failures)
        floor, pace = self._floor.own(), self._pace.own()
        if successes < FAINT:  # what a subtraction leaves of nothing
            return SharedLatency(0.0, 0.0, 0.0, failures, floor, pace, self.measured_at)
        latency, ahead = self._latency - others.latency, self._ahead - others.ahead
        return SharedLatency(successes, latency, max(0.0, ahead), failures, floor, pace, self.measured_at)

    def pool(self, others: SharedLatency) -> None:
        """Count in what others have measured, all of it, instead of what they had measured before."""
        age = others.at - self.measured_at
        if age > 0:
            self._fade(age)
            self.measured_at = others.at
        else:
            others = others.faded(exp(age / TAU))
        own = self.own()
        self._others = others
        self._successes = own.successes + others.successes
        self._latency = own.latency + others.latency
        self._ahead = own.ahead + others.ahead
        failures = own.failures + others.failures
        self.failures = failures if failures > FAINT else 0.0
        self._floor.elsewhere, self._pace.elsewhere = others.floor, others.pace

    def record_failure(self, charge: float, now: float) -> None:
        """Count in a failure that is to weigh like a latency of `charge` seconds."""
        self._fade(max(0.0, now - self.measured_at))
        self.failures += 1.0
        self.measured_at = self.failed_at = max(now, self.measured_at)
        self.charge = max(FAILURE_COST, charge)

    def is_measured(self, now: float) -> bool:
        """Whether anything is known that is not stale."""
        return now - self.measured_at < FORGET_AFTER

    @property
    def floor(self) -> float:
        """Seconds that an idle endpoint takes; `inf` before the first success."""
        return self._floor.read()

    @property
    def mean(self) -> float:
        """Seconds that a success took lately. Only if `has_succeeded`."""
        return self._latency / self._successes

    @property
    def has_succeeded(self) -> bool:
        """Whether a latency is known: failures alone tell none."""
        return self._successes > 0.0

    @property
    def failure_share(self) -> float:
        """Which part (0..1) of what ended lately has failed."""
        return self.failures / (self.failures + self._successes) if self.failures else 0.0

    def predict(self, in_flight: int, silence: float, wait_price: float) -> float:
        """Seconds to a success behind `in_flight` others, each second of wait counted `wait_price` times; what
        failures cost is not in it.

        Only if `has_succeeded`. `silence` is the least age of the oldest request that is still out: its
        latency will be no less, so a worker that hangs is seen before anything times out.
        """
        successes = self._successes
        mean = self._latency / successes
        floor = self._floor.read()
        wait = (mean if mean > silence else silence) - floor
        if wait > 0.0:
            met = self._ahead / successes + 1.0 + DOUBT
            wait = wait * (in_flight + 1.0 + DOUBT) / met
        else:
            wait = 0.0
        if in_flight > SPARE:
            unproven = (in_flight - SPARE) * self._pace.read() / GROWTH - floor
            wait = unproven if unproven > wait else wait
        return floor + wait_price * wait
