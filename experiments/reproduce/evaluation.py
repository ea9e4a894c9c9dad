"""Data of the evaluation of a forwarding balancer in front of three regions. Values and arithmetic only.

Latencies are in seconds of the source's time unless stated otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from experiments.reproduce.medians import interval
from experiments.scenario.files import load_scenario
from experiments.scenario.places import places_of
from experiments.scenario.scenario import Scenario
from experiments.stats.samples import Samples

SCENARIO: Scenario = load_scenario("regions")
PLACES = places_of(SCENARIO)
TRIPS = {region.name: region.rtt for region in SCENARIO.regions}
SERVICE = SCENARIO.regions[0].service
PATIENCE = 30.0
"""Seconds after which the source's platform answered 503 instead of the worker."""

FIVE = ("random", "random, batch 10", "single-region", "round-robin", "region-round-robin")
OURS = "region-aware"


@dataclass(frozen=True, slots=True)
class Setup:
    """Amounts of each part. `…_scale` is the measured seconds per second of the source in that part."""

    calls: int = 20
    batch: int = 100
    requests: int = 1500
    crowds: tuple[int, ...] = (100, 500, 1000, 1500)
    crowd_requests: int = 3000
    crowd_scale: float = 0.5
    blocks: int = 30
    each: int = 6
    forwarded: int = 12_000
    crushes: tuple[tuple[int, int], ...] = ((1000, 10_000), (10_000, 10_000))
    descriptors: int = 256
    crush_scale: float = 0.2
    labels: tuple[str, ...] = (*FIVE, OURS, "latency-weighted", "least-in-flight")
    policy_requests: int = 1500
    policy_blocks: int = 2
    policy_scale: float = 0.2


QUICK = Setup(
    calls=2,
    batch=10,
    requests=40,
    crowds=(20, 60),
    crowd_requests=180,
    crowd_scale=0.2,
    blocks=2,
    each=2,
    forwarded=1000,
    crushes=((60, 300), (300, 300)),
    descriptors=64,
    crush_scale=0.1,
    labels=("single-region", OURS),
    policy_requests=150,
    policy_blocks=1,
    policy_scale=0.1,
)


@dataclass(frozen=True, slots=True)
class Calm:
    """Consecutive calls directly to a worker: response times and service times in seconds."""

    worker: str
    region: str
    took: tuple[float, ...]
    worked: tuple[float, ...]

    @property
    def latency(self) -> float:
        """Median response time less service time."""
        return float(np.median(np.array(self.took) - np.array(self.worked)))

    @property
    def platform(self) -> float:
        """Latency beyond the emulated network delay."""
        return self.latency - TRIPS[self.region]


@dataclass(frozen=True, slots=True)
class Crowd:
    """Closed loop of `at_once` requests to one worker: requests, failures, and latency of successes."""

    at_once: int
    requests: int
    failed: int
    p50: float
    most: float


@dataclass(frozen=True, slots=True)
class Added:
    """Median seconds of one visit: direct, through the balancer, and through one without keep-alive."""

    direct: float
    unit: float
    fresh: float


@dataclass(frozen=True, slots=True)
class Load:
    """Throughput of one balancer process with an immediate worker in requests per second, and CPU seconds per request;
    None if unknown.
    """

    rate: float
    cost: float | None


@dataclass(frozen=True, slots=True)
class Overload:
    """`at_once` clients in front of a balancer with `descriptors` open files. `ended` in measured seconds."""

    at_once: int
    requests: int
    descriptors: int
    failed: int
    ended: tuple[float, ...]

    @property
    def span(self) -> float:
        return max(self.ended, default=0.0)


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """All requests with one policy in one block: total seconds and failures."""

    label: str
    block: int
    span: float
    failed: int


@dataclass(slots=True)
class Evaluation:
    """Results of the parts measured so far; empty where a part was not measured."""

    calm: list[Calm] = field(default_factory=list)
    machines: list[tuple[str, Samples]] = field(default_factory=list)
    crowds: list[Crowd] = field(default_factory=list)
    added: list[Added] = field(default_factory=list)
    load: Load | None = None
    crushes: list[Overload] = field(default_factory=list)
    policy_runs: list[PolicyRun] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def paired(seconds: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Median of differences and its interval, in milliseconds."""
    millis = [1e3 * one for one in seconds]
    return median(millis), interval(millis)


def spans_of(policy_runs: Sequence[PolicyRun]) -> dict[str, float]:
    """Median seconds over blocks by policy, in order of first appearance."""
    labels = dict.fromkeys(run.label for run in policy_runs)
    return {label: median(run.span for run in policy_runs if run.label == label) for label in labels}
