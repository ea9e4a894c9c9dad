"""Service time and concurrency of endpoints, estimated from latencies and requests in flight.

A latency y of a request that was one of n in flight is a distance d, which handshakes tell, and a service time x, alone
or shared with the requests ahead. An endpoint that serves c requests at a time gives

    x = y − d            if it did not wait,
    x = y · c/n          if it waited behind others; the lesser of the two is taken.

All endpoints of a region are assumed to have the same c: for each possible c, the model predicts max(d + s, n · s/c),
and the c with the least variance of the logarithm of latency/prediction is chosen (maximum likelihood for lognormal
service times). Work and waiting are thereby told apart: a queue does not look like slow service.

Service times are averaged as logarithms, so that one cheap or dear request among many changes little. An endpoint's own
mean is drawn towards its region's by as much as it may differ by chance (empirical Bayes; Efron and Morris 1973).
"""

from __future__ import annotations

from math import exp, inf, log, sqrt
from typing import Final

from policies.steelyard.pace import CHANCE, FEW, REGION_TAU_S, Pace, beyond_chance

CONCURRENCIES: Final = tuple(
    float(c) for c in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024)
)
"""Possible numbers of requests that an endpoint serves at a time."""

SERVICE_TAU_S: Final = 30.0
"""Seconds after which a sample counts 1/e. 60 s makes no difference in simulations."""

SAMPLES_PER_S: Final = 200.0
"""Samples per second that a region learns from, to bound the cost: thousands change nothing."""

BETTER_FIT: Final = 4.0
"""Log likelihood by which another concurrency must be better, so that the choice does not alternate; the least one
within half of that of the best is preferred."""

MODEL_VARIANCE: Final = 0.0025
"""Variance of the logarithm of an endpoint's mean that samples do not reduce, as the model is not exact: 5 %."""

SPREAD: Final = 0.04
"""Assumed variance of the logarithms of endpoints' service times, where a region has too few to tell."""

OUTLIER: Final = 0.5
"""Difference in logarithms, or three standard deviations if more, that one answer counts at most: a pause is not
service."""

LEAST_SHARE: Final = 0.02
"""Least share of a latency that is taken as service, where distance explains more."""


MOST_DISPERSION: Final = 10.0
"""Greatest squared coefficient of variation of services that is believed."""

UNMEASURED: Final = 0.22
"""Part by which an endpoint that has not answered is taken to be slower than its region, times the variation. Each of
many balancers then keeps to fewer endpoints, of which it knows more. Simulated, twenty balancers: p99 184 ms, 235
without."""


class Sums:
    """Decayed sums: of 1, of logarithms, of values and of their squares. `variance` and `misfit` are a fit's."""

    __slots__ = ("count", "log", "misfit", "square", "value", "variance")

    def __init__(self, count: float = 0.0, log: float = 0.0, value: float = 0.0, square: float = 0.0) -> None:
        self.count, self.log, self.value, self.square = count, log, value, square
        self.variance = self.misfit = 0.0

    def copy(self) -> Sums:
        """Return a copy of the sums."""
        return Sums(self.count, self.log, self.value, self.square)


