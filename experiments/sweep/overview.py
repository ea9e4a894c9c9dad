"""Every policy over all scenarios of a sweep: how often it is near the best, and how far it is behind at worst.

The unit is the scenario, and the ratio is that of geometric means over its seeds. Where failures decide, because even
the best measure is the deadline, a policy is near if its goodput is at most one point below the highest; such scenarios
do not enter mean and percentiles.

The unit of the distance to a bound, the oracles `oracle-informed` and `oracle-clairvoyant`, is the scenario: one ratio
each, of geometric means over its seeds. So a range of random scenarios gives an interval over scenarios.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments.report.tables import Cell, Table, row
from experiments.scenario.oracles import BOUNDS
from experiments.stats.ceiling import GOODPUT
from experiments.stats.comparison import Interval, paired
from experiments.stats.estimates import geometric_mean
from experiments.sweep.matrix import Matrix, Square
from experiments.verdict.phrases import show

NEAR, FAIRLY_NEAR = 1.05, 1.10
POINT = 0.01
"""Goodput below the highest that counts as near."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A policy over all scenarios: shares of the scenarios in which it is near the best, and ratios to the best."""

    policy: str
    scenarios: int
    near: float
    fairly_near: float
    mean: float
    p90: float
    worst: float
    worst_scenario: str


def standings(matrix: Matrix) -> list[Standing]:
    """Standing of every policy that is no bound, the best mean first; empty for a single scenario."""
    found = [standing(matrix, policy) for policy in matrix.ranked() if policy not in matrix.bounds]
    return [one for one in found if one is not None] if len(matrix.scenarios) > 1 else []


def standing(matrix: Matrix, policy: str) -> Standing | None:
    """Standing of one policy; None without a scenario that is judged by the measure."""
    squares = matrix.row(policy)
    ratios = {square.scenario: square.ratio.ratio for square in squares if square.judged_by != GOODPUT}
    if not ratios:
        return None
    worst = max(ratios, key=lambda scenario: ratios[scenario])
    return Standing(
        policy,
        len(squares),
        sum(is_near(matrix, square, NEAR) for square in squares) / len(squares),
        sum(is_near(matrix, square, FAIRLY_NEAR) for square in squares) / len(squares),
        geometric_mean(ratios.values()),
        float(np.percentile(list(ratios.values()), 90)),
        ratios[worst],
        worst,
    )


def is_near(matrix: Matrix, square: Square, ratio: float) -> bool:
    """Whether the square is within `ratio` of the best, or its goodput within a point of the highest."""
    if square.judged_by != GOODPUT:
        return square.ratio.ratio <= ratio
    column = [other for other in matrix.column(square.scenario) if other.policy not in matrix.bounds]
    return square.goodput >= max(other.goodput for other in column) - POINT


def overview_table(matrix: Matrix) -> Table:
    """Every policy over all scenarios; no rows for a single scenario."""
    note = (
        f"{matrix.measure} as a ratio to the observed best of each scenario. Where even that is the deadline, near "
        "means a goodput at most one point below the highest."
    )
    columns = ("policy", "scenarios", "within 5 %", "within 10 %", "geometric mean", "90th", "worst", "where")
    rows = tuple(
        row(
            *(one.policy, one.scenarios, f"{one.near:.1%}", f"{one.fairly_near:.1%}"),
            *(f"{one.mean:.3f}", f"{one.p90:.2f}", f"{one.worst:.2f}", one.worst_scenario),
        )
        for one in standings(matrix)
    )
    return Table("Over all scenarios", note, columns, rows)


@dataclass(frozen=True, slots=True)
class BoundDistance:
    """A policy beside a bound: ratio over all scenarios with its 95 % interval, and the worst scenario."""

    policy: str
    bound: str
    ratio: Interval
    worst: float
    worst_scenario: str


def bounds_in(matrix: Matrix) -> dict[str, str]:
    """Those of `BOUNDS` that the grid names, by label, and what each knows."""
    labels = [label for label in matrix.policies if label in matrix.bounds]
    return {label: BOUNDS[name] for name in BOUNDS for label in labels if label.partition(",")[0] == name}


def distances(matrix: Matrix) -> list[BoundDistance]:
    """Distance of every policy to every bound, by bound, the least first; empty without a bound."""
    policies = [policy for policy in matrix.policies if policy not in matrix.bounds]
    found = [
        [one for policy in policies if (one := distance(matrix, policy, bound)) is not None]
        for bound in bounds_in(matrix)
    ]
    return [one for of_bound in found for one in sorted(of_bound, key=lambda one: one.ratio.ratio)]


def distance(matrix: Matrix, policy: str, bound: str) -> BoundDistance | None:
    """Distance of one policy over the scenarios that both have; None without any."""
    values = {
        label: {
            number: square.value
            for number, scenario in enumerate(matrix.scenarios)
            if (square := matrix.squares.get((label, scenario))) is not None
        }
        for label in (policy, bound)
    }
    interval, _ = paired(values, policy, bound)
    if not interval.blocks:
        return None
    ratios = {
        number: value / values[bound][number]
        for number, value in values[policy].items()
        if values[bound].get(number, 0.0) > 0
    }
    worst = max(ratios, key=lambda number: ratios[number])
    return BoundDistance(policy, bound, interval, ratios[worst], matrix.scenarios[worst])


def distance_table(matrix: Matrix) -> Table:
    """Every policy beside each bound; no rows without one."""
    bounds, found = bounds_in(matrix), {(one.policy, one.bound): one for one in distances(matrix)}
    note = (
        f"{matrix.measure} as a ratio to that of a bound: geometric mean over scenarios and its 95 % interval. "
        + " ".join(f"{bound} {knows}." for bound, knows in bounds.items())
        + " Bounds are no policies, so they are not ranked."
    )
    heads = [(f"{matrix.measure} / {bound}", "scenarios", "worst", "where") for bound in bounds]
    rows = tuple(
        row(policy, *(part for bound in bounds for part in distance_parts(found.get((policy, bound)))))
        for policy in dict.fromkeys(policy for policy, _ in found)
    )
    return Table("Distance to the bounds", note, ("policy", *(name for head in heads for name in head)), rows)


def distance_parts(one: BoundDistance | None) -> tuple[object, ...]:
    """Ratio, scenarios, worst ratio and its scenario, as parts of a row."""
    if one is None:
        return (Cell("–", "few"),) * 4
    return show(one.ratio), one.ratio.blocks, f"{one.worst:.2f}", one.worst_scenario


def distance_sentences(matrix: Matrix, ours: str) -> list[str]:
    """Sentence for each bound such as `Its p99 is × 1.10 [1.07–1.14] of oracle-informed's, which knows … .`"""
    knows = bounds_in(matrix)
    return [
        f"Over {one.ratio.blocks} scenarios its {matrix.measure} is ×\u00a0{show(one.ratio)} of that of {one.bound}, a "
        f"bound that {knows[one.bound]}."
        for one in distances(matrix)
        if one.policy == ours
    ]
