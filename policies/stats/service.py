"""Service time of an endpoint at present: its usual one, how much slower it is now, and whether it is suspected.

An endpoint that answers more slowly than it used to is suspected: its usual service time is kept, and what it takes at
present is held until an answer comes that is nearer to the former. It then gets one request at a time, two after the
next answer, and so on. One that was silent and answers again is tried at once: most pauses end so.
"""

from __future__ import annotations

from math import exp, inf, log, sqrt
from typing import Final

from policies.stats.delayed import DelayedSum
from policies.stats.progress import Progress
from policies.stats.resets import EndpointResets
from policies.stats.usual_service import LEAST_OFTEN, LEAST_SHARE, MIN_SAMPLES, RegionService, UsualService

GRAIN: Final = 0.003
"""Seconds for which estimates of an endpoint stay as they are: its answers are counted, but one is learned from."""

AGEING: Final = 0.05
"""How fast the estimate of an endpoint that is slower than its region becomes doubtful without answers: the standard
deviation of a random walk of its logarithm, per square root of a second. One that is slower by 30 % is tried again
after 27 s, for how else would it show that it is no longer. Simulated, 60 random scenarios, geometric mean of p99
relative to the best: 1.065 with 0, 1.045 with 0.05, 1.066 with 0.1."""

SUSPECTED_LOG_SLOWDOWN: Final = 0.2
"""Logarithm of the slowdown above which an endpoint is suspected: slower than usual by a fifth, beyond chance."""

RESTART_LOG_SLOWDOWN: Final = 0.7
"""Logarithm of how many times slower than its region an endpoint is that starts anew when it answers as the others do.
Otherwise it would need many answers to correct its mean, and get one in ten seconds."""

TRIALS_AFTER: Final = 1.0
"""Least seconds between trials of a suspected endpoint that gets no requests otherwise."""

TRIALS_AT_LEAST: Final = 10.0
"""Most seconds between two such trials; between these limits it is a fifth of the time since it became slow."""

NORMAL_AFTER: Final = 20.0
"""Seconds after which a suspected endpoint's latency becomes its usual one, or a recovered one has no more limit."""

SILENT_ANSWERS: Final = 8.0
"""Answers that were to be expected since the last one, as a multiple of `dispersion`, from which an endpoint is silent.
By chance that is one in 3,000 silences (Poisson).

Simulated, 600 random scenarios, geometric mean of p99: 0.9977 [0.9918, 1.0037]; 0.21 in `random-329058`, where all
requests go to the faster one of two endpoints when it pauses for 1.6 s."""

MIN_PERIOD_S: Final = 1.0
"""Least seconds of a period. The greatest number of requests in flight that an answered one met is kept for this period
and the last; see `sudden`."""

LIMIT_STEP: Final = 0.05
"""Part by which the limit of an endpoint with a full queue falls at a rejection, and rises in a second."""

MAX_LIMIT: Final = 64.0
"""Requests in flight from which a recovered endpoint has no limit any more."""


