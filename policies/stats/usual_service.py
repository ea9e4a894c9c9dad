"""Usual service time and concurrency of endpoints, estimated from latencies and requests in flight.

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
"""

from __future__ import annotations

from math import exp, inf, log, sqrt
from typing import Final

from policies.stats.latency import FORGET_AFTER
from policies.stats.region_sums import RegionSums

CONCURRENCIES: Final = tuple(
    float(c) for c in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024)
)
"""Possible numbers of requests that an endpoint serves at a time."""

TAU: Final = 30.0
"""Seconds after which a sample counts 1/e in long-run means. 60 s makes no difference in simulations."""

MOST_PER_SECOND: Final = 200.0
"""Samples per second that a region learns from, to bound the cost: thousands change nothing."""

LEAST_OFTEN: Final = 1.0
"""Seconds after which an endpoint's next answer is learned from in any case."""

BETTER_FIT: Final = 4.0
"""Log likelihood by which another concurrency must be better, so that the choice does not alternate."""

MAX_MISFIT: Final = 2.0
"""Log likelihood within which the least concurrency is preferred."""

SAME_FIT: Final = 0.01
"""Log likelihood within which the next concurrency explains the latencies as well as the chosen one: no endpoint had
more in flight."""

LOW_NOISE: Final = 0.01
"""Variance of the logarithm of latencies up to which a wait would show at once."""

WAIT_PROBABILITY: Final = 0.5
"""Probability that a request beyond the concurrency waits, where a greater one explains precise latencies as well.

Simulated, geometric mean of p99 relative to 1: 1.000 [0.996, 1.005] in 399 random scenarios; of services of one length
behind several balancers, three are 0.51, 0.71 and 0.73, none is above 1.4. With 0.25, of 107 such scenarios three are
above 1.1, one of them 2.1; without the bound of LOW_NOISE 600 scenarios are 1.006."""

CHANCE_DEVIATION: Final = 4.0
"""Squared difference in standard errors from its region up to which an endpoint's own mean may be chance. Of
MIN_SAMPLES samples the squared error is taken as twice as large, since their variance is not well known."""

MIN_SAMPLES: Final = 8.0
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

STALE_SAMPLES: Final = 0.5
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

MATURE_SAMPLES: Final = 200.0
"""Samples from which a region returns to an earlier estimate when one of its endpoints becomes slow."""


