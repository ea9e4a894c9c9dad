"""Present state of an endpoint as its answers show it: usual service time, pace, distance, a full queue."""

from __future__ import annotations

from math import inf
from typing import Final

from policies.endpoint.state import EndpointState
from policies.stats.latency import FORGET_AFTER
from policies.steelyard.costs import Costs
from policies.steelyard.pace import FEW, TAU_S, Pace
from policies.steelyard.service_time import EndpointService, RegionService

CLEARLY_SLOW: Final = 0.7
"""Logarithm of the slowdown, about log 2, from which nothing is learned of the usual service. An endpoint with fewer
than FEW answers learns anyway: its first may have been an odd one."""

FULL_STEP: Final = 0.05
"""Part by which the limit of an endpoint with a full queue falls at a rejection, and rises in a second."""

FULL_FOR_S: Final = 5.0
"""Seconds after a rejection for which failures cost nothing: most of them were rejections, and to charge them sends the
traffic to the next endpoint, whose queue then fills up."""


class Estimate(EndpointService):
    """What is known of one endpoint.

    `distance` is the round trip, `slower` the logarithm of how much slower than usual it was when weighed last. `stuck`
    requests were overtaken: none waits for them. `counted` answers came since it last learned from one. `picked_at`:
    when a request was last sent there. `has_failed`: and has not answered since. `owner`: see `LeastCost`.
    """

    def __init__(self, region: RegionService) -> None:
        super().__init__(region)
        self.pace, self.costs = Pace(), Costs()
        self.distance = self.slower = self._waited = self._trip = 0.0
        self._shortest = self.full = inf
        self.picked_at = self.answered_at = self._full_at = -inf
        self.stuck = self.counted = 0
        self.has_failed = False
        self.owner: object = None

    def advance(self, state: EndpointState, waited: float, answers: int, now: float) -> None:
        """Count answers, and expect those that its requests, which have `waited` in sum, waited for."""
        self.pace.advance(self._pending(waited, state.elsewhere, now), answers + self.counted, now)
        self._waited, self.stuck, self.counted = waited, state.overtaken.stuck, 0

    def slowdown(self, waited: float, elsewhere: int, now: float) -> float:
        """Return the logarithm of how many times slower than usual it is at present, beyond chance."""
        self.slower = self.pace.slowdown(self._pending(waited, elsewhere, now), now)
        return self.slower

    def _pending(self, waited: float, elsewhere: int, now: float) -> float:
        """Return how many answers were to be expected since the last `advance`, at most those of TAU_S."""
        elapsed, seconds = now - self.pace.at, self.seconds
        if elapsed <= 0.0 or not seconds:
            return 0.0
        awaiting = (waited - self._waited) / elapsed - self.stuck
        if awaiting <= 0.0:
            return 0.0
        total = awaiting + elsewhere if elsewhere else awaiting
        served = min(self.region.concurrency, total * seconds / (seconds + self.distance))
        return served * awaiting / (total * seconds) * min(elapsed, TAU_S)

    def answer(self, latency: float, met: int, trip: float, now: float) -> None:
        """Learn from a success after `latency` seconds that was one of `met` in flight; the last handshake took
        `trip`."""
        latency = max(latency, 1e-5)
        if trip != self._trip:
            self._trip = self.distance = trip
            self._shortest = min(self._shortest, trip)
        if latency < self.distance:  # a whole request took less than the last handshake
            self.distance = self._shortest if self._shortest < latency else 0.0
        self.answered_at, self.has_failed = now, False
        if self.samples < FEW or self.pace.slowdown(0.0, now) < CLEARLY_SLOW:
            self.learn(latency, self.distance, met, now)

    def decline(self, now: float) -> None:
        """Note an answer of which nothing is learned; what was learned of others long ago is forgotten."""
        if now - self.answered_at > FORGET_AFTER:
            self.samples = 0.0

    def reject(self, in_flight: int, now: float) -> None:
        """Note that its queue was full with `in_flight` requests."""
        self.full, self._full_at = float(in_flight), now

    def has_room(self, in_flight: int, now: float) -> bool:
        """Whether one more request is probably not rejected: its limit falls with a rejection and rises until the next
        (additive increase, multiplicative decrease)."""
        return in_flight < self.full * (1.0 - FULL_STEP + FULL_STEP * (now - self._full_at))

    def is_full(self, now: float) -> bool:
        """Whether its queue was full lately."""
        return now - self._full_at <= FULL_FOR_S
