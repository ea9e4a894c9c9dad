"""Schedule of faults, drawn from a seed. Pure.

Regions are struck one after the other, each by every fault once, in an order of its own. Over the regions each fault
strikes the first worker, the second, and both at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from random import Random

from benchmarks.harness.verified.messages import REGIONS, WORKERS

KILLED, STOPPED = "killed", "stopped"
FAULTS = {
    KILLED: "SIGKILL, and started again",
    STOPPED: "SIGSTOP, and SIGCONT",
    "cut": "responses end in a reset at a random byte",
    "busy": "503 at once",
    "drip": "responses take a second, piece by piece",
    "fickle": "closes idle connections, some just after a request was sent",
}


@dataclass(frozen=True, slots=True)
class Episode:
    """One fault from `at` to `until`, in seconds from the first request."""

    at: float
    until: float
    fault: str
    workers: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.at:5.1f} s  {' and '.join(self.workers)}: {FAULTS[self.fault]}"


@dataclass(frozen=True, slots=True)
class Pace:
    """Durations in seconds; `rate` in requests per second, `posts` the share of POSTs."""

    rate: float = 500.0
    posts: float = 0.2
    quiet: float = 20.0
    """Quiet period at the start, in which the reference latency is measured."""

    storm: float = 120.0
    episodes: int = 18
    lasts: float = 2.5

    @property
    def seconds(self) -> float:
        return self.quiet + self.storm

    @property
    def every(self) -> float:
        """Seconds from the start of a fault to that of the next."""
        return self.storm / self.episodes


QUICK = Pace(rate=150.0, quiet=3.0, storm=15.0, episodes=6, lasts=1.2)


def schedule(pace: Pace, seed: int) -> list[Episode]:
    """Episodes of the storm of this seed."""
    rng = Random(f"{seed}:storm")
    extents = {fault: rng.sample(range(len(REGIONS)), len(REGIONS)) for fault in FAULTS}
    order = [
        (fault, victims(region, extents[fault][number]))
        for number, region in enumerate(REGIONS)
        for fault in rng.sample(list(FAULTS), len(FAULTS))
    ]
    # A short storm has each fault once, cycling through the regions.
    chosen = order if pace.episodes >= len(order) else one_of_each(order)
    starts = [pace.quiet + number * pace.every for number in range(pace.episodes)]
    return [
        Episode(at, at + pace.lasts, fault, workers)
        for at, (fault, workers) in zip(starts, chosen, strict=False)
    ]


def one_of_each(order: list[tuple[str, tuple[str, ...]]]) -> list[tuple[str, tuple[str, ...]]]:
    """Every fault once, regions in turn."""
    found: dict[str, tuple[str, ...]] = {}
    per_region = len(FAULTS)
    for number, fault in enumerate(islice(dict(order), per_region)):
        first = number % len(REGIONS) * per_region
        found[fault] = dict(order[first : first + per_region])[fault]
    return list(found.items())


def victims(region: str, extent: int) -> tuple[str, ...]:
    """Workers of a region that a fault strikes: the first, the second, or both."""
    both = tuple(worker for worker in WORKERS if worker.startswith(f"{region}-"))
    return both if extent == len(both) else (both[extent],)
