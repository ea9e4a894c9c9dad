"""Present state of an endpoint as its answers show it: usual service time, pace, distance, recovery."""

from __future__ import annotations

from math import exp, inf, log, sqrt
from typing import Final

from policies.endpoint.state import EndpointState
from policies.stats.latency import TAU
from policies.steelyard.costs import Costs
from policies.steelyard.pace import FEW, DelayedSum, Pace
from policies.steelyard.recovery import Event, Phase, Recovery
from policies.steelyard.service_time import SPREAD, EndpointService, RegionService

SUSPECTED: Final = sqrt(SPREAD)
"""Logarithm of the slowdown above which an endpoint is suspected: slower than usual by as much as endpoints differ
anyway, a fifth, beyond chance."""

CAUGHT_UP: Final = 0.7
"""Logarithm of how many times slower than its region an endpoint is that starts anew when it answers as the others do.
Otherwise it would need many answers to correct its mean, and get one in ten seconds."""

FULL_STEP: Final = 0.05
"""Part by which the limit of an endpoint with a full queue falls at a rejection, and rises in a second."""

FULL_FOR_S: Final = 5.0
"""Seconds after a rejection for which failures cost nothing: most of them were rejections, and to charge them sends the
traffic to the next endpoint, whose queue then fills up."""

NORMAL: Final = Phase.NORMAL
SUSPECT: Final = Phase.SUSPECT
RECOVERING: Final = Phase.RECOVERING
UNMEASURED: Final = Phase.UNMEASURED