class RegionService:
    """Service time of a region: `mean` is the mean logarithm, `concurrency` how many an endpoint serves at a time.

    e^`mean` times `factor` is the arithmetic mean. `variation` is the squared coefficient of variation of services,
    `dispersion` the same from 1 to MOST_DISPERSION. `noise` is the variance of latencies about their prediction,
    `spread` that among the endpoints. `fits` and `_shape` are sums over `samples` answers. Each of `fits` is for one of
    CONCURRENCIES: logarithms of services, less what the endpoint differs from the region, and errors of predicted
    logarithms. A concurrency above the requests in flight of all answers so far explains them as well as any higher
    one, so the first such is the last of them. `_shape` is that of services relative to their endpoint. `_last` and
    `_before` are samples, choice, fits and shape at the last two times of `settle`.
    """

    def __init__(self) -> None:
        self.members: list[EndpointService] = []
        self.pace = Pace(REGION_TAU_S)
        self.concurrency, self.choice = CONCURRENCIES[0], 0
        self.mean = self.samples = self._at = self._credited_at = 0.0
        self.noise, self.spread, self.factor, self.variation, self.dispersion = 1.0, SPREAD, 1.0, 0.0, 1.0
        self._credit, self.settled_at = FEW, -inf
        self.fits, self._shape = [Sums()], Sums()
        self._before = self._last = self.samples, self.choice, self.fits, self._shape

    def revert(self, slow: EndpointService) -> None:
        """Return to the estimate of one or two seconds ago: the member `slow` has become slow since, and answers that
        take longer while more are in flight look like a low concurrency. The policy would then send it so few requests
        that nothing could show the error."""
        slow.revert()
        samples, choice, fits, shape = self._before
        if samples < SAMPLES_PER_S:
            return
        self._last = self._before
        last = len(fits) - 1
        self.samples, self._shape = samples, shape.copy()
        self.fits = [fits[min(i, last)].copy() for i in range(len(self.fits))]
        self._use(choice)

    def _use(self, choice: int) -> None:
        """Take one of CONCURRENCIES as the region's."""
        self.choice, self.concurrency = choice, CONCURRENCIES[choice]
        self.mean = self.fits[choice].log / self.samples
        for member in self.members:
            member.settle()

    def unmeasured(self) -> float:
        """Return the service time assumed of an endpoint that has not answered; 0 where none of the region has."""
        slower = 1.0 + UNMEASURED * min(1.0, self.variation)
        return exp(self.mean) * self.factor * slower if self.samples else 0.0

    def is_due(self, now: float) -> bool:
        """Whether to learn from one more sample now: at most SAMPLES_PER_S."""
        self._credit = min(FEW, self._credit + max(0.0, now - self._credited_at) * SAMPLES_PER_S)
        self._credited_at = now
        if self._credit < 1.0:
            return False
        self._credit -= 1.0
        return True

    def add(self, member: EndpointService, latency: float, distance: float, met: int, now: float) -> None:
        """Learn from an answer of `member` after `latency` seconds, as one of `met` requests in flight."""
        keep = exp((self._at - now) / SERVICE_TAU_S) if now > self._at else 1.0
        self._at, before, known = max(now, self._at), self.samples, member.samples
        samples = self.samples = before * keep + 1.0
        fits, own, ahead = self.fits, member.logs, float(met)
        while met >= CONCURRENCIES[len(fits) - 1] and len(fits) < len(CONCURRENCIES):
            fits.append(fits[-1].copy())
            for each in self.members:
                each.logs.append(each.logs[-1])
        outlier = max(OUTLIER, 3.0 * sqrt(self.noise)) if known > FEW else inf
        least, log_latency, excess, relative = LEAST_SHARE * latency, log(latency), 0.0, 0.0
        beyond = max(least, latency - distance)
        last = last_log = 0.0
        for i in range(len(fits)):
            fit, concurrency = fits[i], CONCURRENCIES[i]
            seconds = max(least, min(beyond, latency * concurrency / ahead))
            if seconds != last:
                last, last_log = seconds, log(seconds)
            work = last_log
            if known > 0.0 and before > 0.0:
                usual = own[i] / known
                relative = member.share * (usual - fit.log / before)
                work = min(work, usual + outlier)
            own[i] = own[i] + work  # in place is not compiled
            total = fit.log = fit.log * keep + work - relative
            service = exp(total / samples + relative)
            error = log_latency - log(max(distance + service, ahead * service / concurrency))
            fit.value = fit.value * keep + error
            fit.square = fit.square * keep + error * error
            if i == self.choice:
                excess = work - relative
        member.samples = known + 1.0
        self._add_shape(excess, keep)
        if samples >= FEW:
            self._choose()
        self.mean = fits[self.choice].log / samples

    def _add_shape(self, excess: float, keep: float) -> None:
        """Update the shape of the distribution of services."""
        shape, work = self._shape, exp(excess)
        shape.count = shape.count * keep + 1.0
        shape.log = shape.log * keep + excess
        shape.value = shape.value * keep + work
        shape.square = shape.square * keep + work * work
        mean = shape.value / shape.count
        self.factor = mean / exp(shape.log / shape.count)
        self.variation = max(0.0, shape.square / shape.count / (mean * mean) - 1.0)
        self.dispersion = max(1.0, min(MOST_DISPERSION, self.variation))

    def _choose(self) -> None:
        """Choose the least concurrency that explains the latencies about as well as the best."""
        samples, fits, best = self.samples, self.fits, inf
        for fit in fits:
            mean = fit.value / samples
            fit.variance = max(1e-4, fit.square / samples - mean * mean)
            fit.misfit = 0.5 * samples * log(fit.variance)
            best = min(best, fit.misfit)
        if fits[self.choice].misfit > best + BETTER_FIT:
            i = 0
            while fits[i].misfit > best + 0.5 * BETTER_FIT:
                i += 1
            if i != self.choice:
                self._shape = Sums()
                self._use(i)
        self.noise = fits[self.choice].variance

    def settle(self, now: float) -> None:
        """Estimate how much the endpoints' service times differ beyond chance, and so each of them."""
        self.settled_at = now
        beyond = [
            member.apart() ** 2 - self.noise / member.samples - MODEL_VARIANCE
            for member in self.members
            if member.samples > 2.0
        ]
        self.spread = max(0.0, sum(beyond) / len(beyond)) if len(beyond) > 1 else SPREAD
        copied = self.samples, self.choice, [fit.copy() for fit in self.fits], self._shape.copy()
        self._before, self._last = self._last, copied
        for member in self.members:
            member.settle()
            member.before, member.last = member.last, (member.samples, member.logs[:])


