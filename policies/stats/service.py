"""Service time and concurrency of endpoints, estimated from latencies and requests in flight.

A latency y of a request that was one of n in flight is a distance d, which handshakes tell, and a service time x, alone
or shared with the requests ahead. An endpoint that serves c requests at a time gives

    x = y − d            if it did not wait,
    x = y · c/n          if it waited behind others; the lesser of the two is taken.

All endpoints of a region are assumed to have the same c: for each possible c, the model predicts max(d + s, n · s/c),
and the c with the least variance of the logarithm of latency/prediction is chosen (maximum likelihood for lognormal
service times). Work and waiting are thereby told apart: a queue does not look like slow service.

Service times are averaged as logarithms, so that one cheap or dear request among many changes little. An endpoint's own
mean is drawn towards its region's by as much as it may differ by chance (empirical Bayes; Efron and Morris 1973): with
few samples the region's mean counts, with many its own.

Time beyond an outlier's limit is a pause, as of a garbage collection: it does not change the service time, and is
averaged by itself.

An endpoint that answers more slowly than it used to is suspected: its long-run mean is kept, and what it takes at
present is held until an answer comes that is nearer to the former. It then gets one request at a time, two after the
next answer, and so on.
"""

from __future__ import annotations

from math import exp, inf, log, sqrt
from typing import Final

from policies.stats.latency import FORGET_AFTER
from policies.stats.progress import Progress

CONCURRENCIES: Final = tuple(
    float(c) for c in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024)
)
"""Possible numbers of requests that an endpoint serves at a time."""

TAU: Final = 30.0
"""Seconds after which a sample counts 1/e in long-run means. 60 s makes no difference in simulations."""

MOST_PER_SECOND: Final = 200.0
"""Samples per second that a region learns from, to bound the cost: thousands change nothing."""

GRAIN: Final = 0.003
"""Seconds for which estimates of an endpoint stay as they are: its answers are counted, but one is learned from."""

LEAST_OFTEN: Final = 1.0
"""Seconds after which an endpoint's next answer is learned from in any case."""

BETTER: Final = 4.0
"""Log likelihood by which another concurrency must be better, so that the choice does not alternate."""

AS_GOOD: Final = 2.0
"""Log likelihood within which the least concurrency is preferred."""

BY_CHANCE: Final = 4.0
"""Squared difference in standard errors from its region up to which an endpoint's own mean may be chance. Of FEW
samples the squared error is taken as twice as large, since their variance is not well known."""

FEW: Final = 8.0
"""Samples of a region below which its concurrency is not judged."""

MODEL_ERROR: Final = 0.0025
"""Variance of the logarithm of an endpoint's mean that samples do not reduce, as the model is not exact: 5 %. Otherwise
a wrong concurrency, for example, makes endpoints that had different numbers in flight seem to differ."""

LEAST_SHARE: Final = 0.02
"""Least share of a latency that is taken as service, where distance explains more."""

MOST_DISPERSION: Final = 10.0
"""Greatest squared coefficient of variation of service times that is believed."""

SPREAD: Final = 0.04
"""Assumed variance of the logarithms of endpoints' service times, where a region has too few to tell."""

STALE: Final = 0.5
"""Samples that all measurements count at most after a pause of FORGET_AFTER seconds, if that is unusual: one answer
decides."""

STALE_GAPS: Final = 3.0
"""Multiple of the mean time between samples that an unusual pause exceeds. Where a balancer seldom uses an endpoint,
long pauses are usual, and its speed would never be learned."""

OUTLIER: Final = 0.5
"""Difference in logarithms, or three standard deviations if more, that one answer counts at most in a long-run mean: a
pause is not service. What lasts shows in `progress`."""

PAUSES: Final = 4.0
"""Outliers of an endpoint from which they count as pauses that will come again. Fewer may be the beginning of a lasting
slowdown, which `progress` shows by then."""

