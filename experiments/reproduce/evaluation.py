"""The evaluation of a forwarding unit before three regions: what is asked, and what a measurement of each part holds.

Rule of this file: values and arithmetic only. Latencies are seconds of the source's time unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from experiments.campaign.crew import places_of
from experiments.campaign.scenario import Scenario
from experiments.campaign.shelf import load_scenario
from experiments.load.samples import Samples
from experiments.reproduce.medians import interval

SCENARIO: Scenario = load_scenario("regions")
PLACES = places_of(SCENARIO)
TRIPS = {region.name: region.rtt for region in SCENARIO.regions}
SERVICE = SCENARIO.regions[0].service
PATIENCE = 30.0
"""Seconds after which the source's platform answered 503 in the worker's stead."""

FIVE = ("random", "random, batch 10", "single-region", "round-robin", "region-round-robin")
OURS = "region-aware"


@dataclass(frozen=True, slots=True)
class Setup:
    """How much of everything. `…_scale` says how many seconds a second of the source takes in that part."""

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
    """Calls one after the other straight to a worker: seconds until the answer, and seconds that it worked."""

    worker: str
    region: str
    took: tuple[float, ...]
    worked: tuple[float, ...]

    @property
    def latency(self) -> float:
        """Median without the work."""
        return float(np.median(np.array(self.took) - np.array(self.worked)))

    @property
    def platform(self) -> float:
        """What is neither the way nor work."""
        return self.latency - TRIPS[self.region]


@dataclass(frozen=True, slots=True)
class Crowd:
    """So many at once before one worker: how many requests, failures, and latency of those that were answered."""

    at_once: int
    requests: int
    failed: int
    p50: float
    most: float


@dataclass(frozen=True, slots=True)
class Added:
    """Seconds of one visit's median: straight, through our unit, and through one that opens a connection each time."""

    direct: float
    unit: float
    fresh: float


@dataclass(frozen=True, slots=True)
class Load:
    """What one process of the unit forwards with nothing to wait for: requests per second, and processor seconds of
    each; None where that cannot be read."""

    rate: float
    cost: float | None


@dataclass(frozen=True, slots=True)
class Crush:
    """So many clients at once before a unit with so few descriptors. `ended` in measured seconds."""

    at_once: int
    requests: int
    descriptors: int
    failed: int
    ended: tuple[float, ...]

    @property
    def span(self) -> float:
        return max(self.ended, default=0.0)


@dataclass(frozen=True, slots=True)
class Lap:
    """All requests by one policy, in one block: seconds that they took together, and how many failed."""

    label: str
    block: int
    span: float
    failed: int


@dataclass(slots=True)
class Evaluation:
    """All that has been measured so far."""

    calm: list[Calm] = field(default_factory=list)
    machines: list[tuple[str, Samples]] = field(default_factory=list)
    crowds: list[Crowd] = field(default_factory=list)
    added: list[Added] = field(default_factory=list)
    load: Load | None = None
    crushes: list[Crush] = field(default_factory=list)
    laps: list[Lap] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def paired(seconds: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Median of differences and its interval, in milliseconds."""
    millis = [1e3 * one for one in seconds]
    return median(millis), interval(millis)


def spans_of(laps: Sequence[Lap]) -> dict[str, float]:
    """Seconds by policy, the median over blocks; in the order in which they came."""
    labels = dict.fromkeys(lap.label for lap in laps)
    return {label: median(lap.span for lap in laps if lap.label == label) for label in labels}
