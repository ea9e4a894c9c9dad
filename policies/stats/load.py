"""Accumulators for load: moving average, windowed minimum, histogram and rate.

Reads never mutate, and time is an argument. Everything here is updated once per request, so each `add` or `record` is a
few float operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, exp, inf, log, sqrt
from typing import Final, Self


class Ewma:
    """Exponentially weighted moving average: each sample weighs e^(−age/tau).

    It keeps the weighted sum and the sum of weights. The textbook form, value += (1 − e^(−Δ/tau))·(x − value), ignores
    a second sample taken at the same instant and relies on the very first one for tau; this one does neither, and its
    `weight` says how many fresh samples the mean is worth.
    """

    def __init__(self, tau: float) -> None:
        self.tau = tau
        self._sum = self._weight = 0.0
        self._at = -inf

    def add(self, value: float, now: float) -> None:
        """Add a sample. A time before the last one counts as the last: clocks of two sources may differ."""
        age = now - self._at
        keep = exp(-age / self.tau) if age > 0 else 1.0
        self._sum = self._sum * keep + value
        self._weight = self._weight * keep + 1.0
        if age > 0:
            self._at = now

    def read(self, now: float | None = None) -> float | None:
        """Return the mean; None before the first sample, or once all by `now` weigh less than NEGLIGIBLE_WEIGHT."""
        if not self._weight or (now is not None and self.weight(now) < NEGLIGIBLE_WEIGHT):
            return None
        return self._sum / self._weight

    def weight(self, now: float) -> float:
        """Return the weight at `now`, in fresh samples."""
        return self._weight * exp(min(0.0, (self._at - now) / self.tau))


NEGLIGIBLE_WEIGHT: Final = 0.01
"""Weight below which a mean counts as unknown: a hundredth of a sample, so one sample is forgotten after 4.6 tau."""


class WindowedMinimum:
    """The least value of the last `window` to 2·`window` seconds, in two buckets.

    A single window would forget everything at its turn; a true sliding minimum needs a queue per endpoint. `least` is
    the minimum, `inf` before the first value. It includes what sibling processes reported, which `own` excludes.
    """

    def __init__(self, window: float) -> None:
        self.window = window
        self.current = self.least = self._previous = self._elsewhere = inf
        self.turns_at = -inf

    def add(self, value: float, now: float) -> None:
        """Add a sample, and turn the buckets when it is time.

        It changes nothing unless `value < current` or `now >= turns_at`; the hot path tests this before the call.
        """
        if now >= self.turns_at:
            self._previous = self.current if now < self.turns_at + self.window else inf
            self.current = value
            self.turns_at = now + self.window
        elif value < self.current:
            self.current = value
        self.least = min(self.own(), self._elsewhere)

    def include(self, elsewhere: float) -> None:
        """Include the minimum of sibling processes, in place of that of the previous call."""
        self._elsewhere = elsewhere
        self.least = min(self.own(), elsewhere)

    def own(self) -> float:
        """Return the minimum of this process's samples."""
        return min(self.current, self._previous)


SHORTEST: Final = 100e-6
LONGEST: Final = 600.0
"""Range in seconds that a histogram resolves: from a loopback response to ten minutes, longer than any proxy waits by
default."""

RATIO: Final = 1.1
"""Each bucket ends 10 % above the one before. Its geometric middle is off by at most √1.1 − 1 = 4.9 %."""

_PER_LOG: Final = 1 / log(RATIO)
_OFFSET: Final = 1 - log(SHORTEST) * _PER_LOG
_LAST: Final = ceil(log(LONGEST) * _PER_LOG + _OFFSET)


class Histogram:
    """Latency histogram in logarithmic buckets: quantiles of any number of samples in 1.3 KiB.

    Bucket 0 holds all up to SHORTEST, the last one all above LONGEST. `counts` has the buckets, `total` the seconds.
    """

    def __init__(self) -> None:
        self.counts = [0] * (_LAST + 1)
        self.total = 0.0

    def record(self, seconds: float) -> None:
        """Add a sample in seconds. O(1)."""
        index, counts = int(log(seconds) * _PER_LOG + _OFFSET) if seconds > SHORTEST else 0, self.counts
        if index > _LAST:
            index = _LAST
        counts[index] = counts[index] + 1  # in place is not compiled
        self.total += seconds

    @property
    def count(self) -> int:
        """Number of samples; summed on demand, so that recording need not."""
        return sum(self.counts)

    @classmethod
    def of(cls, counts: list[int], total: float) -> Self:
        """Return a histogram with these counts; `total` in seconds."""
        histogram = cls()
        histogram.counts, histogram.total = counts, total
        return histogram

    def quantile(self, q: float) -> float | None:
        """The latency in seconds that a share `q` (0..1) of the samples does not exceed; None without
        samples."""
        rank = max(1, ceil(q * self.count))
        seen = 0
        for index, count in enumerate(self.counts):
            seen += count
            if seen >= rank:
                return min(LONGEST, upper_bound(index) / sqrt(RATIO)) if index else SHORTEST
        return None

    def cumulative(self, every: int = 8) -> Iterator[tuple[float, int]]:
        """(upper bound in seconds, samples up to it), one row per `every` buckets; the last bound is `inf`.

        Every 8th bound is a factor 2.14 above the one before: 22 rows per endpoint are enough for a scrape.
        """
        seen = 0
        for index, count in enumerate(self.counts[:-1]):
            seen += count
            if index % every == 0:
                yield upper_bound(index), seen
        yield inf, self.count


def upper_bound(index: int) -> float:
    """Return the upper bound of bucket `index` in seconds."""
    return SHORTEST * RATIO**index


RATE_TAU: Final = 3.0
"""Seconds after which an event counts 1/e: long enough to count slow workers, short enough to follow a stall."""

LEAST_SPAN: Final = 0.5
"""Shortest span in seconds that a rate is computed over: the first two events, a millisecond apart, are not a thousand
a second."""


class RateMeter:
    """Events per second since `begin`, each weighted by e^(−age/RATE_TAU).

    The weighted count is divided by the weight of the whole time since `began_at`, so the rate is not underestimated in
    the first seconds.
    """

    def __init__(self) -> None:
        self._count = 0.0
        self._at = self.began_at = 0.0

    def begin(self, now: float) -> None:
        """Start again at `now` without events."""
        self._count = 0.0
        self._at = self.began_at = now

    def count(self, now: float) -> None:
        self._count = self._faded(now) + 1.0
        self._at = now

    def read(self, now: float) -> float:
        """Return events per second; 0 without events."""
        span = max(LEAST_SPAN, now - self.began_at)
        return self._faded(now) / (RATE_TAU * (1.0 - exp(-span / RATE_TAU)))

    def _faded(self, now: float) -> float:
        age = now - self._at
        return self._count * exp(-age / RATE_TAU) if age > 0.0 else self._count
