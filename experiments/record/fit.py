"""What a recording says of the workers: round trip, service times, and how many they serve at once.

Rule of this file: pure functions, and every number says what it was taken from. How, for each endpoint:

- **service**, where the worker reports it (X-Worker-Service-Time), is what it reports. Else it is the time from sent to
  last byte, less the round trip, of the quarter of requests that found the fewest others there.
- **round trip** is the time outside the worker, latency − reported service: its median over requests that found the
  fewest others there. Without reports it is the quickest TCP handshake.
- **slots** is the most requests that were there while the median wait, or without reports the median stay, was no more
  than a tenth of a service time above that of requests which found nobody: one more has to wait for another to end. For
  a worker that was never busy it is a lower bound, so what is simulated with it is rather too slow than too fast.

A region gets one distribution, which of its workers' times divided by their means lies nearest (the distance of
Kolmogorov and Smirnov) among fixed, uniform, exponential and lognormal; how much faster one worker is than another is
its speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.load.samples import Floats, Ints
from experiments.record.reader import OK, Endpoint, Recording

FEW = 30
"""Successes of an endpoint with which nothing is said of its service times."""

HINDERED = 0.1
"""Part of a service time beyond which a request has waited for a slot. With c slots in use the first is free after 1 −
2^(−1/c) of one, at the median: a tenth finds up to six slots exactly, and somewhat too many of more."""

LEAST_SERVICE = 1e-5


@dataclass(frozen=True, slots=True)
class Shape:
    """A distribution of mean 1: `text` with a mean in seconds is a profile; `distance` from what was seen, 0 to 1."""

    kind: str
    spread: float
    distance: float

    def text(self, mean: float) -> str:
        """As `workers serve --service` takes it."""
        ms = mean * 1e3
        if self.kind == "uniform":
            return f"uniform:{ms * (1 - self.spread):.4f}-{ms * (1 + self.spread):.4f}ms"
        tail = f",{self.spread:.4f}" if self.kind == "lognormal" else ""
        return f"{self.kind}:{ms:.4f}ms{tail}"


@dataclass(frozen=True, slots=True)
class WorkerFit:
    """One endpoint. Seconds; `requests` successes were seen, `is_reported`: the worker said how long it served."""

    endpoint: Endpoint
    requests: int
    rtt: float
    service: Floats
    slots: int
    is_reported: bool

    @property
    def mean(self) -> float:
        """Seconds of service."""
        return float(self.service.mean())


@dataclass(frozen=True, slots=True)
class RegionFit:
    """The workers of a region as a scenario has them."""

    name: str
    workers: tuple[WorkerFit, ...]
    rtt: float
    mean: float
    shape: Shape
    slots: int

    @property
    def speed(self) -> tuple[float, ...]:
        """Of each worker, beside the region's mean."""
        return tuple(self.mean / worker.mean for worker in self.workers)

    @property
    def capacity(self) -> float:
        """Requests per second that all of them serve at most."""
        return sum(self.slots / worker.mean for worker in self.workers)

    def with_slots(self, slots: int | None) -> RegionFit:
        """The same with as many slots for each worker as somebody knows; None: nobody does."""
        return self if slots is None else replace(self, slots=slots)

    @property
    def requests(self) -> int:
        """Successes that this was taken from."""
        return sum(worker.requests for worker in self.workers)


def fit(recording: Recording) -> tuple[RegionFit, ...]:
    """Every region with an endpoint of which enough is known."""
    known: dict[str, list[WorkerFit]] = {region: [] for region in recording.regions}
    for number, rows in rows_by_endpoint(recording):
        worker = fit_worker(recording.endpoints[number], rows)
        if worker is not None:
            known[worker.endpoint.region].append(worker)
    return tuple(fit_region(region, tuple(workers)) for region, workers in known.items() if workers)


def rows_by_endpoint(recording: Recording) -> Iterator[tuple[int, NDArray[Any]]]:
    """The requests of each endpoint that has some, by arrival; all are sorted once."""
    rows = recording.rows[np.isfinite(recording.rows["service"]) & (recording.rows["endpoint"] >= 0)]
    rows = rows[np.argsort(rows["endpoint"], kind="stable")]
    numbers, begins = np.unique(rows["endpoint"], return_index=True)
    yield from zip(numbers.tolist(), np.split(rows, begins[1:]), strict=True)


