"""What a unit has counted, and what it has counted between two looks.

Rule of this file: pure. A unit's counters only grow; where one has shrunk the unit was started anew, and nothing can be
said of the time between. Quantiles come from histograms whose buckets are a tenth wide, spread evenly within a bucket
on a log scale, so they are off by a twentieth at most and mostly far less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from experiments.errors import ExperimentError
from experiments.load.samples import Ints


class UnitRestarted(ExperimentError):
    """Counters have shrunk."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class Reading:
    """One look. `buckets` by endpoint; `policy` is what was in force, name and options."""

    at: float
    policy: dict[str, Any]
    requests: int
    errors: int
    buckets: dict[str, Ints]
    shortest: float
    ratio: float
    demoted: int = 0

    @classmethod
    def of(cls, told: dict[str, Any], at: float) -> Self:
        """From what /-/latency says; `at` in seconds. Raises KeyError and TypeError where it says something else."""
        policy = told["policy"]
        worker_errors = sum(each["outcomes"]["error_status"] for each in told["endpoints"])
        return cls(
            at,
            policy["spec"],
            told["requests"],
            sum(told["errors"].values()) + worker_errors,
            {each["id"]: np.asarray(each["buckets"], dtype=np.int64) for each in told["endpoints"]},
            float(told["shortest"]),
            float(told["ratio"]),
            policy["demoted"],
        )


@dataclass(frozen=True, slots=True)
class Window:
    """What happened between two looks. `answered` successes fell into `buckets`; `errors` of `requests` were errors,
    the unit's own or a worker's 5xx. `shares` are the endpoints' parts (0..1) of the successes."""

    seconds: float
    requests: int
    errors: int
    demoted: int
    buckets: Ints
    shares: dict[str, float]
    shortest: float
    ratio: float

    @property
    def answered(self) -> int:
        """Successes."""
        return int(self.buckets.sum())

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.requests / self.seconds if self.seconds > 0 else 0.0

    @property
    def error_share(self) -> float:
        """Which part (0..1) of the requests ended in an error."""
        return self.errors / self.requests if self.requests else 0.0

    @property
    def mean(self) -> float:
        """Seconds, from the buckets' middles; nan without successes."""
        middles = self.shortest * self.ratio ** (np.arange(len(self.buckets)) - 0.5)
        return float(middles @ self.buckets / self.answered) if self.answered else math.nan

    def quantile(self, q: float) -> float:
        """Seconds that a share `q` (0..1) of the successes did not exceed; nan without successes."""
        if not self.answered:
            return math.nan
        rank, reached = q * self.answered, np.cumsum(self.buckets)
        index = int(np.searchsorted(reached, rank, side="left"))
        inside = (rank - (reached[index] - self.buckets[index])) / self.buckets[index]
        return float(self.shortest * self.ratio ** (index - 1 + inside)) if index else self.shortest


def between(earlier: Reading, later: Reading) -> Window:
    """The difference. An endpoint that was not there before, or is not there after, counts as far as it is known.

    Raises UnitRestarted.
    """
    nothing = np.zeros(len(next(iter(later.buckets.values()), ())), dtype=np.int64)
    grown = {id_: counts - earlier.buckets.get(id_, nothing) for id_, counts in later.buckets.items()}
    requests, errors = later.requests - earlier.requests, later.errors - earlier.errors
    left = earlier.buckets.keys() - later.buckets.keys()
    if requests < 0 or (errors < 0 and not left) or any((counts < 0).any() for counts in grown.values()):
        raise UnitRestarted(
            "the unit's counters have shrunk: it was started anew, or an endpoint was replaced"
        )
    buckets = sum(grown.values(), start=nothing)
    whole = int(buckets.sum())
    return Window(
        later.at - earlier.at,
        requests,
        max(0, errors),
        later.demoted - earlier.demoted,
        buckets,
        {id_: int(counts.sum()) / whole if whole else 0.0 for id_, counts in grown.items()},
        later.shortest,
        later.ratio,
    )
