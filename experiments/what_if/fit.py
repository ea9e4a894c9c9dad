"""Estimate round trip, service times and slots of workers from a recording. Pure functions.

For each endpoint:

- **service**: as reported by the worker (X-Worker-Service-Time). Otherwise the time from sending to the last byte, less
  the round trip, of the quarter of requests with the fewest others in flight.
- **round trip**: the time outside the worker, latency − reported service: its median over requests with the fewest
  others in flight. Without reports, the quickest TCP handshake.
- **slots**: the most requests in flight while the median wait, or without reports the median stay, was at most a tenth
  of a service time above that of requests that found none: one more has to wait for another to end. At least as many as
  served at a time on average (Little's law). For a worker that was never busy it is a lower bound, so a simulation with
  it is rather too slow than too fast.

A region gets one distribution, the nearest by Kolmogorov-Smirnov distance to its workers' times divided by their means,
among fixed, uniform, exponential and lognormal; a worker's speed is relative to the region's mean.

Only within a span under one policy do the recorded figures belong to that policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.recorded.recording import OK, RecordedEndpoint, Recording
from experiments.run_data import Floats, Ints


def longest_span(recording: Recording) -> tuple[Recording, str]:
    """The part under the policy that was in force for longest without a change, and a sentence about what is left out.

    The sentence is empty if the policy did not change.
    """
    if not recording.changes:
        return recording, ""
    at, whole = recording.instants, float(recording.instants[-1])
    begins = [0.0, *(min(max(0.0, when), whole) for when, _ in recording.changes)]
    ends = [*begins[1:], np.inf]
    policies = [recording.policy, *(policy for _, policy in recording.changes)]
    spans = list(zip(begins, ends, policies, strict=True))
    begin, end, policy = max(spans, key=lambda span: min(span[1], whole) - span[0])
    rows = recording.rows[(at >= begin) & (at < end)].copy()
    if not len(rows):
        return recording, ""
    first = float(rows["at"][0])
    rows["at"] -= first
    count = len(recording.changes)
    words = (
        f"The policy changed {count} time{'s' * (count != 1)} during the recording: only the requests from "
        f"{begin:.0f} s to {min(end, whole):.0f} s are used, all under {policy['name']}."
    )
    return replace(recording, rows=rows, policy=policy, began=recording.began + first, changes=()), words


MIN_SUCCESSES = 30
"""Least successes of an endpoint to estimate its service times."""

WAIT_LIMIT = 0.1
"""Wait as a fraction of a service time beyond which a request has waited for a slot. With c slots in use the first is
free after 1 − 2^(−1/c) of a service time, at the median: a tenth finds up to six slots exactly, and somewhat too many
of more.
"""

LEAST_SERVICE = 1e-5


@dataclass(frozen=True, slots=True)
class Shape:
    """Distribution with mean 1; `distance` is its Kolmogorov-Smirnov distance from the observed times, 0 to 1."""

    kind: str
    spread: float
    distance: float

    def text(self, mean: float) -> str:
        """The distribution with a mean in seconds, as `workers serve --service` takes it."""
        ms = mean * 1e3
        if self.kind == "uniform":
            return f"uniform:{ms * (1 - self.spread):.4f}-{ms * (1 + self.spread):.4f}ms"
        tail = f",{self.spread:.4f}" if self.kind == "lognormal" else ""
        return f"{self.kind}:{ms:.4f}ms{tail}"


@dataclass(frozen=True, slots=True)
class WorkerFit:
    """Estimate for one endpoint, from `requests` successes. Seconds; `is_reported`: by the worker itself."""

    endpoint: RecordedEndpoint
    requests: int
    rtt: float
    service: Floats
    slots: int
    is_reported: bool

    @property
    def mean(self) -> float:
        """Mean service time in seconds."""
        return float(self.service.mean())


@dataclass(frozen=True, slots=True)
class RegionFit:
    """Estimate for the workers of a region, as a scenario has them."""

    name: str
    workers: tuple[WorkerFit, ...]
    rtt: float
    mean: float
    shape: Shape
    slots: int

    @property
    def speed(self) -> tuple[float, ...]:
        """Speed of each worker relative to the region's mean."""
        return tuple(self.mean / worker.mean for worker in self.workers)

    @property
    def capacity(self) -> float:
        """Maximum throughput of all workers in requests per second."""
        return sum(self.slots / worker.mean for worker in self.workers)

    @property
    def requests(self) -> int:
        """Number of successes used."""
        return sum(worker.requests for worker in self.workers)


def fit(recording: Recording) -> tuple[RegionFit, ...]:
    """Estimate every region with an endpoint of which enough is known."""
    known: dict[str, list[WorkerFit]] = {region: [] for region in recording.regions}
    for number, rows in rows_by_endpoint(recording):
        worker = fit_worker(recording.endpoints[number], rows)
        if worker is not None:
            known[worker.endpoint.region].append(worker)
    return tuple(fit_region(region, tuple(workers)) for region, workers in known.items() if workers)


