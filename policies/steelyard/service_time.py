"""Service time and concurrency of endpoints, estimated from latencies and requests in flight.

A latency y of a request that met others in flight is a distance d, which handshakes tell, and a service time x and a
wait, both in proportion to what is expected. At an endpoint that serves c requests at a time,

    x = (y − d) · s / (s + w),

where s is the service time known so far and w the wait by which a request is priced (`expected_wait`).

All endpoints of a region are assumed to have the same c: for each possible c, the model predicts d + s + w, and the c
with the least variance of the logarithm of latency/prediction is chosen (maximum likelihood for lognormal service
times). Work and waiting are thereby told apart: a queue does not look like slow service. Where a region has never had
enough in flight to tell, a greater c of the region that is known best is assumed: only then does it get as much in
flight.

Service times are averaged as logarithms, so that one cheap or dear request among many changes little. An endpoint's own
mean is drawn towards its region's by as much as it may differ by chance (empirical Bayes; Efron and Morris 1973). Its
first answer in FORGET_AFTER replaces what was known of it: one that had been slow is soon used again.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, inf, log, sqrt
from typing import Final

from policies.stats.latency import FORGET_AFTER
from policies.steelyard.costs import expected_wait
from policies.steelyard.pace import CHANCE, FEW

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

SPREAD: Final = 0.04
"""Assumed variance of the logarithms of endpoints' service times, where a region has too few to tell."""

OUTLIER: Final = 0.5
"""Difference in logarithms, or three standard deviations if more, that one answer counts at most: a pause is not
service."""

LEAST_SHARE: Final = 0.02
"""Least share of a latency that is taken as service, where distance explains more."""

UNMEASURED: Final = 0.22
"""Part by which an endpoint that has not answered is taken to be slower than its region, times the variation. Each of
many balancers then keeps to fewer endpoints, of which it knows more. Simulated, twenty balancers: p99 184 ms, 235
without."""


class Sums:
    """Decayed sums of logarithms of services, and of errors and their squares, for one concurrency; their `misfit`."""

    __slots__ = ("error", "log", "misfit", "square")

    def __init__(self, log: float = 0.0, error: float = 0.0, square: float = 0.0) -> None:
        self.log, self.error, self.square, self.misfit = log, error, square, 0.0


class Shape:
    """Shape of the distribution of services, relative to the mean logarithm of their endpoint, over all regions: the
    work of requests is the same wherever they go, and a region with few answers cannot tell it.

    `factor` is the arithmetic mean as a multiple of the geometric one, `variation` the squared coefficient of
    variation."""

    def __init__(self) -> None:
        self.factor, self.variation = 1.0, 0.0
        self._at = self._count = self._log = self._value = self._square = 0.0

    def add(self, excess: float, now: float) -> None:
        """Add a service of e^`excess` times the geometric mean."""
        keep = exp((self._at - now) / SERVICE_TAU_S) if now > self._at else 1.0
        work, self._at = exp(excess), max(now, self._at)
        count = self._count = self._count * keep + 1.0
        self._log = self._log * keep + excess
        self._value = self._value * keep + work
        self._square = self._square * keep + work * work
        mean = self._value / count
        self.factor = mean / exp(self._log / count)
        self.variation = max(0.0, self._square / count / (mean * mean) - 1.0)


