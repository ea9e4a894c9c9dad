"""Rates and quantiles of the last seconds, as differences of samples that only grow, and their history for the charts.

It does no I/O and reads no clock: it runs in a thread beside the event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from operator import add, sub
from typing import Any, NamedTuple

from balancer.control.admin.merge import merged, merged_health
from policies.facts import OutcomeKind
from policies.stats.load import Histogram

WINDOW = 10.0
"""Seconds that rates and quantiles cover: at 10 requests/s, 100 samples for a p99."""

HISTORY = 300
"""Points of the charts that are kept, one per snapshot: five minutes."""

PICKS = 8
"""Explained picks that the page shows, the newest."""

FAILURES = tuple(kind.value for kind in OutcomeKind if kind.is_failure)
"""Outcomes that count as failed attempts."""


class Counters(NamedTuple):
    """Counters of an endpoint, or of several together: at one instant, or between two."""

    attempts: int
    failed: int
    buckets: Sequence[int]


class Reading(NamedTuple):
    """Counters of the balancer at the instant `at`, in seconds of the balancer's clock."""

    at: float
    processes: frozenset[int]
    requests: int
    errors: int
    retried: int
    endpoints: dict[str, Counters]

    def since(self, before: Reading) -> dict[str, Counters]:
        """Return the differences from an earlier reading, without endpoints that were added since."""
        pairs = {name: (new, before.endpoints.get(name)) for name, new in self.endpoints.items()}
        return {
            name: Counters(
                new.attempts - old.attempts,
                new.failed - old.failed,
                [*map(sub, new.buckets, old.buckets)],
            )
            for name, (new, old) in pairs.items()
            if old is not None and old.attempts <= new.attempts
        }


class Window:
    """The readings of the last `WINDOW` seconds and the points of the charts."""

    def __init__(self) -> None:
        self._readings: deque[Reading] = deque()
        self.points: deque[dict[str, Any]] = deque(maxlen=HISTORY)

    def snapshot(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the snapshot that the samples of all processes make up, and add a point to the charts."""
        picks = sorted((pick for one in samples for pick in one.pop("picks")), key=lambda pick: pick["age"])
        processes = frozenset(one.pop("pid") for one in samples)
        buckets = buckets_of(samples)
        whole = merged(samples)
        now = reading_of(whole, processes, buckets)
        before = self._before(now)
        regions, total = add_recent(whole["endpoints"], now.since(before), now.at - before.at)
        recent = rates_between(before, now) | total
        self._add_point(now, recent, regions)
        return whole | {
            **merged_health(samples, whole),
            "processes": len(processes),
            "seconds": round(now.at - before.at, 3),
            "recent": recent,
            "regions": regions,
            "picks": picks[:PICKS],
            "point": self.points[-1],
        }

    def _before(self, now: Reading) -> Reading:
        """Return the newest reading that is `WINDOW` seconds old, else the oldest; `now` if there is none."""
        readings = self._readings
        if readings and readings[-1].processes != now.processes:
            readings.clear()  # the counts of a process are missing, or new
        while readings and readings[0].at < now.at - 1.5 * WINDOW:
            readings.popleft()
        while len(readings) > 1 and readings[1].at <= now.at - WINDOW:
            readings.popleft()
        readings.append(now)
        return readings[0]

    def _add_point(self, now: Reading, recent: dict[str, Any], regions: list[dict[str, Any]]) -> None:
        """Add a point. Its rates are those since the reading before, so that a burst keeps its shape."""
        last = self._readings[-2] if len(self._readings) > 1 else now
        since = rates_between(last, now)
        failed = sum(each.failed for each in now.since(last).values())
        self.points.append(
            {
                "at": round(now.at, 3),
                "rate": since["rate"],
                "failed": per_second(failed, now.at - last.at),
                "errors": since["errors"],
                "p50": recent["p50"],
                "p99": recent["p99"],
                "shares": {each["name"]: each["recent"]["share"] for each in regions},
            }
        )


def buckets_of(samples: Iterable[dict[str, Any]]) -> dict[str, Sequence[int]]:
    """Take the buckets out of the samples and return them by endpoint, added up over the processes."""
    total: dict[str, Sequence[int]] = {}
    for sample in samples:
        for each in sample["endpoints"]:
            buckets = each.pop("buckets")
            there = total.get(each["id"])
            total[each["id"]] = buckets if there is None else [*map(add, there, buckets)]
    return total


def reading_of(
    whole: dict[str, Any], processes: frozenset[int], buckets: dict[str, Sequence[int]]
) -> Reading:
    """Return the counters of the merged sample of some processes."""
    endpoints = {}
    for each in whole["endpoints"]:
        outcomes = each["outcomes"]
        failed = sum(outcomes[name] for name in FAILURES)
        endpoints[each["id"]] = Counters(sum(outcomes.values()), failed, buckets[each["id"]])
    errors = sum(whole["errors"].values())
    return Reading(whole["at"], processes, whole["requests"], errors, whole["retried"], endpoints)


def rates_between(before: Reading, now: Reading) -> dict[str, float | None]:
    """Return requests, own error responses and retries per second; None if no time has passed."""
    seconds = now.at - before.at
    return {
        "rate": per_second(now.requests - before.requests, seconds),
        "errors": per_second(now.errors - before.errors, seconds),
        "retries": per_second(now.retried - before.retried, seconds),
    }


def add_recent(
    endpoints: list[dict[str, Any]], since: dict[str, Counters], seconds: float
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Add `recent` to each endpoint. Returns the regions, in the order of their first endpoint, and the whole."""
    members: dict[str, list[dict[str, Any]]] = {}
    for each in endpoints:
        members.setdefault(each["region"], []).append(each)
    counters = {
        region: together([since[each["id"]] for each in those if each["id"] in since])
        for region, those in members.items()
    }
    total = together([one for one in counters.values() if one is not None])
    of = total.attempts if total is not None else 0
    for each in endpoints:
        each["recent"] = recent_of(since.get(each["id"]), seconds, of)
    regions = [
        {
            "name": region,
            "endpoints": len(those),
            "in_flight": sum(each["in_flight"] for each in those),
            "recent": recent_of(counters[region], seconds, of),
        }
        for region, those in members.items()
    ]
    whole = recent_of(total, seconds, of)
    return regions, {name: whole[name] for name in ("failed", "samples", "p50", "p99")}


def together(counters: list[Counters]) -> Counters | None:
    """Add counters up; None without any."""
    if not counters:
        return None
    return Counters(
        sum(one.attempts for one in counters),
        sum(one.failed for one in counters),
        [*map(sum, zip(*(one.buckets for one in counters), strict=True))],
    )


def recent_of(counters: Counters | None, seconds: float, of: int) -> dict[str, Any]:
    """Return attempts and failed ones per second, their share `of` all, and quantiles of latency in seconds."""
    if counters is None:
        counters, seconds = Counters(0, 0, ()), 0.0
    histogram = Histogram.of(list(counters.buckets), 0.0)
    samples = histogram.count
    return {
        "rate": per_second(counters.attempts, seconds),
        "failed": per_second(counters.failed, seconds),
        "share": round(counters.attempts / of, 4) if of else None,
        "samples": samples,
        "p50": histogram.quantile(0.5) if samples else None,
        "p99": histogram.quantile(0.99) if samples else None,
    }


def per_second(number: int, seconds: float) -> float | None:
    """Return a rate; None if no time has passed."""
    return round(number / seconds, 3) if seconds > 0 else None
