"""Latency against offered rate: a point for each entry and rate, and the knee of each curve.

Each block is one observation, with Student's interval. A rate that an entry does not keep up with is marked, not left
out. The knee is where power, throughput over p99, is greatest (Kleinrock 1979): below it more load costs little
latency, beyond it more latency buys little load.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import numpy as np

from experiments.capacity.criteria import WATCHED, queue_growth
from experiments.errors import BadInputError
from experiments.results.directory import CAMPAIGN_FILE, Results, believable, load_campaign, load_results
from experiments.run_data import Run
from experiments.stats import measures
from experiments.stats.comparison import Interval, typical
from experiments.stats.estimates import geometric_mean
from experiments.stats.run_summary import summarise_run


@dataclass(frozen=True, slots=True)
class Point:
    """One entry at one rate, per second of the scenario. `p99` in measured seconds over blocks, failures at the
    deadline; `mean` likewise, its geometric mean; `answered` successes per second; `goodput` and `errors` shares.

    `keeps_up`: at least half of the runs have no growing queue and 99 % success. `few`: fewer than 100 samples beyond
    p99.
    """

    label: str
    rate: float
    p99: Interval
    mean: float
    answered: float
    goodput: float
    errors: float
    few: bool
    valid: bool
    keeps_up: bool

    @property
    def power(self) -> float:
        return self.answered / self.p99.ratio


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """All rates of one session: the results of each, lowest first, and the points in the same order; `missing` is the
    number of planned runs that were not made."""

    results: tuple[Results, ...]
    points: tuple[Point, ...]
    missing: int = 0

    @property
    def labels(self) -> list[str]:
        return list(dict.fromkeys(point.label for point in self.points))

    def of(self, label: str) -> list[Point]:
        """Points of one entry, lowest rate first."""
        return [point for point in self.points if point.label == label]

    def limit(self, label: str, slo: float) -> float:
        """Highest rate up to which the entry keeps up and its p99 keeps `slo` (seconds) at every rate; 0 if none."""
        kept = takewhile(
            lambda point: point.keeps_up and point.valid and point.p99.ratio <= slo, self.of(label)
        )
        return max((point.rate for point in kept), default=0.0)

    def knee(self, label: str) -> Point | None:
        """Valid point of greatest power; None if it is the first or the last, so that the curve has no bend."""
        points = [point for point in self.of(label) if point.valid]
        best = max(points, key=lambda point: point.power, default=None)
        return None if best is None or best in (points[0], points[-1]) else best


def is_curve(directory: Path) -> bool:
    """Whether the directory has results of any rate."""
    return any(directory.glob("rate-*/runs/*.npz"))


def read_curve(directory: Path) -> Curve:
    """Read every `rate-*` in the directory. Raises `BadInputError` if none has runs."""
    folders = sorted(folder for folder in directory.glob("rate-*") if any((folder / "runs").glob("*.npz")))
    if not folders:
        raise BadInputError(f"{directory}: no rate has been measured yet")
    found = sorted(
        (load_results(folder) for folder in folders), key=lambda results: results.scenario.load.rate
    )
    points = [point_of(results, entry.label) for results in found for entry in results.entries()]
    planned = sum(len(load_campaign(file.parent).plan) for file in directory.glob(f"rate-*/{CAMPAIGN_FILE}"))
    return Curve(tuple(found), tuple(points), planned - sum(len(results.runs) for results in found))


def point_of(results: Results, label: str) -> Point:
    """Point of one entry: samples pooled for shares, averages over blocks for comparisons."""
    runs, scenario = believable(results, label), results.scenario
    slo = scenario.measured_slo
    summaries = [summarise_run(run, slo) for run in runs]
    requests = sum(len(run.samples) for run in runs)
    return Point(
        label=label,
        rate=scenario.load.rate,
        p99=typical([one.p99 for one in summaries]),
        mean=geometric_mean(one.mean for one in summaries),
        answered=float(np.mean([answered_rate(run) for run in runs])) * scenario.time_scale,
        goodput=measures.goodput(runs, slo),
        errors=1 - sum(int(run.samples.ok.sum()) for run in runs) / requests,
        few=measures.has_few_beyond(requests, 99.0),
        valid=all(run.facts.is_valid for run in runs),
        keeps_up=2 * sum(map(keeps_up, runs)) >= len(runs),
    )


def answered_rate(run: Run) -> float:
    """Successes per second in the last three quarters of the arrivals, without start and drain."""
    end = float(run.samples.scheduled_at.max())
    ended = run.samples.ended_at[run.samples.ok]
    watched = end * WATCHED
    return float(np.sum((ended > end - watched) & (ended <= end))) / watched if watched > 0 else 0.0


def keeps_up(run: Run) -> bool:
    """Whether no queue grew and nearly all requests succeeded."""
    return not any(queue_growth(run.samples)) and float(run.samples.ok.mean()) >= measures.ACHIEVED_LIMIT