AGEING: Final = 0.05
"""How fast the estimate of an endpoint that is slower than its region becomes doubtful without answers: the standard
deviation of a random walk of its logarithm, per square root of a second. One that is slower by 30 % is tried again
after 27 s, for how else would it show that it is no longer. Simulated, 60 random scenarios, geometric mean of p99
relative to the best: 1.065 with 0, 1.045 with 0.05, 1.066 with 0.1."""

SUSPECTED: Final = 0.2
"""Logarithm of the slowdown above which an endpoint is suspected: 1.5 times slower than usual."""

APART: Final = 0.7
"""Logarithm of how many times slower than its region an endpoint is that starts anew when it answers as the others do.
Otherwise it would need many answers to correct its mean, and get one in ten seconds."""

TRIALS_AFTER: Final = 1.0
"""Least seconds between trials of a suspected endpoint that gets no requests otherwise."""

TRIALS_AT_LEAST: Final = 10.0
"""Most seconds between two such trials; between these limits it is a fifth of the time since it became slow."""

NORMAL_AFTER: Final = 20.0
"""Seconds after which a suspected endpoint's latency becomes its usual one, or a recovered one has no more limit."""

LOWER: Final = 0.05
"""Part by which the limit of an endpoint with a full queue falls at a rejection, and rises in a second."""

LIMITED: Final = 64.0
"""Requests in flight from which a recovered endpoint has no limit any more."""


