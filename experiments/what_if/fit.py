"""Estimate round trip, service times and slots of workers from a recording. Pure functions.

For each endpoint:

- **service**: as reported by the worker (X-Worker-Service-Time). Otherwise the time from sending, or from the instant
  at which one of the worker's slots was free for it, to the last byte, less the round trip.
- **round trip**: the time outside the worker, latency − reported service: its median over requests with the fewest
  others in flight. Without reports, the quickest TCP handshake.
- **slots**: the fewest that explain the waits, in order of arrival (`estimated_slots`). For a worker that was never
  busy it is a lower bound, and a simulation with it rather too slow than too fast.

A region gets one distribution, the nearest by Kolmogorov-Smirnov distance to its workers' times divided by their means,
among fixed, uniform, exponential and lognormal; a worker's speed is relative to the region's mean.

Only within a span under one policy do the recorded figures belong to that policy.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.recorded.recording import ENDS, OK, RecordedEndpoint, Recording
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

MOST_TRACED = 10_000
"""Requests of an endpoint, the busiest in a row, from which its slots are estimated."""

PERMUTATIONS = 10
"""Random orders of the service times that are tried."""

LEAST_EXCESS, MOST_EXCESS = 0.001, 0.05
"""Bounds on the part by which the mean time may then be longer; between them, two standard deviations decide."""

LEAST_SERVICE = 1e-5
ERROR_STATUS = ENDS.index("error_status")


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


def fit(recording: Recording, slots: int | None = None) -> tuple[RegionFit, ...]:
    """Estimate every region with an endpoint of which enough is known; `slots` of a worker if known."""
    known: dict[str, list[WorkerFit]] = {region: [] for region in recording.regions}
    for number, rows in rows_by_endpoint(recording):
        worker = fit_worker(recording.endpoints[number], rows, slots)
        if worker is not None:
            known[worker.endpoint.region].append(worker)
    return tuple(fit_region(region, tuple(workers)) for region, workers in known.items() if workers)


def rows_by_endpoint(recording: Recording) -> Iterator[tuple[int, NDArray[Any]]]:
    """Requests by endpoint, in order of arrival; all are sorted once."""
    rows = recording.rows[np.isfinite(recording.rows["service"]) & (recording.rows["endpoint"] >= 0)]
    rows = rows[np.argsort(rows["endpoint"], kind="stable")]
    numbers, begins = np.unique(rows["endpoint"], return_index=True)
    yield from zip(numbers.tolist(), np.split(rows, begins[1:]), strict=True)


def fit_worker(endpoint: RecordedEndpoint, rows: NDArray[Any], slots: int | None = None) -> WorkerFit | None:
    """Estimate one endpoint from its requests, its slots unless given; None if there are too few."""
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
        ahead = in_flight(sent, sent + latency - rtt)[good]  # at the worker, not on the network
        waited = latency[good] - rtt - reported[good]
        rtt += float(np.median(waited[ahead == ahead.min()]))
    else:
        rtt = min(endpoint.connect, float(latency[good].min()))
    done = good | (rows["end"] == ERROR_STATUS)  # what timed out may not have taken a slot
    order = np.flatnonzero(done)[np.argsort(sent[done], kind="stable")]
    begin, end = sent[order], (sent + latency - rtt)[order]
    if slots is None:
        part = busiest(begin)
        slots = estimated_slots(begin[part], end[part], reported[order][part] if is_reported else None)
    service = reported[good] if is_reported else served_in_order(begin, end, slots)[good[order]]
    return WorkerFit(endpoint, int(good.sum()), rtt, service, slots, is_reported)


def busiest(begin: Floats) -> slice:
    """Return the `MOST_TRACED` requests in a row that arrived in the shortest time."""
    if len(begin) <= MOST_TRACED:
        return slice(None)
    first = int(np.argmin(begin[MOST_TRACED:] - begin[:-MOST_TRACED]))
    return slice(first, first + MOST_TRACED)


def in_flight(begin: Floats, end: Floats) -> Ints:
    """Number of other requests in flight when each begins, shape (n,)."""
    begun = np.searchsorted(np.sort(begin), begin, side="left")
    return np.asarray(begun - np.searchsorted(np.sort(end), begin, side="right"))


def served_in_order(begin: Floats, end: Floats, slots: int) -> Floats:
    """Return the service times of requests that are served in order of arrival by `slots`."""
    latest = [-math.inf] * slots  # ends of earlier requests: the first of these frees a slot
    times = []
    for came, left in zip(begin.tolist(), end.tolist(), strict=True):
        times.append(max(left - max(came, latest[0]), LEAST_SERVICE))  # less: it did not wait
        heapq.heappushpop(latest, left)
    return np.array(times)


def queued(begin: Floats, service: Floats, slots: int) -> Floats:
    """Return the times from arrival to end, waiting included, if requests are served in order by `slots`."""
    frees = [-math.inf] * slots
    ends = []
    for came, takes in zip(begin.tolist(), service.tolist(), strict=True):
        ends.append(max(came, frees[0]) + takes)
        heapq.heapreplace(frees, ends[-1])
    return np.array(ends) - begin


def estimated_slots(begin: Floats, end: Floats, reported: Floats | None) -> int:
    """Return the fewest slots that explain the times from arrival to the last byte.

    If too few are assumed, the requests that wait begin too late: their service times are shorter than reported, or
    shorter than those of requests that did not wait. Without reports the latter is also true of a worker that serves
    all requests at once, each of them slower. Then slots are enough, too, if the same service times in random order
    (permuted) lead to times that are on average no longer than the recorded ones.
    """
    ahead = in_flight(begin, end)
    order = np.argsort(ahead, kind="stable")
    found = ahead[order]
    stays = np.maximum(end - begin, LEAST_SERVICE)
    rng = np.random.default_rng(1)

    def is_enough(slots: int) -> bool:
        free = max(MIN_SUCCESSES, int(np.searchsorted(found, slots)))
        alone, waited = order[:free], order[free:]
        served = served_in_order(begin, end, slots)
        more = served[waited] - (stays[alone].mean() if reported is None else reported[waited])
        more = more[np.isfinite(more)]
        if len(more) < MIN_SUCCESSES:
            return True
        error = error_of(more) if reported is not None else math.hypot(error_of(more), error_of(stays[alone]))
        if more.mean() >= -2 * error or reported is not None:
            return bool(more.mean() >= -2 * error)
        ratios = [
            queued(begin, rng.permutation(served), slots).mean() / stays.mean() for _ in range(PERMUTATIONS)
        ]
        return bool(np.mean(ratios) - 1 <= min(max(2 * np.std(ratios, ddof=1), LEAST_EXCESS), MOST_EXCESS))

    return 1 + bisect_left(range(1, int(found[-1]) + 2), True, key=is_enough)


def error_of(sample: Floats) -> float:
    """Standard error of a mean."""
    return float(sample.std()) / math.sqrt(len(sample))


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