def rows_by_endpoint(recording: Recording) -> Iterator[tuple[int, NDArray[Any]]]:
    """Requests by endpoint, in order of arrival; all are sorted once."""
    rows = recording.rows[np.isfinite(recording.rows["service"]) & (recording.rows["endpoint"] >= 0)]
    rows = rows[np.argsort(rows["endpoint"], kind="stable")]
    numbers, begins = np.unique(rows["endpoint"], return_index=True)
    yield from zip(numbers.tolist(), np.split(rows, begins[1:]), strict=True)


def fit_worker(endpoint: RecordedEndpoint, rows: NDArray[Any]) -> WorkerFit | None:
    """Estimate one endpoint from its requests; None if there are too few."""
    good = rows["end"] == OK
    if int(good.sum()) < MIN_SUCCESSES:
        return None
    sent = np.asarray(rows["at"] + rows["queue"] + np.nan_to_num(rows["connect"]), dtype=np.float64)
    latency = np.asarray(rows["service"], dtype=np.float64)
    reported = np.asarray(rows["reported"], dtype=np.float64)
    known = good & np.isfinite(reported) & (reported > 0)
    is_reported = int(known.sum()) >= MIN_SUCCESSES
    if is_reported:
        good = known
        rtt = max(0.0, float(np.percentile(latency[known] - reported[known], 5)))
    else:
        rtt = min(endpoint.connect, float(latency[good].min()))
    ahead = in_flight(sent, sent + latency - rtt)[good]  # at the worker, not on the network
    inside = latency[good] - rtt
    if is_reported:
        service = reported[good]
        waited = inside - service
        rtt += float(np.median(waited[ahead == ahead.min()]))
    else:
        unloaded = ahead <= np.percentile(ahead, 25)
        service, waited = np.maximum(inside[unloaded], LEAST_SERVICE), inside
    span = float(sent.max() - sent.min())
    served_at_once = math.ceil(len(rows) * float(service.mean()) / span) if span else 1
    slots = max(served_at_once, estimated_slots(waited, ahead, float(service.mean())))
    return WorkerFit(endpoint, int(good.sum()), rtt, service, slots, is_reported)


def in_flight(begin: Floats, end: Floats) -> Ints:
    """Number of other requests in flight when each begins, shape (n,)."""
    begun = np.searchsorted(np.sort(begin), begin, side="left")
    return np.asarray(begun - np.searchsorted(np.sort(end), begin, side="right"))


def estimated_slots(waited: Floats, ahead: Ints, service: float) -> int:
    """Largest number in flight, itself included, with a median of `waited` near that of unhindered requests."""
    alone = float(np.median(waited[ahead <= ahead.min(initial=0)]))
    most = 1
    order = np.argsort(ahead, kind="stable")
    found, begins = np.unique(ahead[order], return_index=True)
    for others, there in zip(found.tolist(), np.split(waited[order], begins[1:]), strict=True):
        if others < 1 or len(there) < MIN_SUCCESSES:
            continue
        if np.median(there) > alone + WAIT_LIMIT * service:
            break
        most = others + 1
    return most


def fit_region(name: str, workers: tuple[WorkerFit, ...]) -> RegionFit:
    """Combine the estimates of a region's workers."""
    mean = float(np.mean([worker.mean for worker in workers]))
    times = np.concatenate([worker.service / worker.mean for worker in workers])
    rtt = float(np.median([worker.rtt for worker in workers]))
    slots = round(float(np.median([worker.slots for worker in workers])))
    return RegionFit(name, workers, rtt, mean, nearest(times), slots)


def nearest(times: Floats) -> Shape:
    """Distribution nearest to `times`, whose mean is 1."""
    spread = float(times.std())
    if spread < 0.005:
        return Shape("fixed", 0.0, 0.0)
    half = min(1.0, spread * math.sqrt(3))
    sigma = math.sqrt(math.log(1 + spread**2))
    normal = np.vectorize(NormalDist(-(sigma**2) / 2, sigma).cdf)
    shapes: list[tuple[str, float, Callable[[Floats], Floats]]] = [
        ("uniform", half, lambda x: np.clip((x - 1 + half) / (2 * half), 0, 1)),
        ("exponential", 1.0, lambda x: 1 - np.exp(-x)),
        ("lognormal", sigma, lambda x: normal(np.log(np.maximum(x, 1e-12)))),
    ]
    ordered = np.sort(times)
    found = [Shape(kind, value, distance(ordered, law)) for kind, value, law in shapes]
    return min(found, key=lambda shape: shape.distance)


def distance(ordered: Floats, law: Callable[[Floats], Floats]) -> float:
    """Kolmogorov-Smirnov distance between a sorted sample and a distribution function."""
    expected, count = law(ordered), len(ordered)
    steps = np.arange(count) / count
    return float(max(np.max(expected - steps), np.max(steps + 1 / count - expected)))