class Estimate(EndpointService):
    """What is known of one endpoint.

    `distance` is the round trip, `recovery` its phase, `held` the logarithm of how much slower a suspect is. `stuck`
    requests were overtaken: none waits for them. `counted` answers came since it last learned from one. `picked_at`:
    when a request was last sent there. `owner`: see `LeastCost`.
    """

    def __init__(self, region: RegionService) -> None:
        super().__init__(region)
        self.pace, self.recovery, self.costs = Pace(TAU), Recovery(), Costs()
        self.distance = self.held = self._waited = self._trip = 0.0
        self._shortest = self.full = inf
        self.picked_at = self.answered_at = self._full_at = -inf
        self.stuck = self.counted = 0
        self.owner: object = None
        self._reached, self._waits = 0.0, DelayedSum()

    def advance(self, state: EndpointState, waited: float, answers: int, now: float) -> None:
        """Count answers, and expect those that its requests, which have `waited` in sum, waited for."""
        reached = self._waits.before(waited, self.distance, now)
        pending = self._pending(reached, state.elsewhere, now)
        self._reached = reached
        self._waits.store(waited, self.distance, now)
        self._waited, self.stuck = waited, state.overtaken.stuck
        answers += self.counted
        self.counted = 0
        if self.recovery.phase is NORMAL and (pending or answers):
            self.region.pace.advance(pending, answers, now)
        self.pace.advance(pending, answers, now)

    def _pending(self, reached: float, elsewhere: int, now: float) -> float:
        """Return how many answers were to be expected since the last `advance`, at most those of TAU.

        Waiting times count up to a round trip ago, `reached`: no request sent later can have been answered."""
        elapsed, seconds = now - self.pace.at, self.seconds
        if elapsed <= 0.0 or not seconds:
            return 0.0
        awaiting = (reached - self._reached) / elapsed - self.stuck
        if awaiting <= 0.0:
            return 0.0
        total = awaiting + elsewhere if elsewhere else awaiting
        served = min(self.region.concurrency, total * seconds / (seconds + self.distance))
        return served * awaiting / (total * seconds) * min(elapsed, TAU)

    def silence(self, waited: float, awaiting: int, elsewhere: int, now: float) -> float:
        """Return the seconds since the last answer, if so long is not by chance, else 0.

        Waiting times count beyond a round trip each, as far as the endpoint could have served them."""
        awaiting -= self.stuck
        seconds = self.seconds
        if awaiting <= 0 or self.counted or not seconds:
            return 0.0
        silence, waiting = now - self.pace.at, float(awaiting)
        reached = waited - self._waited - self.stuck * silence - waiting * self.distance
        served = self.region.concurrency * silence * waiting / (waiting + elsewhere)
        is_silent = min(reached, served) > FEW * self.region.dispersion * seconds
        return silence if is_silent else 0.0

    def slowdown(self, waited: float, elsewhere: int, now: float, *, is_silent: bool) -> float:
        """Return the logarithm of how many times slower than usual it is at present; a silence counts as a pause."""
        pending = 0.0
        if not is_silent:
            pending = self._pending(self._waits.before(waited, self.distance, now), elsewhere, now)
        slower = self._slower(pending, now)
        return max(slower, self.held) if self.recovery.phase is SUSPECT else slower

    def _slower(self, pending: float, now: float) -> float:
        """Return the logarithm of how much slower its answers show it to be, and those of its region."""
        region = self.region
        prior = 0.0
        if self.recovery.phase is NORMAL:
            prior = max(0.0, region.pace.slowdown(pending, region.dispersion, 0.0, now))
        return self.pace.slowdown(pending, region.dispersion, prior, now)

    def learn_answer(self, latency: float, met: int, trip: float, *, was_silent: bool, now: float) -> None:
        """Learn from a success after `latency` seconds that was one of `met` in flight; the last handshake took
        `trip`."""
        recovery, latency = self.recovery, max(latency, 1e-5)
        if trip != self._trip or latency < self.distance:
            self._update_distance(trip, latency)
        self.answered_at = now
        if recovery.phase is SUSPECT:
            self._judge_suspect(latency, met, now)
            return
        if recovery.phase is not NORMAL:
            recovery.note(Event.ANSWERED, now)
        if recovery.phase is NORMAL and self._has_caught_up(latency, met):
            self.forget()
            self.pace.restart()
            recovery.note(Event.CAUGHT_UP, now, 1.0)
        self.learn(latency, self.distance, met, now)
        slower = self._slower(0.0, now)
        if slower > SUSPECTED:
            recovery.note(Event.SLOW, now)
            self.held = slower
            self.region.revert(self)
            if was_silent:
                recovery.trial_at = now
        elif recovery.phase is RECOVERING:
            recovery.answered(now)

    def _update_distance(self, trip: float, latency: float) -> None:
        """Update the distance from the last handshake, or the shortest one if a whole request took less than it."""
        if trip != self._trip:
            self._trip = self.distance = trip
            self._shortest = min(self._shortest, trip)
        if latency < self.distance:
            self.distance = self._shortest if self._shortest < latency else 0.0

    def _judge_suspect(self, latency: float, met: int, now: float) -> None:
        """Judge a suspect by an answer: as usual again, or slow, in the end for so long that this is usual."""
        recovery, region = self.recovery, self.region
        slower = self.work(latency, self.distance, met) - self.log_seconds
        usual = self.held * (0.5 * self.held - slower) / region.noise
        recovery.evidence = max(0.0, recovery.evidence + usual)
        if recovery.evidence > self.held:
            self.pace.restart()
            recovery.note(Event.ANSWERED, now, max(1.0, region.concurrency * exp(-self.held)))
            return
        if usual > 0.0:
            recovery.trial_at = now
            return
        self.held = max(self._slower(0.0, now), 0.5 * (self.held + slower - log(region.factor)))
        since = recovery.since
        recovery.note_time(now)
        if recovery.phase is not SUSPECT:
            self.slow_down(self.held)
        elif now - latency > since:  # sent before, it tells nothing new
            recovery.plan_trial(now)

    def _has_caught_up(self, latency: float, met: int) -> bool:
        """Whether the endpoint was much slower than its region and now answers as the others do."""
        region = self.region
        apart = self.log_seconds - region.mean
        if not self.samples or apart < max(CAUGHT_UP, 2.0 * sqrt(region.noise)):
            return False
        return self.work(latency, self.distance, met) < region.mean + 0.5 * apart

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
