"""Parts of `regions` and their results: a balancer in front of three regions. Values and arithmetic only.

Latencies are in seconds of the source's time unless stated otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from experiments.run_data import Samples
from experiments.scenario.files import load_scenario
from experiments.scenario.places import places_of
from experiments.scenario.scenario import Scenario

SCENARIO: Scenario = load_scenario("regions")
PLACES = places_of(SCENARIO)
ROUND_TRIPS = {region.name: region.rtt for region in SCENARIO.regions}
SERVICE = SCENARIO.regions[0].service
PATIENCE = 30.0
"""Seconds after which the source's platform answered 503 instead of the worker."""

SOURCE_POLICIES = ("random", "random (batch 10)", "single-region", "round-robin", "region-round-robin")
OURS = "region-aware"


@dataclass(frozen=True, slots=True)
class RegionsPlan:
    """Amounts of each part. `…_scale` is the measured seconds per second of the source in that part.

    `concurrency`: requests at once before one worker; `overloads`: clients at once and requests before a balancer that
    may open `descriptors` files.
    """

    calls: int = 20
    batch: int = 100
    requests: int = 1500
    concurrency: tuple[int, ...] = (100, 500, 1000, 1500)
    concurrency_requests: int = 3000
    concurrency_scale: float = 0.5
    added_blocks: int = 30
    added_calls: int = 6
    forwarded: int = 12_000
    overloads: tuple[tuple[int, int], ...] = ((1000, 10_000), (10_000, 10_000))
    descriptors: int = 256
    overload_scale: float = 0.2
    policies: tuple[str, ...] = (*SOURCE_POLICIES, OURS, "latency-weighted", "least-in-flight")
    policy_requests: int = 1500
    policy_blocks: int = 2
    policy_scale: float = 0.2


QUICK = RegionsPlan(
    calls=2,
    batch=10,
    requests=40,
    concurrency=(20, 60),
    concurrency_requests=180,
    concurrency_scale=0.2,
    added_blocks=2,
    added_calls=2,
    forwarded=1000,
    overloads=((60, 300), (300, 300)),
    descriptors=64,
    overload_scale=0.1,
    policies=("single-region", OURS),
    policy_requests=150,
    policy_blocks=1,
    policy_scale=0.1,
)


@dataclass(frozen=True, slots=True)
class Unloaded:
    """Consecutive calls directly to a worker: response times and service times in seconds."""

    worker: str
    region: str
    took: tuple[float, ...]
    service: tuple[float, ...]

    @property
    def latency(self) -> float:
        """Median response time less service time."""
        return float(np.median(np.array(self.took) - np.array(self.service)))

    @property
    def platform(self) -> float:
        """Latency beyond the emulated network delay."""
        return self.latency - ROUND_TRIPS[self.region]


@dataclass(frozen=True, slots=True)
class Concurrency:
    """Closed loop of `at_once` requests to one worker: requests, failures, and latency of successes."""

    at_once: int
    requests: int
    failed: int
    p50: float
    max: float


@dataclass(frozen=True, slots=True)
class AddedLatency:
    """Median seconds in one block: direct, through the balancer, and through one without keep-alive."""

    direct: float
    proxy: float
    without_keep_alive: float


@dataclass(frozen=True, slots=True)
class Throughput:
    """Requests per second of one balancer process with an immediate worker, and CPU seconds per request; None if
    unknown.
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

    policy: str
    block: int
    span: float
    failed: int


@dataclass(slots=True)
class Results:
    """Results of the parts measured so far; empty where a part was not measured."""

    unloaded: list[Unloaded] = field(default_factory=list)
    workers: list[tuple[str, Samples]] = field(default_factory=list)
    concurrency: list[Concurrency] = field(default_factory=list)
    added: list[AddedLatency] = field(default_factory=list)
    throughput: Throughput | None = None
    overloads: list[Overload] = field(default_factory=list)
    policy_runs: list[PolicyRun] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def policy_spans(policy_runs: Sequence[PolicyRun]) -> dict[str, float]:
    """Median seconds over blocks by policy, in order of first appearance."""
    policies = dict.fromkeys(run.policy for run in policy_runs)
    return {policy: median(run.span for run in policy_runs if run.policy == policy) for policy in policies}
