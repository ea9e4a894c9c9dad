"""Comparison of two catalogues, for example of two revisions, knobs or machines.

Only cells with the same scenario, policy, knobs and seed in both are compared; their code may differ.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from experiments.errors import BadInputError
from experiments.report.tables import Cell, Mark, Table
from experiments.results.phrases import show
from experiments.stats.comparison import Interval, Standing, holm, paired, standing
from experiments.stats.estimates import paired_student
from experiments.sweep.catalogue import Row
from experiments.sweep.matrix import policy_name, scenario_name, usable

Place = tuple[str, str]
"""Names of scenario and policy, each with its knobs."""

MARKS: dict[Standing, Mark] = {"ahead": "good", "behind": "bad", "no verdict": "few"}


@dataclass(frozen=True, slots=True)
class Change:
    """Paired comparison of a policy under a scenario: `ratio` is second / first, so the second is better below one."""

    scenario: str
    policy: str
    ratio: Interval
    standing: Standing


def changes(first: list[Row], second: list[Row], measure: str) -> list[Change]:
    """Compare every scenario and policy that both contain, Holm-adjusted over all.

    Raises `BadInputError` when they have none in common.
    """
    before, after = by_place(first, measure), by_place(second, measure)
    places = [place for place in before if place in after and set(before[place]) & set(after[place])]
    if not places:
        raise BadInputError(
            "the two catalogues have no cell in common: no scenario, policy and seed is in both"
        )
    found = [paired({"a": before[place], "b": after[place]}, "b", "a", 0, paired_student) for place in places]
    adjusted = holm([p for _, p in found])
    return [
        Change(*place, interval, standing(interval, p, None, more_is_better=False))
        for place, (interval, _), p in zip(places, found, adjusted, strict=True)
    ]


def by_place(rows: list[Row], measure: str) -> dict[Place, dict[int, float]]:
    """seed -> value of the measure for each scenario and policy, valid cells only."""
    found: dict[Place, dict[int, float]] = defaultdict(dict)
    for row in usable(rows, measure):
        found[scenario_name(row), policy_name(row)][row.seed] = float(row.numbers[measure])
    return found


def change_table(found: list[Change], measure: str) -> Table:
    """Table of the changes, the largest first."""
    order = sorted(found, key=lambda change: -abs(change.ratio.ratio - 1))
    rows = tuple(
        (
            Cell(change.scenario),
            Cell(change.policy),
            Cell(show(change.ratio)),
            Cell(str(change.ratio.blocks)),
            Cell(change.standing, MARKS.get(change.standing, "")),
        )
        for change in order
    )
    columns = ("scenario", "policy", f"{measure} second / first", "seeds", "the second is")
    return Table("Changes", "Below 1 the second is faster.", columns, rows)
