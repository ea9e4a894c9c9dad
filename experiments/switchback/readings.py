"""Readings of a balancer's counters, and windows between two readings. Pure.

Counters only grow; a smaller value means that the balancer was restarted, and the window is unusable. Quantiles come
from histograms with buckets a tenth wide, interpolated on a log scale within a bucket, so their error is at most a
twentieth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from experiments.errors import ExperimentError
from experiments.run_data import Ints


class BalancerRestarted(ExperimentError):
    """Counters have decreased, so the balancer or an endpoint was restarted."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class MetricsReading:
    """One reading. `buckets` by endpoint; `policy` is the one in force, name and options, and `versions` are the paths
    and versions of its files."""

    at: float
    policy: dict[str, Any]
    requests: int
    errors: int
    buckets: dict[str, Ints]
    shortest: float
    ratio: float
    fallback_picks: int = 0
    versions: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, status: dict[str, Any], at: float) -> Self:
        """Parse the response of /-/latency; `at` in seconds. Raises `KeyError` and `TypeError` for another document."""
        policy = status["policy"]
        worker_errors = sum(each["outcomes"]["error_status"] for each in status["endpoints"])
        return cls(
            at,
            policy["spec"],
            status["requests"],
            sum(status["errors"].values()) + worker_errors,
            {each["id"]: np.asarray(each["buckets"], dtype=np.int64) for each in status["endpoints"]},
            float(status["shortest"]),
            float(status["ratio"]),
            policy["fallback_picks"],
            tuple((file["path"], file["version"]) for file in policy.get("files", ())),
        )


@dataclass(frozen=True, slots=True)
class MetricsWindow:
    """Difference of two readings. `answered` successes are in `by_endpoint`, as buckets; `errors` of `requests` are the
    balancer's own errors or a worker's 5xx.
    """

    seconds: float
    requests: int
    errors: int
    fallback_picks: int
    by_endpoint: dict[str, Ints]
    shortest: float
    ratio: float

    @property
    def buckets(self) -> Ints:
        """Number of successes in each bucket."""
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
    def ended(self) -> int:
        """Number of requests that ended, well or not."""
        return self.answered + self.errors

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.requests / self.seconds if self.seconds > 0 else 0.0

    @property
    def error_share(self) -> float:
        """Share (0..1) of requests that ended in an error."""
        return self.errors / self.requests if self.requests else 0.0

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

    Raises `BalancerRestarted`.
    """
    nothing = np.zeros(len(next(iter(later.buckets.values()), ())), dtype=np.int64)
    grown = {id_: counts - earlier.buckets.get(id_, nothing) for id_, counts in later.buckets.items()}
    requests, errors = later.requests - earlier.requests, later.errors - earlier.errors
    left = earlier.buckets.keys() - later.buckets.keys()
    if requests < 0 or (errors < 0 and not left) or any((counts < 0).any() for counts in grown.values()):
        raise BalancerRestarted(
            "the balancer's counters have shrunk: it was restarted, or an endpoint was replaced"
        )
    return MetricsWindow(
        later.at - earlier.at,
        requests,
        max(0, errors),
        later.fallback_picks - earlier.fallback_picks,
        grown,
        later.shortest,
        later.ratio,
    )
