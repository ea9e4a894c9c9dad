"""Schedule of faults, drawn from a seed. Pure.

Regions are struck one after the other, each by every fault once, in an order of its own. Over the regions each fault
strikes the first worker, the second, and both at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle
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
    by_region: list[dict[str, tuple[str, ...]]] = []
    for number, region in enumerate(REGIONS):
        both = tuple(worker for worker in WORKERS if worker.startswith(f"{region}-"))
        struck = (both[:1], both[1:], both)
        order = rng.sample(list(FAULTS), len(FAULTS))
        by_region.append({fault: struck[extents[fault][number]] for fault in order})
    chosen = [(fault, workers) for faults in by_region for fault, workers in faults.items()]
    if pace.episodes < len(chosen):  # a short storm has each fault once, cycling through the regions
        regions = cycle(by_region)
        chosen = [(fault, next(regions)[fault]) for fault in by_region[0]]
    starts = [pace.quiet + number * pace.every for number in range(pace.episodes)]
    return [
        Episode(at, at + pace.lasts, fault, workers)
        for at, (fault, workers) in zip(starts, chosen, strict=False)
    ]
