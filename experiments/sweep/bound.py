"""Distance of every policy to the bound of a sweep: the oracle `oracle-clairvoyant`, if the grid names it.

The unit is the scenario: one ratio each, of geometric means over its seeds. So a range of random scenarios gives an
interval over scenarios, which says how far a policy is from the bound in a scenario drawn like them.
"""

from __future__ import annotations

from dataclasses import dataclass

from experiments.report.tables import Cell, Table
from experiments.scenario.oracles import CLAIRVOYANT
from experiments.stats.comparison import Interval, paired
from experiments.sweep.matrix import Matrix
from experiments.verdict.phrases import show


@dataclass(frozen=True, slots=True)
class Distance:
    """A policy beside the bound: ratio over all scenarios with its 95 % interval, and the worst scenario."""

    policy: str
    ratio: Interval
    worst: float
    worst_scenario: str


def distances(matrix: Matrix) -> list[Distance]:
    """Distance of every policy, the least first; empty without the bound."""
    bound = next((policy for policy in matrix.bounds if policy.partition(",")[0] == CLAIRVOYANT), None)
    if bound is None:
        return []
    found = [distance(matrix, policy, bound) for policy in matrix.policies if policy not in matrix.bounds]
    return sorted((one for one in found if one is not None), key=lambda one: one.ratio.ratio)


def distance(matrix: Matrix, policy: str, bound: str) -> Distance | None:
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
    return Distance(policy, interval, ratios[worst], matrix.scenarios[worst])


def distance_table(matrix: Matrix) -> Table:
    """Every policy beside the bound; no rows without it."""
    note = (
        f"{matrix.measure} as a ratio to {CLAIRVOYANT}, which knows all work, queues and faults: geometric mean over "
        "scenarios and its 95 % interval. It is a bound and no policy, so it is not ranked."
    )
    columns = ("policy", f"{matrix.measure} / bound", "scenarios", "worst", "where")
    rows = tuple(
        (
            Cell(one.policy),
            Cell(show(one.ratio)),
            Cell(str(one.ratio.blocks)),
            Cell(f"{one.worst:.2f}"),
            Cell(one.worst_scenario),
        )
        for one in distances(matrix)
    )
    return Table("Distance to the bound", note, columns, rows)
