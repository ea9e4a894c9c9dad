"""Readings of a balancer's counters, windows between two readings, and guard rails. Pure.

Counters only grow; a smaller value means that the balancer was restarted, and the window is unusable. Quantiles come
from histograms with buckets a tenth wide, interpolated on a log scale within a bucket, so their error is at most a
twentieth.

Guard rails are limits beyond which the initial policy is restored. A rail is checked over the last seconds as soon as
there are enough requests, also within the wash-out, because harm to users must not wait for a proper measurement.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from experiments.errors import ExperimentError
from experiments.run_data import Ints


class LiveError(ExperimentError):
    """An evaluation cannot go on: the balancer does not respond, was restarted, or has another client's policy."""


@dataclass(frozen=True, slots=True)
class MetricsReading:
    """One reading. `buckets` by endpoint; `policy` is the one in force, name and options, and `versions` are the paths
    and versions of its files. `errors` are requests that the balancer answered with an error, cut, or passed on as a
    worker's 5xx; `abandoned` those whose client left. `last_fault` is of the policy."""

    at: float
    policy: dict[str, Any]
    requests: int
    errors: int
    buckets: dict[str, Ints]
    shortest: float
    ratio: float
    fallback_picks: int = 0
    versions: tuple[tuple[str, str], ...] = ()
    abandoned: int = 0
    last_fault: str | None = None

    @classmethod
    def of(cls, status: dict[str, Any], at: float) -> Self:
        """Parse the response of /-/latency; `at` in seconds. Raises `KeyError` and `TypeError` for another document."""
        policy = status["policy"]
        return cls(
            at,
            policy["spec"],
            status["requests"],
            sum(status["errors"].values()) + status["worker_errors"],
            {each["id"]: np.asarray(each["buckets"], dtype=np.int64) for each in status["endpoints"]},
            float(status["shortest"]),
            float(status["ratio"]),
            policy["fallback_picks"],
            tuple((file["path"], file["version"]) for file in policy.get("files", ())),
            status["abandoned"],
            policy.get("last_fault"),
        )


@dataclass(frozen=True, slots=True)
class MetricsWindow:
    """Difference of two readings. `answered` successes are in `by_endpoint`, as buckets."""

    seconds: float
    requests: int
    errors: int
    fallback_picks: int
    by_endpoint: dict[str, Ints]
    shortest: float
    ratio: float
    abandoned: int = 0
    last_fault: str | None = None

    @property
    def buckets(self) -> Ints:
        return np.asarray(np.sum([*self.by_endpoint.values()], axis=0, dtype=np.int64))

    @property
    def shares(self) -> dict[str, float]:
        """Endpoints' shares (0..1) of the successes."""
        whole = max(1, self.answered)
        return {id_: int(counts.sum()) / whole for id_, counts in self.by_endpoint.items()}

    @property
    def answered(self) -> int:
        """Number of successes."""
        return int(sum(counts.sum() for counts in self.by_endpoint.values()))

    @property
    def failed(self) -> int:
        """Number of requests that ended without success; no response that its client did not wait for is one."""
        return self.errors + self.abandoned

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.requests / self.seconds if self.seconds > 0 else 0.0

    @property
    def error_share(self) -> float:
        """Share (0..1) of requests that failed."""
        return self.failed / self.requests if self.requests else 0.0

    def quantile(self, q: float) -> float:
        """Latency in seconds that a share `q` (0..1) of the successes did not exceed; nan without successes."""
        if not self.answered:
            return math.nan
        buckets = self.buckets
        rank, reached = q * self.answered, np.cumsum(buckets)
        index = int(np.searchsorted(reached, rank, side="left"))
        inside = (rank - (reached[index] - buckets[index])) / buckets[index]
        return float(self.shortest * self.ratio ** (index - 1 + inside)) if index else self.shortest


def between(earlier: MetricsReading, later: MetricsReading) -> MetricsWindow:
    """Difference of two readings. An endpoint that was added or removed in between counts as far as it is known.

    Raises `LiveError`.
    """
    nothing = np.zeros(len(next(iter(later.buckets.values()), ())), dtype=np.int64)
    grown = {id_: counts - earlier.buckets.get(id_, nothing) for id_, counts in later.buckets.items()}
    requests, errors = later.requests - earlier.requests, later.errors - earlier.errors
    if requests < 0 or errors < 0 or any((counts < 0).any() for counts in grown.values()):
        raise LiveError("the balancer's counters have shrunk: it was restarted, or an endpoint was replaced")
    return MetricsWindow(
        later.at - earlier.at,
        requests,
        errors,
        later.fallback_picks - earlier.fallback_picks,
        grown,
        later.shortest,
        later.ratio,
        later.abandoned - earlier.abandoned,
        later.last_fault,
    )


class RailBroken(ExperimentError):
    """A guard rail was broken and the initial policy was restored."""

    exit_code = 1


MIN_REQUESTS = 100
"""Least requests to check a rail: below, p99 is a single request."""

TOLERATED_RATIO = 2.0
"""Default limit on p99, as a multiple of the p99 before."""

MORE_ERRORS = 0.02
"""Default limit on the increase of the error share."""


@dataclass(frozen=True, slots=True)
class Rails:
    """Limits: `p99` in seconds, `errors` as a share (0..1) of requests, over `seconds`."""

    p99: float
    errors: float
    seconds: float = 10.0

    @classmethod
    def after(cls, before: MetricsWindow, p99: float | None, errors: float | None) -> Rails:
        """The given limits, or defaults relative to the window before."""
        return cls(
            TOLERATED_RATIO * before.quantile(0.99) if p99 is None else p99,
            min(1.0, before.error_share + MORE_ERRORS) if errors is None else errors,
        )

    def broken_by(self, window: MetricsWindow) -> str | None:
        """The broken rail as text; None if none is broken or too little is known."""
        if window.requests < MIN_REQUESTS:
            return None
        if window.error_share > self.errors:
            return f"{window.error_share:.1%} of requests failed, more than {self.errors:.1%}"
        if not window.answered:
            return f"none of {window.requests} requests was answered in {window.seconds:.0f} s"
        p99 = window.quantile(0.99)
        if window.answered >= MIN_REQUESTS and p99 > self.p99:
            return f"p99 is {p99 * 1e3:.0f} ms, more than {self.p99 * 1e3:.0f} ms"
        return None


class Watch:
    """Sliding window of readings under one policy."""

    def __init__(self, rails: Rails) -> None:
        self._rails = rails
        self._readings: deque[MetricsReading] = deque()

    def broken_by(self, reading: MetricsReading) -> str | None:
        """Add a reading; returns the broken rail as text, if any."""
        readings = self._readings
        readings.append(reading)
        while len(readings) > 2 and readings[1].at <= reading.at - self._rails.seconds:
            readings.popleft()
        return self._rails.broken_by(between(readings[0], reading))