class RegionService:
    """Concurrency and mean service time of the endpoints of one region.

    `log_mean` is the mean logarithm of service times, `noise` the variance of latencies about their prediction.
    e^`log_mean` times `mean_factor` is the arithmetic mean, `dispersion` the squared coefficient of variation, or 1 if
    that is less. `deviation` is the coefficient of variation, or 1 if that is more: of very unequal services the
    largest decide the p99 wherever they are. `spread` is the variance among the endpoints, `certainty` the probability
    that a request beyond `concurrency` waits. All are estimated from `sums`.
    """

    __slots__ = (
        "_at",
        "_before",
        "_credit",
        "_credited_at",
        "_last",
        "_paused",
        "_settled_at",
        "certainty",
        "concurrency",
        "deviation",
        "dispersion",
        "log_mean",
        "mean_factor",
        "members",
        "noise",
        "spread",
        "sums",
    )

    def __init__(self) -> None:
        self.members: list[UsualService] = []
        self.concurrency = CONCURRENCIES[0]
        self.log_mean = self._at = self._credited_at = self._paused = 0.0
        self._credit = MIN_SAMPLES
        self.noise, self.spread = 1.0, SPREAD
        self.certainty = 1.0
        self.mean_factor = self.dispersion = 1.0
        self.deviation = 0.0
        self._settled_at = -inf
        self.sums = RegionSums(len(CONCURRENCIES))
        self._before: RegionSums | None = None
        self._last: RegionSums | None = None

    def is_due(self, now: float) -> bool:
        """Whether to learn from one more sample now: at most MOST_PER_SECOND."""
        self._credit = min(MIN_SAMPLES, self._credit + max(0.0, now - self._credited_at) * MOST_PER_SECOND)
        self._credited_at = now
        if self._credit < 1.0:
            return False
        self._credit -= 1.0
        return True

    def add(self, member: UsualService, latency: float, met: int, now: float) -> None:
        """Learn from an answer of `member` after `latency` seconds, as one of `met` requests in flight."""
        elapsed = max(0.0, now - self._at)
        self._at += elapsed
        sums = self.sums
        keep, known, before = exp(-elapsed / TAU), member.age(now), sums.samples
        samples = sums.samples = before * keep + 1.0
        logs, errors, squares, own = sums.logs, sums.errors, sums.squares, member.logs
        distance, weight, log_latency = member.distance, member.weight, log(latency)
        beyond, least = max(LEAST_SHARE * latency, latency - distance), LEAST_SHARE * latency
        outlier = max(OUTLIER, 3.0 * sqrt(self.noise)) if known > MIN_SAMPLES else inf
        excess = paused = 0.0
        for i in range(len(CONCURRENCIES)):
            concurrency = CONCURRENCIES[i]
            work = log(max(least, min(beyond, latency * concurrency / met)))
            relative = 0.0
            if known > 0.0 and before > 0.0:
                usual = own[i] / known
                relative = weight * (usual - logs[i] / before)
                if work > usual + outlier:
                    if i == sums.choice:
                        paused = exp(work) - exp(usual + outlier)
                    work = usual + outlier
            own[i] += work
            total = logs[i] = logs[i] * keep + work - relative
            service = exp(total / samples + relative)
            error = log_latency - log(max(distance + service, met * service / concurrency))
            errors[i] = errors[i] * keep + error
            squares[i] = squares[i] * keep + error * error
            if i == sums.choice:
                excess = work - relative
        self._paused = self._paused * keep + paused
        if paused:
            member.pauses += 1.0
            member.paused += paused
        member.samples = known + 1.0
        if samples >= MIN_SAMPLES:
            self._choose()
        self.log_mean = logs[sums.choice] / samples
        work = exp(excess)
        count = sums.count = sums.count * keep + 1.0
        sums.excesses = sums.excesses * keep + excess
        sums.works = sums.works * keep + work
        sums.work_squares = sums.work_squares * keep + work * work
        mean = sums.works / count
        self.mean_factor = mean / exp(sums.excesses / count)
        variation = sums.work_squares / count / (mean * mean) - 1.0
        self.dispersion = max(1.0, min(MOST_DISPERSION, variation))
        self.deviation = sqrt(max(0.0, min(1.0, variation)))

    def pause_of(self, member: UsualService) -> float:
        """Return the mean seconds of a member's pauses, beyond those of the region."""
        if member.pauses < PAUSES:
            return 0.0
        return max(0.0, member.paused / member.samples - self._paused / self.sums.samples)

    def _keep(self) -> None:
        """Keep the sums of region and members, and those that were kept before, for `revert`."""
        self._before, self._last = self._last, self.sums.copy()
        for member in self.members:
            member.keep()

    def revert(self, slow: UsualService) -> None:
        """Return to the estimate of one or two seconds ago: the member `slow` has become slow since, and answers that
        take longer while more are in flight look like a low concurrency. The policy would then send it so few requests
        that nothing could show the error."""
        slow.revert()
        if self._before is None or self._before.samples < MATURE_SAMPLES:
            return
        self._last, sums = self._before, self._before.copy()
        self.sums = sums
        self.concurrency, self.log_mean = CONCURRENCIES[sums.choice], sums.logs[sums.choice] / sums.samples
        for member in self.members:
            member.settle()

    def _choose(self) -> None:
        """Choose the least concurrency that explains the latencies about as well as the best."""
        sums = self.sums
        half, chosen = sums.samples / 2.0, sums.choice
        misfits = [half * log(sums.variance(i)) for i in range(len(CONCURRENCIES))]
        best = min(misfits)
        i = 0
        while misfits[i] > best + MAX_MISFIT:
            i += 1
        if i != chosen and misfits[chosen] > best + BETTER_FIT:
            sums.choose(i)
            self.concurrency, self.log_mean = CONCURRENCIES[i], sums.logs[i] / sums.samples
            for member in self.members:
                member.settle()
        self.noise, self.certainty = sums.variance(sums.choice), 1.0
        more = sums.choice + 1
        if self.noise < LOW_NOISE and more < len(misfits) and misfits[more] < misfits[sums.choice] + SAME_FIT:
            self.certainty = WAIT_PROBABILITY

    def settle(self, now: float) -> None:
        """Estimate once a second how much the endpoints' service times differ beyond chance, and so each of them."""
        if now - self._settled_at <= LEAST_OFTEN:
            return
        self._settled_at = now
        self._keep()
        beyond, count = 0.0, 0
        for member in self.members:
            if member.samples > 2.0:
                apart = member.logs[self.sums.choice] / member.samples - self.log_mean
                beyond += apart * apart - self.noise / member.samples - MODEL_ERROR
                count += 1
        self.spread = max(0.0, beyond / count) if count > 1 else SPREAD
        for member in self.members:
            member.settle()


