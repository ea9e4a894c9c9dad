"""Comparison of two catalogues, for example of two revisions, knobs or machines.

Only cells with the same scenario, policy, knobs and seed in both are compared; their code may differ.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from experiments.errors import BadInputError
from experiments.report.tables import Cell, Mark, Table, row
from experiments.stats.ceiling import GOODPUT
from experiments.stats.comparison import Interval, Judged, Standing, holm, judged, standing
from experiments.sweep.catalogue import CellRow
from experiments.sweep.matrix import ceiling_of, policy_name, scenario_name, usable
from experiments.verdict.phrases import show

Place = tuple[str, str]
"""Names of scenario and policy, each with its knobs."""

NOTE = (
    "Below 1 the second is faster. Odds: the measure is the deadline in both, and the odds of a late or failed answer "
    "are compared."
)
MARKS: dict[Standing, Mark] = {"ahead": "good", "behind": "bad", "no verdict": "few"}


@dataclass(frozen=True, slots=True)
class RatioChange:
    """Paired comparison of a policy under a scenario: `ratio` is second / first, so the second is better below one.

    `judged_by` is the measure, or `GOODPUT` where it is the deadline in both: the ratio is then one of odds.
    """

    scenario: str
    policy: str
    ratio: Interval
    standing: Standing
    judged_by: str


def changes(first: list[CellRow], second: list[CellRow], measure: str) -> list[RatioChange]:
    """Compare what both contain, Holm-adjusted over all. Raises `BadInputError` when they have nothing in common."""
    before, after = by_place(first, measure), by_place(second, measure)
    places = [place for place in before if place in after and set(before[place]) & set(after[place])]
    if not places:
        raise BadInputError(
            "the two catalogues have no cell in common: no scenario, policy and seed is in both"
        )
    found = [compared(before[place], after[place], measure) for place in places]
    adjusted = holm([one.p_value for one in found])
    return [
        RatioChange(*place, one.interval, standing(one.interval, p, None, False, one.is_tied), one.by)
        for place, one, p in zip(places, found, adjusted, strict=True)
    ]


def compared(first: dict[int, CellRow], second: dict[int, CellRow], measure: str) -> Judged:
    sides = {"a": list(first.values()), "b": list(second.values())}
    values = {side: {one.seed: float(one.numbers[measure]) for one in rows} for side, rows in sides.items()}
    return judged(measure, values, "b", "a", ceiling=ceiling_of(sides, measure))


def by_place(rows: list[CellRow], measure: str) -> dict[Place, dict[int, CellRow]]:
    """seed -> cell for each scenario and policy, valid cells only."""
    found: dict[Place, dict[int, CellRow]] = defaultdict(dict)
    for one in usable(rows, measure):
        found[scenario_name(one), policy_name(one)][one.seed] = one
    return found


def change_table(found: list[RatioChange], measure: str) -> Table:
    """Table of the changes, the largest first."""
    order = sorted(found, key=lambda change: -abs(change.ratio.ratio - 1))
    rows = tuple(
        row(
            change.scenario,
            change.policy,
            show(change.ratio) + " odds" * (change.judged_by == GOODPUT),
            change.ratio.blocks,
            Cell(change.standing, MARKS.get(change.standing, "")),
        )
        for change in order
    )
    columns = ("scenario", "policy", f"{measure} second / first", "seeds", "the second is")
    return Table("Changes", NOTE, columns, rows)