class EndpointService:
    """Usual service time of one endpoint: `seconds` is the mean, `log_seconds` the mean logarithm.

    `logs` are sums of logarithms per possible concurrency over `samples` answers, decayed; `last` and `before` are
    samples and logs at the last two times that the region was settled. `share` (0..1) is how far its own mean counts
    beside its region's.
    """

    def __init__(self, region: RegionService) -> None:
        self.region = region
        self.share = self.seconds = self.log_seconds = self._aged_at = 0.0
        self.samples, self.logs = 0.0, [0.0] * len(region.fits)
        self.before = self.last = 0.0, self.logs

    def learn(self, latency: float, distance: float, met: int, now: float) -> None:
        """Learn from an answer after `latency` seconds that was one of `met` requests in flight."""
        region, age = self.region, now - self._aged_at
        if not (region.is_due(now) or self.samples < FEW or age > 1.0):
            return
        if age > 0.0:
            keep = exp(-age / SERVICE_TAU_S)
            self._aged_at, self.samples = now, self.samples * keep
            logs = self.logs
            for i in range(len(logs)):
                logs[i] = logs[i] * keep
        region.add(self, latency, distance, met, now)
        if now - region.settled_at > 1.0:
            region.settle(now)
        self.settle()

    def apart(self) -> float:
        """Return its own mean logarithm relative to its region's, 0 without samples."""
        return self.logs[self.region.choice] / self.samples - self.region.mean if self.samples else 0.0

    def work(self, latency: float, distance: float, met: int) -> float:
        """Return the logarithm of the service time of a request that was one of `met`, as far as it did not wait."""
        alone = min(latency - distance, latency * self.region.concurrency / met)
        return log(max(LEAST_SHARE * latency, alone))

    def forget(self) -> None:
        """Forget the endpoint's own service times: its region's count."""
        self._begin(0.0, [0.0] * len(self.logs))

    def _begin(self, samples: float, logs: list[float]) -> None:
        self.samples, self.logs = samples, logs
        self.before = self.last = 0.0, logs  # nothing to revert to

    def revert(self) -> None:
        """Return to the sums of one or two seconds ago, if there are any."""
        if self.before[0] >= FEW:
            self.samples, logs = self.before
            self.logs, self.last = logs + logs[-1:] * (len(self.logs) - len(logs)), self.before

    def slow_down(self, by: float) -> None:
        """Make the usual service time longer by `by`, a logarithm, and let it count as few samples."""
        keep = min(1.0, FEW / self.samples)
        self._begin(self.samples * keep, [keep * (total + self.samples * by) for total in self.logs])
        self.settle()

    def settle(self) -> None:
        """Update the usual service time from the endpoint's own mean and its region's."""
        region = self.region
        if not self.samples:
            return
        apart = self.logs[region.choice] / self.samples - region.mean
        variance = region.noise / self.samples * (1.0 + FEW / self.samples) + MODEL_VARIANCE
        share = region.spread / (region.spread + variance)
        if apart * apart > CHANCE * variance:
            share = max(share, beyond_chance(apart, variance) / apart)
        self.share = share
        self.log_seconds = region.mean + share * apart
        self.seconds = exp(self.log_seconds) * region.factor
