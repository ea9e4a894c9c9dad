"""How much, how long, how often: accumulators for load.

Rule of this file: reads never mutate, and time is an argument. Everything here is fed once per request, so
each `add` or `record` is a few float operations on slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, exp, inf, log, sqrt
from typing import Self


class Ewma:
    """The mean of samples, each weighted by e^(−age/tau).

    It keeps the weighted sum and the sum of weights. The textbook form, value += (1 − e^(−Δ/tau))·(x −
    value), ignores a second sample taken at the same instant and trusts the very first one for tau; this
    one does neither, and its `weight` says how many fresh samples the mean is worth.
    """

    __slots__ = ("_at", "_sum", "_weight", "tau")

    def __init__(self, tau: float) -> None:
        self.tau = tau
        self._sum = self._weight = 0.0
        self._at = -inf

    def add(self, value: float, now: float) -> None:
        """Count `value` in. An instant before the last one counts as the last: clocks of two sources may
        differ."""
        age = now - self._at
        keep = exp(-age / self.tau) if age > 0 else 1.0
        self._sum = self._sum * keep + value
        self._weight = self._weight * keep + 1.0
        if age > 0:
            self._at = now

    def read(self, now: float | None = None) -> float | None:
        """The mean; None before the first sample, or once all samples by `now` are worth less than FAINT of
        one."""
        if not self._weight or (now is not None and self.weight(now) < FAINT):
            return None
        return self._sum / self._weight

    def weight(self, now: float) -> float:
        """How many samples taken at `now` the evidence is worth."""
        return self._weight * exp(min(0.0, (self._at - now) / self.tau))


FAINT = 0.01
"""Evidence worth a hundredth of a sample is none: one sample is forgotten after 4.6 tau."""


class WindowedMinimum:
    """The least value of the last `window` to 2·`window` seconds, in two buckets.

    A single window would forget everything at its turn; a true sliding minimum needs a queue per endpoint.
    `elsewhere` is the least that others have seen, and is no value of our own.
    """

    __slots__ = ("_previous", "current", "elsewhere", "turns_at", "window")

    def __init__(self, window: float) -> None:
        self.window = window
        self.current = self._previous = self.elsewhere = inf
        self.turns_at = -inf

    def add(self, value: float, now: float) -> None:
        """Count `value` in, turning the buckets when it is time.

        It changes nothing unless `value < current` or `now >= turns_at`, which the hot path asks first.
        """
        if now >= self.turns_at:
            self._previous = self.current if now < self.turns_at + self.window else inf
            self.current = value
            self.turns_at = now + self.window
        elif value < self.current:
            self.current = value

    def read(self) -> float:
        """The minimum; `inf`, the minimum of nothing, before the first value."""
        least = self.current if self.current < self._previous else self._previous
        return least if least < self.elsewhere else self.elsewhere

    def own(self) -> float:
        """The minimum of what was added here."""
        return min(self.current, self._previous)


SHORTEST, LONGEST = 100e-6, 600.0
"""Seconds that a histogram tells apart: a loopback answer … ten minutes, longer than any proxy waits by
default."""

RATIO = 1.1
"""Each bucket ends 10 % above the one before. Its geometric middle is off by at most √1.1 − 1 = 4.9 %."""

_PER_LOG = 1 / log(RATIO)
_OFFSET = 1 - log(SHORTEST) * _PER_LOG
_LAST = ceil(log(LONGEST) * _PER_LOG + _OFFSET)


class Histogram:
    """Latencies counted in logarithmic buckets: quantiles of any number of samples in 1.3 KiB.

    Bucket 0 holds all up to SHORTEST, the last one all above LONGEST. `counts` has the buckets, `total` the seconds.
    """

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (_LAST + 1)
        self.total = 0.0

    def record(self, seconds: float) -> None:
        """Count one sample."""
        index = int(log(seconds) * _PER_LOG + _OFFSET) if seconds > SHORTEST else 0
        try:
            self.counts[index] += 1
        except IndexError:
            self.counts[_LAST] += 1
        self.total += seconds

    @property
    def count(self) -> int:
        """How many samples there are; summed when asked, so that recording need not."""
        return sum(self.counts)

    @classmethod
    def of(cls, counts: list[int], total: float) -> Self:
        """One that has counted so much already; `total` in seconds."""
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
    """Where bucket `index` ends, in seconds."""
    return SHORTEST * RATIO**index