class EndpointService(UsualService):
    """Service time of one endpoint at present, and whether it is suspected.

    `progress` tells how much slower it is than usual. `slow_since`: when it became suspected, None if it is not; it is
    then `held` (a logarithm) slower, and gets a trial at `trial_at`. `failing_since`: its first failure after the last
    answer. `room` limits its requests in flight after its recovery. `rejected_at`: when its queue was last full. `cost`
    is that of the last comparison, and `wait` its expected wait. `answered_at`: its last answer that was learned from;
    `was_silent`: it was silent before that. `picked_at`: when a request was last sent there. `resets`: its broken
    connections. `stuck` requests were overtaken: no answer is expected to them, and none waits for them.
    """

    __slots__ = (
        "_met",
        "_met_before",
        "_met_since",
        "_normal_at",
        "_present",
        "_present_at",
        "_reached",
        "_rejected",
        "_round_trip",
        "_shortest",
        "_waited",
        "_waits",
        "answered_at",
        "cost",
        "failing_since",
        "held",
        "picked_at",
        "progress",
        "rejected_at",
        "resets",
        "room",
        "slow_since",
        "stuck",
        "trial_at",
        "wait",
        "was_silent",
    )

    def __init__(self, region: RegionService) -> None:
        super().__init__(region)
        self.progress = Progress()
        self.resets = EndpointResets()
        self.stuck = 0
        self.slow_since: float | None = None
        self.failing_since: float | None = None
        self.room = self.trial_at = self._rejected = self._shortest = inf
        self.picked_at = self._present_at = self.answered_at = self.rejected_at = -inf
        self.held = self._present = self._normal_at = self._reached = self._round_trip = self._waited = 0.0
        self._waits = DelayedSum()
        self.cost = self.wait = 0.0
        self.was_silent = False
        self._met = self._met_before = 0
        self._met_since = 0.0

    def is_busy(self, now: float) -> bool:
        """Whether an answer is only to be counted, because the last one was learned from within GRAIN seconds."""
        if now - self.answered_at >= GRAIN or self.room < inf:
            return False
        if self.slow_since is not None or self.failing_since is not None:
            return False
        self.progress.pending += 1
        return True

    def learn(self, latency: float, met: int, round_trip: float, now: float) -> None:
        """Learn from a success after `latency` seconds that was one of `met` requests in flight.

        `round_trip` is that of the last handshake in seconds, 0 if unknown."""
        region, latency = self.region, max(latency, 1e-5)
        self._update_distance(round_trip, latency)
        self.failing_since = None
        self.resets.in_a_row = 0
        self.answered_at, self._present_at = now, -inf
        self._count_met(met, now)
        if self.slow_since is not None:
            self._judge_slow(latency, met, now)
            return
        if self._has_caught_up(latency, met):
            self._start_anew(1.0, now)
        if region.is_due(now) or self.samples < MIN_SAMPLES or now - self.aged_at > LEAST_OFTEN:
            region.add(self, latency, met, now)
            region.settle(now)
            self.settle()
        slowdown = self.progress.slowdown(0.0, self.region.dispersion, now)
        if slowdown > SUSPECTED_LOG_SLOWDOWN:
            self.slow_since, self.held, self.room = now, slowdown, inf
            self.trial_at = now if self.was_silent else now + TRIALS_AFTER
            region.revert(self)
        elif self.room < inf:
            self.room += 1.0
            if now > self._normal_at or self.room > MAX_LIMIT:
                self.room = inf

    def sudden(self, in_flight: int, now: float) -> int:
        """Return by how many requests `in_flight`, without those that hang, and one more exceed a gradual rise: up to
        twice as many as any request met that was answered lately."""
        most = self._met if self._met > self._met_before else self._met_before
        if now - self.answered_at > 2.0 * MIN_PERIOD_S:
            most = 1
        return max(0, in_flight + 1 - 2 * most)

    def _count_met(self, met: int, now: float) -> None:
        """Count an answer to a request that was one of `met` in flight."""
        if now - self._met_since > MIN_PERIOD_S:
            self._met_before, self._met, self._met_since = self._met, 0, now
        if met > self._met:
            self._met = met

    def _update_distance(self, round_trip: float, latency: float) -> None:
        """Update the distance from the last handshake.

        If a whole request has taken less, what delayed the handshake is over, and the shortest one counts until the
        next."""
        if round_trip != self._round_trip:
            self._round_trip = self.distance = round_trip
            self._shortest = min(self._shortest, round_trip)
        if latency < self.distance:
            self.distance = self._shortest if self._shortest < latency else 0.0

    def _judge_slow(self, latency: float, met: int, now: float) -> None:
        """Judge a suspected endpoint by an answer."""
        since, region = self.slow_since, self.region
        if since is None:
            return
        slower = log(self._work(latency, met) / region.mean_factor) - self.log_seconds
        if slower < 0.5 * self.held:
            self._end_suspicion()
            self._limit(region.concurrency * exp(-self.held), now)
            return
        self.held = max(self.progress.slowdown(0.0, self.region.dispersion, now), 0.5 * (self.held + slower))
        if now - since > NORMAL_AFTER:
            self.slow_down(self.held)
            self._end_suspicion()
        elif now - latency > since:  # sent before, it tells nothing new
            self.plan_trial(now)

    def _work(self, latency: float, met: int) -> float:
        """Return the service time of a request that was one of `met` in flight, as far as it was not waiting."""
        alone = min(latency - self.distance, latency * self.region.concurrency / met)
        return max(LEAST_SHARE * latency, alone)

    def _has_caught_up(self, latency: float, met: int) -> bool:
        """Whether the endpoint was much slower than its region and now answers as the others do."""
        region = self.region
        apart = self.log_seconds - region.log_mean
        if not self.samples or self.room < inf or apart < max(RESTART_LOG_SLOWDOWN, 2.0 * sqrt(region.noise)):
            return False
        return log(self._work(latency, met)) < region.log_mean + 0.5 * apart

    def _start_anew(self, room: float, now: float) -> None:
        """Forget the endpoint's own service times, and let it have `room` requests in flight, more with each answer."""
        self.forget()
        self._limit(room, now)

    def _limit(self, room: float, now: float) -> None:
        """Limit the requests in flight of an endpoint that has recovered."""
        self.progress.restart()
        self.forget_pauses()
        self.room = max(1.0, room)
        self._normal_at = now + NORMAL_AFTER

    def _end_suspicion(self) -> None:
        self.slow_since, self.trial_at = None, inf

    def reject(self, in_flight: int, now: float) -> None:
        """Note that its queue was full with `in_flight` requests."""
        self._rejected, self.rejected_at = float(in_flight), now

    def limit(self, now: float) -> float:
        """Return the requests in flight at which its queue is probably full.

        It falls with a rejection and rises until the next (additive increase, multiplicative decrease).
        """
        if self._rejected == inf:
            return inf
        return self._rejected * (1.0 - LIMIT_STEP + LIMIT_STEP * (now - self.rejected_at))

    def fail(self, now: float) -> None:
        """Count a failure."""
        if self.failing_since is None:
            self.failing_since = now
        self.plan_trial(now)

    def plan_trial(self, now: float) -> None:
        """Plan the next trial of an endpoint that is slow or fails, the later the longer it has been so."""
        since = self.slow_since if self.failing_since is None else self.failing_since
        if since is not None:
            self.trial_at = now + min(TRIALS_AT_LEAST, max(TRIALS_AFTER, 0.2 * (now - since)))

    def settle(self) -> None:
        """Update the usual service time; the one at present is estimated anew."""
        super().settle()
        self._present_at = -inf

    def advance(
        self, waited: float, awaiting: int, stuck: int, elsewhere: int, answers: int, now: float
    ) -> None:
        """Count `answers`, and expect those that requests waited for: `waited` is the sum of their waiting times so far
        in seconds. `awaiting` have waited until now, `stuck` of them hang, and `elsewhere` others are in flight from
        other balancers."""
        self.was_silent = self._is_silent(waited, awaiting, elsewhere, now)
        reached = self._waits.before(waited, self.distance, now)
        rate = self._rate(self._awaiting(reached, now), elsewhere)
        self._waited, self._reached, self.stuck = waited, reached, stuck
        self.progress.advance(rate, answers, now)
        self._waits.store(waited, self.distance, now)

    def _awaiting(self, reached: float, now: float) -> float:
        """Return how many requests could have been answered, in the mean since the last `advance`: `reached` is the sum
        of their waiting times up to a round trip ago, because none sent later can have been answered."""
        elapsed = now - self.progress.at
        return max(0.0, (reached - self._reached) / elapsed - self.stuck) if elapsed > 0.0 else 0.0

    def _is_silent(self, waited: float, awaiting: int, elsewhere: int, now: float) -> bool:
        """Whether `awaiting` requests have had no answer for so long that it is not by chance. Their waiting times
        count beyond a round trip each, as far as the endpoint could have served them."""
        awaiting -= self.stuck
        seconds = self.seconds * self.region.mean_factor
        if awaiting <= 0 or self.progress.pending or not seconds:
            return False
        silence = now - self.progress.at
        reached = waited - self._waited - self.stuck * silence - awaiting * self.distance
        served = self.region.concurrency * silence * awaiting / (awaiting + elsewhere)
        return min(reached, served) > SILENT_ANSWERS * self.region.dispersion * seconds

    def _rate(self, awaiting: float, elsewhere: int) -> float:
        """Return the answers per second that `awaiting` requests of this balancer may expect."""
        region = self.region
        seconds, total = self.seconds * region.mean_factor, awaiting + elsewhere
        if not awaiting or not seconds:
            return 0.0
        served = min(region.concurrency, total * seconds / (seconds + self.distance))
        return served * awaiting / (total * seconds)

    def present_seconds(self, waited: float, awaiting: int, elsewhere: int, now: float) -> float:
        """Return the expected service time at present. Without answers it ages towards the region's mean.

        `waited` is the sum of the requests' waiting times so far in seconds."""
        if now - self._present_at < GRAIN:
            return self._present
        reached = self._waits.before(waited, self.distance, now)
        rate = self._rate(self._awaiting(reached, now), elsewhere)
        change = self.progress.slowdown(rate, self.region.dispersion, now)
        if self.slow_since is not None:
            change = max(change, self.held)
        else:
            excess, age = self.log_seconds - self.region.log_mean, now - self.answered_at
            if excess > 0.0 and age > 0.0:
                change -= min(excess, AGEING * sqrt(age))
        seconds = self.seconds * self.region.mean_factor
        if change:
            seconds *= exp(change)
        if self._is_silent(waited, awaiting, elsewhere, now):
            seconds = max(seconds, self.seconds * self.region.mean_factor + now - self.progress.at)
        self._present, self._present_at = seconds, now
        return seconds
