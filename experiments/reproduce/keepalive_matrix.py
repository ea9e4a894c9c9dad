"""The eight cells of the keep-alive matrix with their theoretical latencies. Pure.

A round trip is R = 2 × one way, S the service time. A new connection costs 1R for TCP, and 2R more with TLS 1.2 or 1R
with TLS 1.3; the request itself R + S: that is the bound. Computation on both ends is not in it: every cell has a
counterpart whose worker has no delay, and its time plus the round trips shows whether that explains a miss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import median

import numpy as np

from experiments.reproduce.medians import interval

HANDSHAKES = {"1.2": 3, "1.3": 2}
"""Round trips before the first byte of a request, including TCP's."""

WITHIN = 0.05
"""Allowed relative distance of a median from theory."""

MOST_LAG = 0.001
"""Bound on the p90 of oversleeping in seconds; beyond it other processes use the machine, and nothing is judged."""

SLOWER = 1.09
"""The source's ratio of HTTP/2 to HTTP/1.1 for one client."""


@dataclass(frozen=True, slots=True)
class Setup:
    """`one_way` and `service` in seconds; `visits` of every cell, each with `calls` requests."""

    one_way: float = 0.015
    service: float = 0.020
    visits: int = 24
    calls: int = 4


QUICK = Setup(visits=4, calls=3)


@dataclass(frozen=True, slots=True)
class Cell:
    """One way to call. `by_unit`: through the balancer, which is near and keeps the connection to the worker."""

    http: str
    tls: str
    keep_alive: bool
    by_unit: bool = False
    is_near: bool = False
    """Whether the worker has no network delay, so that only service and computation remain."""

    @property
    def trips(self) -> tuple[int, int]:
        """Round trips of the first call and of later calls."""
        cold = HANDSHAKES[self.tls] + 1
        return cold, 1 if self.keep_alive else cold

    @property
    def twin(self) -> Cell:
        """The same cell without network delay."""
        return replace(self, is_near=True)

    @property
    def name(self) -> str:
        kept = "keep-alive" if self.keep_alive else "none"
        near = ", near" if self.is_near else ""
        return f"HTTP/{self.http}, TLS {self.tls}, {'unit' if self.by_unit else kept}{near}"


CELLS = tuple(
    Cell(http, tls, kept) for tls, http, kept in product(("1.2", "1.3"), ("1.1", "2"), (True, False))
)
UNIT = Cell("1.1", "1.3", True, by_unit=True)


@dataclass(frozen=True, slots=True)
class Visit:
    """Consecutive calls: seconds of the first and of each later one.

    `lag` is how late a short sleep ended just before, in seconds: the delay that the machine itself adds.
    """

    cell: Cell
    block: int
    first: float
    later: tuple[float, ...]
    lag: float = 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """Medians of a cell in milliseconds with 95 % intervals (low, high). `…_theory` is round trips plus service;
    `…_expected` is round trips plus the time of the counterpart without delay.
    """

    cell: Cell
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


def travelled(cell: Cell, setup: Setup) -> tuple[float, float]:
    """Seconds of network delay in the first call and in later calls."""
    first, later = cell.trips
    return 2 * setup.one_way * first, 2 * setup.one_way * later


def rows_of(visits: Sequence[Visit], setup: Setup) -> list[Row]:
    """One row for each cell that was visited with and without delay, in the order of the matrix."""
    by_cell = {
        cell: [one for one in visits if one.cell == cell]
        for away in (*CELLS, UNIT)
        for cell in (away, away.twin)
    }
    return [
        row_of(cell, by_cell[cell], by_cell[cell.twin], setup)
        for cell in (*CELLS, UNIT)
        if by_cell[cell] and by_cell[cell.twin]
    ]


def row_of(cell: Cell, visits: Sequence[Visit], near: Sequence[Visit], setup: Setup) -> Row:
    firsts, later = calls_of(visits)
    near_firsts, near_later = calls_of(near)
    away = [1e3 * seconds for seconds in travelled(cell, setup)]
    served = 1e3 * setup.service
    return Row(
        cell,
        first_theory=away[0] + served,
        first_expected=away[0] + median(near_firsts),
        first=median(firsts),
        first_interval=interval(firsts),
        later_theory=away[1] + served,
        later_expected=away[1] + median(near_later),
        later=median(later),
        later_interval=interval(later),
    )


def calls_of(visits: Sequence[Visit]) -> tuple[list[float], list[float]]:
    """Milliseconds of every visit's first call, and the median of its later calls."""
    return [1e3 * one.first for one in visits], [1e3 * median(one.later) for one in visits]


def http2_beside_http1(visits: Sequence[Visit]) -> tuple[float, tuple[float, float]] | None:
    """Ratio of HTTP/2 to HTTP/1.1 for later calls with keep-alive, paired by block and TLS, with interval."""
    kept = {
        (one.block, one.cell.tls, one.cell.http): median(one.later)
        for one in visits
        if one.cell.keep_alive and not (one.cell.by_unit or one.cell.is_near)
    }
    ratios = [
        took / kept[block, tls, "1.1"]
        for (block, tls, http), took in kept.items()
        if http == "2" and (block, tls, "1.1") in kept
    ]
    return (median(ratios), interval(ratios)) if ratios else None


def lag_of(visits: Sequence[Visit]) -> float:
    """p90 of oversleeping in seconds."""
    return float(np.percentile([one.lag for one in visits], 90)) if visits else 0.0


def saved_by(rows: Sequence[Row], tls: str, http: str = "1.1") -> float | None:
    """Milliseconds that keep-alive saves for each later call; None if not measured."""
    later = {
        row.cell.keep_alive: row.later for row in rows if row.cell == Cell(http, tls, row.cell.keep_alive)
    }
    return later[False] - later[True] if len(later) == 2 else None