class RegionService:
    """Concurrency and mean service time of the endpoints of one region.

    `log_mean` is the mean logarithm of service times, `noise` the variance of latencies about their prediction.
    e^`log_mean` times `mean_factor` is the arithmetic mean, `dispersion` the squared coefficient of variation, or 1 if
    that is less. `spread` is the variance among the endpoints, `choice` the
    position of `concurrency` in CONCURRENCIES. Sums decay; each has an element per possible concurrency.
    """

    __slots__ = (
        "_at",
        "_count",
        "_credit",
        "_credited_at",
        "_errors",
        "_excesses",
        "_logs",
        "_paused",
        "_settled_at",
        "_squares",
        "_work_squares",
        "_works",
        "choice",
        "concurrency",
        "dispersion",
        "log_mean",
        "mean_factor",
        "members",
        "noise",
        "samples",
        "spread",
    )

    def __init__(self) -> None:
        self.members: list[EndpointService] = []
        self.choice, self.concurrency = 0, CONCURRENCIES[0]
        self.samples = self.log_mean = self._at = self._credited_at = 0.0
        self._count = self._excesses = self._works = self._work_squares = self._paused = 0.0
        self._credit = FEW
        self.noise, self.spread = 1.0, SPREAD
        self.mean_factor = self.dispersion = 1.0
        self._settled_at = -inf
        self._logs = [0.0] * len(CONCURRENCIES)
        self._errors = [0.0] * len(CONCURRENCIES)
        self._squares = [0.0] * len(CONCURRENCIES)

    def is_due(self, now: float) -> bool:
        """Whether to learn from one more sample now: at most MOST_PER_SECOND."""
        self._credit = min(FEW, self._credit + max(0.0, now - self._credited_at) * MOST_PER_SECOND)
        self._credited_at = now
        if self._credit < 1.0:
            return False
        self._credit -= 1.0
        return True

    def add(self, member: EndpointService, latency: float, met: int, now: float) -> None:
        """Learn from an answer of `member` after `latency` seconds, as one of `met` requests in flight."""
        elapsed = max(0.0, now - self._at)
        self._at += elapsed
        keep, known, before = exp(-elapsed / TAU), member.age(now), self.samples
        samples = self.samples = before * keep + 1.0
        logs, errors, squares, own = self._logs, self._errors, self._squares, member.logs
        distance, weight, log_latency = member.distance, member.weight, log(latency)
        beyond, least = max(LEAST_SHARE * latency, latency - distance), LEAST_SHARE * latency
        outlier = max(OUTLIER, 3.0 * sqrt(self.noise)) if known > FEW else inf
        excess = paused = 0.0
        for i in range(len(CONCURRENCIES)):
            concurrency = CONCURRENCIES[i]
            work = log(max(least, min(beyond, latency * concurrency / met)))
            relative = 0.0
            if known > 0.0 and before > 0.0:
                usual = own[i] / known
                relative = weight * (usual - logs[i] / before)
                if work > usual + outlier:
                    if i == self.choice:
                        paused = exp(work) - exp(usual + outlier)
                    work = usual + outlier
            own[i] += work
            total = logs[i] = logs[i] * keep + work - relative
            service = exp(total / samples + relative)
            error = log_latency - log(max(distance + service, met * service / concurrency))
            errors[i] = errors[i] * keep + error
            squares[i] = squares[i] * keep + error * error
            if i == self.choice:
                excess = work - relative
        self._paused = self._paused * keep + paused
        if paused:
            member.pauses += 1.0
            member.paused += paused
        member.samples = known + 1.0
        if samples >= FEW:
            self._choose()
        self.log_mean = logs[self.choice] / samples
        work = exp(excess)
        count = self._count = self._count * keep + 1.0
        self._excesses = self._excesses * keep + excess
        self._works = self._works * keep + work
        self._work_squares = self._work_squares * keep + work * work
        mean = self._works / count
        self.mean_factor = mean / exp(self._excesses / count)
        variation = self._work_squares / count / (mean * mean) - 1.0
        self.dispersion = max(1.0, min(MOST_DISPERSION, variation))

    def pause_of(self, member: EndpointService) -> float:
        """Return the mean seconds of a member's pauses, beyond those of the region."""
        if member.pauses < PAUSES:
            return 0.0
        return max(0.0, member.paused / member.samples - self._paused / self.samples)

    def _variance(self, i: int) -> float:
        mean = self._errors[i] / self.samples
        return max(1e-4, self._squares[i] / self.samples - mean * mean)

    def _choose(self) -> None:
        """Choose the least concurrency that explains the latencies about as well as the best."""
        half, chosen = self.samples / 2.0, self.choice
        misfits = [half * log(self._variance(i)) for i in range(len(CONCURRENCIES))]
        best = min(misfits)
        i = 0
        while misfits[i] > best + AS_GOOD:
            i += 1
        if i != chosen and misfits[chosen] > best + BETTER:
            self.choice, self.concurrency = i, CONCURRENCIES[i]
            self.log_mean = self._logs[i] / self.samples
            self._count = self._excesses = self._works = self._work_squares = 0.0
            for member in self.members:
                member.settle()
        self.noise = self._variance(self.choice)

    def settle(self, now: float) -> None:
        """Estimate once a second how much the endpoints' service times differ beyond chance, and so each of them."""
        if now - self._settled_at <= LEAST_OFTEN:
            return
        self._settled_at = now
        beyond, count = 0.0, 0
        for member in self.members:
            if member.samples > 2.0:
                apart = member.logs[self.choice] / member.samples - self.log_mean
                beyond += apart * apart - self.noise / member.samples - MODEL_ERROR
                count += 1
        self.spread = max(0.0, beyond / count) if count > 1 else SPREAD
        for member in self.members:
            member.settle()


