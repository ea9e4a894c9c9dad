"""The cases of `keepalive` with their theoretical latencies, and the statistics of what was measured. Pure.

A round trip is R = 2 × one way, S the service time. A new connection costs 1R for TCP, and 2R more with TLS 1.2 or 1R
with TLS 1.3; the request itself R + S: that is the bound. Computation on both ends is not in it: every case has a
counterpart whose worker has no delay, and its time plus the round trips shows whether that explains a miss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean, median

import numpy as np

from experiments.stats.comparison import average, typical

HANDSHAKES = {"1.2": 3, "1.3": 2}
"""Round trips before the first byte of a request, including TCP's."""

WITHIN = 0.05
"""Allowed relative distance of a median from theory."""

MOST_OVERSLEEP = 0.001
"""Bound on the p90 of oversleeping in seconds; beyond it other processes use the machine, and nothing is judged."""

SOURCE_HTTP2_RATIO = 1.09
"""The source's ratio of HTTP/2 to HTTP/1.1 for one client."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`one_way` and `service` in seconds; `blocks`, in each of which every case makes `calls` requests."""

    one_way: float = 0.015
    service: float = 0.020
    blocks: int = 24
    calls: int = 4


QUICK = Plan(blocks=4, calls=3)


@dataclass(frozen=True, slots=True)
class Case:
    """One way to call. `is_proxied`: through the balancer, which is near and keeps the connection to the worker.
    `is_near`: the worker has no network delay, so that only service and computation remain.
    """

    http: str
    tls: str
    keep_alive: bool
    is_proxied: bool = False
    is_near: bool = False

    @property
    def round_trips(self) -> tuple[int, int]:
        """Round trips of the first call and of later calls."""
        cold = HANDSHAKES[self.tls] + 1
        return cold, 1 if self.keep_alive else cold

    @property
    def near(self) -> Case:
        """The same case without network delay."""
        return replace(self, is_near=True)

    @property
    def name(self) -> str:
        kept = "keep-alive" if self.keep_alive else "none"
        near = ", near" if self.is_near else ""
        return f"HTTP/{self.http}, TLS {self.tls}, {'proxy' if self.is_proxied else kept}{near}"


DIRECT = tuple(
    Case(http, tls, kept) for tls, http, kept in product(("1.2", "1.3"), ("1.1", "2"), (True, False))
)
PROXIED = Case("1.1", "1.3", True, is_proxied=True)
CASES = (*DIRECT, PROXIED)


@dataclass(frozen=True, slots=True)
class Measurement:
    """Consecutive calls of a case in one block: seconds of the first and of each later one.

    `oversleep` is how late a short sleep ended just before, in seconds: the delay that the machine itself adds.
    """

    case: Case
    block: int
    first: float
    later: tuple[float, ...]
    oversleep: float = 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """Medians of a case in milliseconds with 95 % intervals (low, high). `…_theory` is round trips plus service;
    `…_expected` is round trips plus the time of the counterpart without delay.
    """

    case: Case
    first_theory: float
    first_expected: float
    first: float
    first_interval: tuple[float, float]
    later_theory: float
    later_expected: float
    later: float
    later_interval: tuple[float, float]

    @property
    def is_met(self) -> bool:
        """Whether both medians are within 5 % of theory."""
        return are_near((self.first, self.first_theory), (self.later, self.later_theory))

    @property
    def is_explained(self) -> bool:
        """Whether both medians are within 5 % of the round trips plus the counterpart's time."""
        return are_near((self.first, self.first_expected), (self.later, self.later_expected))


def are_near(*pairs: tuple[float, float]) -> bool:
    return all(abs(found / expected - 1) <= WITHIN for found, expected in pairs)


def network_delay(case: Case, plan: Plan) -> tuple[float, float]:
    """Seconds of network delay in the first call and in later calls."""
    first, later = case.round_trips
    return 2 * plan.one_way * first, 2 * plan.one_way * later


def rows_of(found: Sequence[Measurement], plan: Plan) -> list[Row]:
    """One row for each case that was measured with and without delay, in order."""
    of_case = {case: [one for one in found if one.case == case] for far in CASES for case in (far, far.near)}
    return [
        row_of(case, of_case[case], of_case[case.near], plan)
        for case in CASES
        if of_case[case] and of_case[case.near]
    ]


def row_of(case: Case, found: Sequence[Measurement], near: Sequence[Measurement], plan: Plan) -> Row:
    firsts, later = calls_of(found)
    near_firsts, near_later = calls_of(near)
    delays = [1e3 * seconds for seconds in network_delay(case, plan)]
    service = 1e3 * plan.service
    first, second = average(firsts), average(later)
    return Row(
        case,
        first_theory=delays[0] + service,
        first_expected=delays[0] + fmean(near_firsts),
        first=first.ratio,
        first_interval=(first.low, first.high),
        later_theory=delays[1] + service,
        later_expected=delays[1] + fmean(near_later),
        later=second.ratio,
        later_interval=(second.low, second.high),
    )


def calls_of(found: Sequence[Measurement]) -> tuple[list[float], list[float]]:
    """Milliseconds of each first call, and each median of the later calls."""
    return [1e3 * one.first for one in found], [1e3 * median(one.later) for one in found]


def http2_to_http1(found: Sequence[Measurement]) -> tuple[float, tuple[float, float]] | None:
    """Ratio of HTTP/2 to HTTP/1.1 for later calls with keep-alive, paired by block and TLS, with interval."""
    kept = {
        (one.block, one.case.tls, one.case.http): median(one.later)
        for one in found
        if one.case.keep_alive and not (one.case.is_proxied or one.case.is_near)
    }
    ratios = [
        took / kept[block, tls, "1.1"]
        for (block, tls, http), took in kept.items()
        if http == "2" and (block, tls, "1.1") in kept
    ]
    mean = typical(ratios)
    return (mean.ratio, (mean.low, mean.high)) if ratios else None


def oversleep_of(found: Sequence[Measurement]) -> float:
    """p90 of oversleeping in seconds."""
    return float(np.percentile([one.oversleep for one in found], 90)) if found else 0.0


def saved_by_keep_alive(rows: Sequence[Row], tls: str) -> float | None:
    """Milliseconds that keep-alive saves for each later call with HTTP/1.1; None if not measured."""
    later = {
        row.case.keep_alive: row.later for row in rows if row.case == Case("1.1", tls, row.case.keep_alive)
    }
    return later[False] - later[True] if len(later) == 2 else None