class RegionService:
    """Service time of a region: `mean` is the mean logarithm, `concurrency` how many an endpoint serves at a time.

    `noise` is the variance of the logarithm of an endpoint's services, `spread` that of their means among endpoints.
    `fits` are sums over `samples` answers, each for one of CONCURRENCIES: logarithms of services, less what the
    endpoint differs from the region, and errors of predicted logarithms. A concurrency above the requests in flight of
    all answers so far explains them as well as any higher one, so the first such is the last of them; `is_told` is
    whether it explains them worse than that chosen. `_within` are squares of the differences of logarithms from their
    endpoint's mean.
    """

    def __init__(self, shape: Shape) -> None:
        self.members: list[EndpointService] = []
        self.shape = shape
        self.concurrency, self.choice, self.is_told, self._lent = CONCURRENCIES[0], 0, False, 0.0
        self.mean = self.samples = self._at = self._credited_at = self._pairs = self._within = 0.0
        self.noise, self.spread = 1.0, SPREAD
        self._credit, self._settled_at = FEW, -inf
        self.fits = [Sums()]

    def lend(self, concurrency: float) -> None:
        """Assume this concurrency where it is greater and the answers of the region do not tell."""
        self._lent = concurrency
        own = CONCURRENCIES[self.choice]
        self.concurrency = own if self.is_told else max(own, concurrency)

    def unmeasured(self) -> float:
        """Return the service time assumed of an endpoint that has not answered; 0 where none of the region has."""
        slower = 1.0 + UNMEASURED * min(1.0, self.shape.variation)
        return exp(self.mean) * self.shape.factor * slower if self.samples else 0.0

    def is_due(self, now: float) -> bool:
        """Whether to learn from one more sample now: at most SAMPLES_PER_S."""
        self._credit = min(FEW, self._credit + max(0.0, now - self._credited_at) * SAMPLES_PER_S)
        self._credited_at = now
        if self._credit < 1.0:
            return False
        self._credit -= 1.0
        return True

    def add(self, member: EndpointService, latency: float, distance: float, met: int, now: float) -> None:
        """Learn from an answer of `member`: see its `learn`."""
        keep = exp((self._at - now) / SERVICE_TAU_S) if now > self._at else 1.0
        self._at, before, known = max(now, self._at), self.samples, member.samples
        samples = self.samples = before * keep + 1.0
        fits, own = self.fits, member.logs
        while met >= CONCURRENCIES[len(fits) - 1] and len(fits) < len(CONCURRENCIES):
            last_fit = fits[-1]
            fits.append(Sums(last_fit.log, last_fit.error, last_fit.square))
            for each in self.members:
                each.logs.append(each.logs[-1])
        outlier = max(OUTLIER, 3.0 * sqrt(self.noise)) if known > FEW else inf
        least, log_latency = LEAST_SHARE * latency, log(latency)
        excess = apart = usual = relative = 0.0
        for i in range(len(fits)):
            fit, times = fits[i], 1.0
            if before > 0.0:
                if known > 0.0:
                    usual = own[i] / known
                    relative = member.share * (usual - fit.log / before)
                if met > 1:
                    mean = exp(fit.log / before + relative) * self.shape.factor
                    times += expected_wait(met - 1, mean, distance, CONCURRENCIES[i]) / mean
            work = log(max(least, (latency - distance) / times))
            if known > 0.0:
                work = min(work, usual + outlier)
                if i == self.choice:
                    apart = work - usual
            own[i] = own[i] + work  # in place is not compiled
            total = fit.log = fit.log * keep + work - relative
            service = exp(total / samples + relative)
            error = log_latency - log(distance + service * times)
            fit.error = fit.error * keep + error
            fit.square = fit.square * keep + error * error
            if i == self.choice:
                excess = work - relative - total / samples
        member.samples = known + 1.0
        if known > 0.0:
            self._pairs = self._pairs * keep + 1.0
            self._within = self._within * keep + apart * apart * known / (known + 1.0)
        self.shape.add(excess, now)
        if samples >= FEW:
            self._choose()
        self.mean = fits[self.choice].log / samples
        if now - self._settled_at > 1.0:
            self._settle(now)

    def _choose(self) -> None:
        """Choose the least concurrency that explains the latencies about as well as the best."""
        samples, fits, best = self.samples, self.fits, inf
        for fit in fits:
            mean = fit.error / samples
            fit.misfit = 0.5 * samples * log(max(1e-4, fit.square / samples - mean * mean))
            best = min(best, fit.misfit)
        if fits[self.choice].misfit > best + BETTER_FIT:
            i = 0
            while fits[i].misfit > best + 0.5 * BETTER_FIT:
                i += 1
            if i != self.choice:
                self.choice, self.mean = i, fits[i].log / samples
                self._pairs = self._within = 0.0
                for member in self.members:
                    member.settle()
        self.is_told = fits[len(fits) - 1].misfit > best + 0.5 * BETTER_FIT
        self.lend(self._lent)
        self.noise = (self._within + 1.0) / (self._pairs + 1.0)

    def _settle(self, now: float) -> None:
        """Estimate how much the endpoints' service times differ beyond chance, and so each of them."""
        self._settled_at = now
        beyond = [
            member.apart() ** 2 - self.noise / member.samples
            for member in self.members
            if member.samples > 2.0
        ]
        self.spread = max(0.0, sum(beyond) / len(beyond)) if len(beyond) > 1 else SPREAD
        for member in self.members:
            member.settle()


def lend_concurrency(regions: Iterable[RegionService]) -> None:
    """Lend the concurrency of the best known region that tells it to those that do not."""
    told = [region for region in regions if region.is_told]
    lent = max(told, key=lambda region: region.samples).concurrency if told else 0.0
    for region in regions:
        region.lend(lent)


class EndpointService:
    """Usual service time of one endpoint: `seconds` is the mean.

    `logs` are sums of logarithms per possible concurrency over `samples` answers, decayed. `share` (0..1) is how far
    its own mean counts beside its region's.
    """

    def __init__(self, region: RegionService) -> None:
        self.region = region
        self.share = self.seconds = self._aged_at = 0.0
        self.samples, self.logs = 0.0, [0.0] * len(region.fits)

    def learn(self, latency: float, distance: float, met: int, now: float) -> None:
        """Learn from an answer after `latency` seconds that was one of `met` requests in flight."""
        region, age = self.region, now - self._aged_at
        if not (region.is_due(now) or self.samples < FEW or age > 1.0):
            return
        if age > 0.0:
            keep = exp(-age / SERVICE_TAU_S) if age <= FORGET_AFTER else 0.0
            self._aged_at, self.samples = now, self.samples * keep
            logs = self.logs
            for i in range(len(logs)):
                logs[i] = logs[i] * keep
        region.add(self, latency, distance, met, now)
        self.settle()

    def apart(self) -> float:
        """Return its own mean logarithm relative to its region's, 0 without samples."""
        return self.logs[self.region.choice] / self.samples - self.region.mean if self.samples else 0.0

    def settle(self) -> None:
        """Update the usual service time from the endpoint's own mean and its region's."""
        region = self.region
        if not self.samples:
            return
        apart = self.apart()
        variance = region.noise / self.samples
        share = region.spread / (region.spread + variance)
        squared = apart * apart
        if squared > CHANCE * variance:  # the positive part of James and Stein's estimate
            share = max(share, 1.0 - CHANCE * variance / squared)
        self.share = share
        self.seconds = exp(region.mean + share * apart) * region.shape.factor