class EndpointService:
    """Service time of one endpoint: in the long run, at present, and whether it is suspected.

    `seconds` is its usual service time (geometric mean), `distance` the round trip. `progress` tells how much slower
    it is at present. `slow_since`: when it became suspected, None if it is not; it is then `held` (a logarithm) slower,
    and gets a trial at `trial_at`. `room` limits its requests in flight after its recovery. `picked_at`: when a request
    was last sent there. `pause`: mean seconds of a pause per request, beyond the region's; `pauses` is their number and
    `paused` their sum. `weight` (0..1) is how far its own mean counts beside its region's; `logs` has its sum of
    logarithms per possible concurrency.
    """

    __slots__ = (
        "_answered_at",
        "_at",
        "_lagged",
        "_log_seconds",
        "_normal_at",
        "_present",
        "_present_at",
        "_rejected",
        "_waited",
        "distance",
        "failing_since",
        "held",
        "logs",
        "pause",
        "paused",
        "pauses",
        "picked_at",
        "progress",
        "region",
        "rejected_at",
        "room",
        "samples",
        "seconds",
        "slow_since",
        "trial_at",
        "weight",
    )

    def __init__(self, region: RegionService) -> None:
        self.region = region
        self.progress = Progress()
        self.slow_since: float | None = None
        self.failing_since: float | None = None
        self.room = self.trial_at = self._rejected = inf
        self.picked_at = self._present_at = self._answered_at = self.rejected_at = -inf
        self._present = 0.0
        self.logs = [0.0] * len(CONCURRENCIES)
        self.samples = self.weight = self.held = self.distance = self.seconds = 0.0
        self.pauses = self.paused = self.pause = self._lagged = 0.0
        self._at = self._log_seconds = self._normal_at = self._waited = 0.0
        region.members.append(self)

    def is_busy(self, now: float) -> bool:
        """Whether an answer is only to be counted, because the last one was learned from within GRAIN seconds."""
        if now - self._answered_at >= GRAIN or self.room < inf:
            return False
        if self.slow_since is not None or self.failing_since is not None:
            return False
        self.progress.pending += 1
        return True

    def age(self, now: float) -> float:
        """Decay the long-run sums until `now`; return the number of samples that are left."""
        age = max(0.0, now - self._at)
        keep = exp(-age / TAU)
        self.pauses *= keep
        self.paused *= keep
        if age > FORGET_AFTER and age * self.samples > STALE_GAPS * TAU:
            keep = min(keep, STALE / self.samples)
        self._at += age
        self.samples *= keep
        self.logs = [total * keep for total in self.logs]
        return self.samples

    def learn(self, latency: float, met: int, distance: float, now: float) -> None:
        """Learn from a success after `latency` seconds that was one of `met` requests in flight."""
        region, latency = self.region, max(latency, 1e-5)
        self.distance = distance
        self.failing_since = None
        self._answered_at, self._present_at = now, -inf
        if self.slow_since is not None:
            self._judge_slow(latency, met, now)
            return
        if self._has_caught_up(latency, met):
            self._start_anew(1.0, now)
        if region.is_due(now) or self.samples < FEW or now - self._at > LEAST_OFTEN:
            region.add(self, latency, met, now)
            region.settle(now)
            self.settle()
        slowdown = self.progress.slowdown(0.0, self.region.dispersion, now)
        if slowdown > SUSPECTED:
            self.slow_since, self.held, self.room = now, slowdown, inf
            self.trial_at = now + TRIALS_AFTER
        elif self.room < inf:
            self.room += 1.0
            if now > self._normal_at or self.room > LIMITED:
                self.room = inf

    def _judge_slow(self, latency: float, met: int, now: float) -> None:
        """Judge a suspected endpoint by an answer."""
        since, region = self.slow_since, self.region
        if since is None:
            return
        slower = log(self._work(latency, met) / region.mean_factor) - self._log_seconds
        if slower < 0.5 * self.held:
            self._end_suspicion()
            self._limit(region.concurrency * exp(-self.held), now)
            return
        self.held = max(self.progress.slowdown(0.0, self.region.dispersion, now), 0.5 * (self.held + slower))
        if now - since > NORMAL_AFTER:
            keep = min(1.0, FEW / self.samples)
            self.logs = [keep * (total + self.samples * self.held) for total in self.logs]
            self.samples *= keep
            self.settle()
            self._end_suspicion()
        else:
            self.plan_trial(now)

    def _work(self, latency: float, met: int) -> float:
        """Return the service time of a request that was one of `met` in flight, as far as it was not waiting."""
        alone = min(latency - self.distance, latency * self.region.concurrency / met)
        return max(LEAST_SHARE * latency, alone)

    def _has_caught_up(self, latency: float, met: int) -> bool:
        """Whether the endpoint was much slower than its region and now answers as the others do."""
        region = self.region
        apart = self._log_seconds - region.log_mean
        if not self.samples or self.room < inf or apart < max(APART, 2.0 * sqrt(region.noise)):
            return False
        return log(self._work(latency, met)) < region.log_mean + 0.5 * apart

    def _start_anew(self, room: float, now: float) -> None:
        """Forget the endpoint's own service times, and let it have `room` requests in flight, more with each answer."""
        self.samples = 0.0
        self.logs = [0.0] * len(CONCURRENCIES)
        self._limit(room, now)

    def _limit(self, room: float, now: float) -> None:
        """Limit the requests in flight of an endpoint that has recovered."""
        self.progress.restart()
        self.pauses = self.paused = self.pause = 0.0
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
        return self._rejected * (1.0 - LOWER + LOWER * (now - self.rejected_at))

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
        """Update the usual service time from the endpoint's own mean and its region's."""
        region = self.region
        if not self.samples:
            return
        by_chance = region.noise / self.samples * (1.0 + FEW / self.samples) + MODEL_ERROR
        apart = self.logs[region.choice] / self.samples - region.log_mean
        weight, squared = region.spread / (region.spread + by_chance), apart * apart / by_chance
        if squared > BY_CHANCE:
            weight = max(weight, 1.0 - BY_CHANCE / squared)
        self.weight = weight
        self._log_seconds = region.log_mean + weight * apart
        self.seconds = exp(self._log_seconds)
        self.pause = region.pause_of(self)
        self._present_at = -inf

    def advance(self, waited: float, elsewhere: int, answers: int, now: float) -> None:
        """Count `answers`, and expect those that requests waited for: `waited` is the sum of their waiting times so far
        in seconds. `elsewhere` others are in flight from other balancers."""
        elapsed, awaiting = now - self.progress.at, 0.0
        if elapsed > 0.0:
            mean = (waited - self._waited) / elapsed
            awaiting = self._reached(mean, elapsed)
            if self.distance:
                self._lagged = mean + (self._lagged - mean) * exp(-elapsed / self.distance)
        self._waited = waited
        self.progress.advance(self._rate(awaiting, elsewhere), answers, now)

    def _reached(self, awaiting: float, elapsed: float) -> float:
        """Return how many of `awaiting` requests could have been answered, in the mean of the last `elapsed` seconds.

        No answer comes before a round trip, so their number follows `awaiting` with a time constant of `distance`.
        """
        distance = self.distance
        if not distance or elapsed <= 0.0:
            return awaiting
        return awaiting + (self._lagged - awaiting) * (1.0 - exp(-elapsed / distance)) * distance / elapsed

    def _rate(self, awaiting: float, elsewhere: int) -> float:
        """Return the answers per second that `awaiting` requests of this balancer may expect."""
        region = self.region
        seconds, total = self.seconds * region.mean_factor, awaiting + elsewhere
        if not awaiting or not seconds:
            return 0.0
        served = min(region.concurrency, total * seconds / (seconds + self.distance))
        return served * awaiting / (total * seconds)

    def present_seconds(self, awaiting: int, elsewhere: int, now: float) -> float:
        """Return the expected service time at present. Without answers it ages towards the region's mean."""
        if now - self._present_at < GRAIN:
            return self._present
        rate = self._rate(self._reached(awaiting, now - self.progress.at), elsewhere)
        change = self.progress.slowdown(rate, self.region.dispersion, now)
        if self.slow_since is not None:
            change = max(change, self.held)
        else:
            excess, age = self._log_seconds - self.region.log_mean, now - self._answered_at
            if excess > 0.0 and age > 0.0:
                change -= min(excess, AGEING * sqrt(age))
        seconds = self.seconds * self.region.mean_factor
        if change:
            seconds *= exp(change)
        self._present, self._present_at = seconds, now
        return seconds