class UsualService:
    """Usual service time of one endpoint, as a member of its region.

    `seconds` is its geometric mean, `log_seconds` the logarithm of that, `distance` the round trip. `samples` is how
    many answers count, `logs` their sum of logarithms per possible concurrency, both decayed until `aged_at`. `weight`
    (0..1) is how far its own mean counts beside its region's. `pause`: mean seconds of a pause per request, beyond the
    region's; `pauses` is their number and `paused` their sum.
    """

    __slots__ = (
        "_logs_before",
        "_logs_last",
        "_samples_before",
        "_samples_last",
        "aged_at",
        "distance",
        "log_seconds",
        "logs",
        "pause",
        "paused",
        "pauses",
        "region",
        "samples",
        "seconds",
        "weight",
    )

    def __init__(self, region: RegionService) -> None:
        self.region = region
        self.samples = self.weight = self.distance = self.seconds = self.log_seconds = self.aged_at = 0.0
        self.pauses = self.paused = self.pause = 0.0
        self._samples_before = self._samples_last = 0.0
        self.logs = [0.0] * len(CONCURRENCIES)
        self._logs_before = self._logs_last = self.logs[:]
        region.members.append(self)

    def age(self, now: float) -> float:
        """Decay the long-run sums until `now`; return the number of samples that are left."""
        age = max(0.0, now - self.aged_at)
        keep = exp(-age / TAU)
        self.pauses *= keep
        self.paused *= keep
        if age > FORGET_AFTER and age * self.samples > STALE_GAPS * TAU:
            keep = min(keep, STALE_SAMPLES / self.samples)
        self.aged_at += age
        self.samples *= keep
        self.logs = [total * keep for total in self.logs]
        return self.samples

    def keep(self) -> None:
        """Keep the sums, and those that were kept before, for `revert`."""
        self._samples_before, self._logs_before = self._samples_last, self._logs_last
        self._samples_last, self._logs_last = self.samples, self.logs[:]

    def revert(self) -> None:
        """Return to the sums of one or two seconds ago, if there are any."""
        if self._samples_before >= MIN_SAMPLES:
            self.samples, self.logs = self._samples_before, self._logs_before[:]
            self._samples_last, self._logs_last = self._samples_before, self._logs_before

    def forget(self) -> None:
        """Forget the endpoint's own service times; the region's count until it has answered again."""
        self.samples = self._samples_before = self._samples_last = 0.0
        self.logs = [0.0] * len(CONCURRENCIES)

    def forget_pauses(self) -> None:
        """Forget the endpoint's pauses."""
        self.pauses = self.paused = self.pause = 0.0

    def slow_down(self, by: float) -> None:
        """Make the usual service time longer by `by`, a logarithm, and let it count as few samples."""
        keep = min(1.0, MIN_SAMPLES / self.samples)
        self.logs = [keep * (total + self.samples * by) for total in self.logs]
        self.samples *= keep
        self._samples_before = self._samples_last = 0.0
        self.settle()

    def settle(self) -> None:
        """Update the usual service time from the endpoint's own mean and its region's."""
        region = self.region
        if not self.samples:
            return
        by_chance = region.noise / self.samples * (1.0 + MIN_SAMPLES / self.samples) + MODEL_ERROR
        apart = self.logs[region.sums.choice] / self.samples - region.log_mean
        weight, squared = region.spread / (region.spread + by_chance), apart * apart / by_chance
        if squared > CHANCE_DEVIATION:
            weight = max(weight, 1.0 - CHANCE_DEVIATION / squared)
        self.weight = weight
        self.log_seconds = region.log_mean + weight * apart
        self.seconds = exp(self.log_seconds)
        self.pause = region.pause_of(self)