def fit_worker(endpoint: Endpoint, rows: NDArray[Any]) -> WorkerFit | None:
    """One endpoint by its requests; None where too little was seen of it."""
    good = rows["end"] == OK
    if int(good.sum()) < FEW:
        return None
    sent = np.asarray(rows["at"] + rows["queue"] + np.nan_to_num(rows["connect"]), dtype=np.float64)
    latency = np.asarray(rows["service"], dtype=np.float64)
    reported = np.asarray(rows["reported"], dtype=np.float64)
    told = good & np.isfinite(reported) & (reported > 0)
    is_reported = int(told.sum()) >= FEW
    if is_reported:
        good = told
        rtt = max(0.0, float(np.percentile(latency[told] - reported[told], 5)))
    else:
        rtt = min(endpoint.connect, float(latency[good].min()))
    ahead = in_flight(sent, sent + latency - rtt)[good]  # there, and not on the way
    inside = latency[good] - rtt
    if is_reported:
        service = reported[good]
        waited = inside - service
        rtt += float(np.median(waited[ahead == ahead.min()]))
    else:
        unloaded = ahead <= np.percentile(ahead, 25)
        service, waited = np.maximum(inside[unloaded], LEAST_SERVICE), inside
    slots = unhindered(waited, ahead, float(service.mean()))
    return WorkerFit(endpoint, int(good.sum()), rtt, service, slots, is_reported)


def in_flight(begin: Floats, end: Floats) -> Ints:
    """How many others are under way when each begins, shape (n,)."""
    begun = np.searchsorted(np.sort(begin), begin, side="left")
    return np.asarray(begun - np.searchsorted(np.sort(end), begin, side="right"))


def unhindered(waited: Floats, ahead: Ints, service: float) -> int:
    """The most that were there, itself included, while the median of `waited` was hardly above that of the lonely."""
    alone = float(np.median(waited[ahead <= ahead.min(initial=0)]))
    most = 1
    order = np.argsort(ahead, kind="stable")
    found, begins = np.unique(ahead[order], return_index=True)
    for others, there in zip(found.tolist(), np.split(waited[order], begins[1:]), strict=True):
        if others < 1 or len(there) < FEW:
            continue
        if np.median(there) > alone + HINDERED * service:
            break
        most = others + 1
    return most


def fit_region(name: str, workers: tuple[WorkerFit, ...]) -> RegionFit:
    """What its workers have in common."""
    mean = float(np.mean([worker.mean for worker in workers]))
    times = np.concatenate([worker.service / worker.mean for worker in workers])
    rtt = float(np.median([worker.rtt for worker in workers]))
    slots = round(float(np.median([worker.slots for worker in workers])))
    return RegionFit(name, workers, rtt, mean, nearest(times), slots)


def nearest(times: Floats) -> Shape:
    """The distribution that lies nearest to `times`, whose mean is 1."""
    spread = float(times.std())
    if spread < 0.005:
        return Shape("fixed", 0.0, 0.0)
    half = min(1.0, spread * math.sqrt(3))
    sigma = math.sqrt(math.log(1 + spread**2))
    shapes: list[tuple[str, float, Callable[[Floats], Floats]]] = [
        ("uniform", half, lambda x: np.clip((x - 1 + half) / (2 * half), 0, 1)),
        ("exponential", 1.0, lambda x: 1 - np.exp(-x)),
        ("lognormal", sigma, lambda x: normal((np.log(np.maximum(x, 1e-12)) + sigma**2 / 2) / sigma)),
    ]
    ordered = np.sort(times)
    found = [Shape(kind, value, distance(ordered, law)) for kind, value, law in shapes]
    return min(found, key=lambda shape: shape.distance)


def distance(ordered: Floats, law: Callable[[Floats], Floats]) -> float:
    """Kolmogorov and Smirnov's, between a sample in order and a distribution function."""
    expected, count = law(ordered), len(ordered)
    steps = np.arange(count) / count
    return float(max(np.max(expected - steps), np.max(steps + 1 / count - expected)))


def normal(values: Floats) -> Floats:
    """The standard normal distribution function."""
    return np.asarray([0.5 * (1 + math.erf(value / math.sqrt(2))) for value in values])
