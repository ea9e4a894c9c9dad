"""The eight cells of the keep-alive matrix, and what arithmetic says of each.

Rule of this file: pure. A round trip is R = 2 × one way, S the time of service. A new connection costs 1R for TCP, and
2R more with TLS 1.2 or 1R with TLS 1.3; the request itself R + S: that is the bound. What both ends compute is no trip:
every cell has a twin whose worker is not away at all, and its time plus the trips says whether that explains a miss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import median

import numpy as np

from experiments.reproduce.medians import interval

HANDSHAKES = {"1.2": 3, "1.3": 2}
"""Round trips before the first byte of a request may leave, TCP's included."""

WITHIN = 0.05
"""What a median may differ from arithmetic."""

MOST_LAG = 0.001
"""Seconds that the ninth of ten sleeps may end late; beyond that others have the machine, and nothing is judged."""

SLOWER = 1.09
"""What the source found of HTTP/2 for one caller."""


@dataclass(frozen=True, slots=True)
class Setup:
    """`one_way` and `service` in seconds; `visits` of every cell, each of so many `calls`."""

    one_way: float = 0.015
    service: float = 0.020
    visits: int = 24
    calls: int = 4


QUICK = Setup(visits=4, calls=3)


@dataclass(frozen=True, slots=True)
class Cell:
    """One way to call. `by_unit`: through the balancer, which is near, and keeps the connection to the worker."""

    http: str
    tls: str
    keep_alive: bool
    by_unit: bool = False
    is_near: bool = False
    """Whether there is no distance: what is left is service, and what both ends compute."""

    @property
    def trips(self) -> tuple[int, int]:
        """Round trips of the first call and of later ones."""
        cold = HANDSHAKES[self.tls] + 1
        return cold, 1 if self.keep_alive else cold

    @property
    def twin(self) -> Cell:
        """The same without distance."""
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
    """Calls one after the other: seconds of the first and of each later one.

    `lag`: how late, in seconds, a short sleep ended just before; what the machine itself adds, again and again.
    """

    cell: Cell
    block: int
    first: float
    later: tuple[float, ...]
    lag: float = 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """A cell in milliseconds: trips and service; what its twin took and the trips, which is `expected`; medians, and
    their 95 % intervals (low, high)."""

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
        """Whether both medians are within 5 % of arithmetic."""
        return are_near((self.first, self.first_theory), (self.later, self.later_theory))

    @property
    def is_explained(self) -> bool:
        """Whether they are of the trips and what the twin took."""
        return are_near((self.first, self.first_expected), (self.later, self.later_expected))


def are_near(*pairs: tuple[float, float]) -> bool:
    return all(abs(found / expected - 1) <= WITHIN for found, expected in pairs)


def travelled(cell: Cell, setup: Setup) -> tuple[float, float]:
    """Seconds on the way in the first call and in later ones."""
    first, later = cell.trips
    return 2 * setup.one_way * first, 2 * setup.one_way * later


def rows_of(visits: Sequence[Visit], setup: Setup) -> list[Row]:
    """A row for each cell that was visited far and near, in the order of the matrix."""
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
    """Milliseconds of every visit's first call, and the median of its later ones."""
    return [1e3 * one.first for one in visits], [1e3 * median(one.later) for one in visits]


def http2_beside_http1(visits: Sequence[Visit]) -> tuple[float, tuple[float, float]] | None:
    """Times of HTTP/1.1's that HTTP/2 takes for a later call on a kept connection, paired by block and TLS."""
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
    """Seconds by which the ninth of ten sleeps ended late."""
    return float(np.percentile([one.lag for one in visits], 90)) if visits else 0.0


def saved_by(rows: Sequence[Row], tls: str, http: str = "1.1") -> float | None:
    """Milliseconds that keep-alive saves for each later call."""
    later = {
        row.cell.keep_alive: row.later for row in rows if row.cell == Cell(http, tls, row.cell.keep_alive)
    }
    return later[False] - later[True] if len(later) == 2 else None
