"""Tables of a catalogue, shared by the page and the terminal, and the comparison of two, for example of two revisions.

Numbers are formatted here, with their unit in the column head or beside them. Of two catalogues, cells with the
same scenario, policy, knobs and seed are compared; their code may differ.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from experiments.errors import BadInputError
from experiments.platform.terminal import clock
from experiments.report.tables import Cell, Mark, Table, row
from experiments.stats.ceiling import GOODPUT
from experiments.stats.comparison import Interval, Judged, Standing, holm, judged, standing
from experiments.sweep.catalogue import CellRow, GridFacts, cell_text
from experiments.sweep.matrix import (
    Matrix,
    Square,
    ceiling_of,
    failed_of,
    is_invalid,
    policy_name,
    scenario_name,
    usable,
)
from experiments.sweep.sentences import in_ms, percent
from experiments.verdict.phrases import show

MARKS: dict[str, Mark] = {"best": "good", "equal": "good", "no verdict": "few"}
MISSING = Cell("–", "few")


def matrix_table(matrix: Matrix) -> Table:
    """Every square with its interval, policies from best to worst."""
    note = (
        f"{matrix.measure} as a ratio to the observed best policy of the scenario: geometric mean over seeds, paired "
        "by seed, and the 95 % interval of the ratio to the true best, which holds for all policies at once. A failed "
        "request counts as slow as the deadline; odds: of a late or failed answer, where the deadline is the measure "
        "of all. Green: best, or by the whole interval at most 5 % worse."
    )
    rows = tuple(
        row(
            matrix.shown_name(policy),
            *(square_cell(matrix.squares.get((policy, name))) for name in matrix.scenarios),
        )
        for policy in matrix.ranked()
    )
    return Table(f"{matrix.measure} ratio to the best", note, ("policy", *matrix.scenarios), rows)


def square_cell(square: Square | None) -> Cell:
    """Table cell with the ratio and its interval, such as `1.12 [1.08–1.17]`."""
    return MISSING if square is None else Cell(ratio_text(square), MARKS.get(square.mark, ""))


def ratio_text(square: Square) -> str:
    """Ratio to the best with its interval, marked where it is one of odds."""
    return show(square.ratio) + " odds" * (square.judged_by == GOODPUT)


def best_table(matrix: Matrix, ours: str) -> Table:
    """Each scenario: the best policy with its value, and the comparison of `ours` with it."""
    ours = matrix.variant(ours)
    rows = []
    for scenario in matrix.scenarios:
        leader, square = matrix.best(scenario), matrix.squares.get((ours, scenario))
        first = [MISSING] * 4 if leader is None else [leader.policy, *figures(leader)]
        last = [MISSING] * 4 if square is None else [*figures(square), standing_cell(square)]
        rows.append(row(scenario, *first, *last))
    columns = ("scenario", "best", matrix.measure, "failed", "goodput", ours, "failed", "goodput", "standing")
    note = (
        f"Best: the lowest {matrix.measure}, failures at the deadline, proven only if marked so. Failed is the part of "
        "the requests that failed, goodput that answered within the SLO."
    )
    return Table("Scenarios", note, columns, tuple(rows), prose=True)


def figures(square: Square) -> tuple[str, ...]:
    return in_ms(square.value), percent(square.failed, 2), percent(square.goodput, 2)


def standing_cell(square: Square) -> Cell:
    word = "–" if square.mark == "no verdict" else square.mark
    return Cell(f"{word}, ×\u00a0{ratio_text(square)}", MARKS.get(square.mark, ""))


def grid_table(grids: Sequence[GridFacts]) -> Table:
    columns = ("grid", "cells", "done", "failed", "missing", "seeds", "computing", "code", "begun (UTC)")
    rows = tuple(
        row(
            *(facts.grid.name, facts.planned, facts.done),
            Cell(str(facts.failed), "bad" if facts.failed else ""),
            *(facts.planned - facts.done - facts.failed, len(facts.grid.seeds), clock(facts.seconds)),
            *(facts.code, facts.began_at[:16].replace("T", " ")),
        )
        for facts in grids
    )
    return Table("Grids", "computing: seconds of all workers together", columns, rows)


def group_table(rows: Sequence[CellRow]) -> Table:
    """Policies under scenarios: means of the cells over their seeds."""
    columns = ("scenario", "policy", "done", "KO", "req/s", "50th", "95th", "99th", "max", "goodput")
    groups: dict[tuple[str, str], list[CellRow]] = {}
    for one in rows:
        groups.setdefault((scenario_name(one), policy_name(one)), []).append(one)
    shown = tuple(
        row(*names, *group_parts([one for one in group if one.state == "done"], len(group)))
        for names, group in groups.items()
    )
    note = "Latency in ms, deadline-mapped, the mean over seeds."
    return Table("Cells", note, columns, shown)


def group_parts(done: Sequence[CellRow], planned: int) -> tuple[object, ...]:
    """Row of one policy under a scenario; dashes where no cell has finished."""
    invalid = sum(map(is_invalid, done))
    text = f"{len(done)}/{planned}" + f", {invalid} INVALID" * (invalid > 0)
    count = Cell(text, "bad" if invalid or len(done) < planned else "")
    if not done:
        return (count, *[MISSING] * 7)
    failed = fmean(map(failed_of, done))
    times = [f"{1e3 * mean(done, name):.1f}" for name in ("p50", "p95", "p99", "max")]
    rate, goodput = f"{mean(done, 'throughput'):.1f}", percent(mean(done, "goodput"), 1)
    return count, Cell(f"{failed:.1f}", "bad" if failed else ""), rate, *times, goodput


def mean(rows: Sequence[CellRow], name: str) -> float:
    """Mean of one column; nan where no row has a value."""
    known = [one.numbers[name] for one in rows if one.numbers[name] is not None]
    return fmean(known) if known else float("nan")


def failure_table(rows: Sequence[CellRow]) -> Table:
    """Failed cells by message, and invalid ones by policy with the reasons of the first; the most frequent first."""
    groups: dict[tuple[str, str], list[CellRow]] = defaultdict(list)
    for one in rows:
        if one.state == "failed":
            groups["failed", str(one.numbers["message"])].append(one)
        elif one.state == "done" and is_invalid(one):
            groups["invalid", policy_name(one)].append(one)
    shown = tuple(
        row(kind, key if kind == "failed" else why_invalid(found[0]), len(found), cell_text(found[0]))
        for (kind, key), found in sorted(groups.items(), key=lambda pair: -len(pair[1]))
    )
    columns = ("", "message", "cells", "such as")
    note = "The same command tries failed cells again. Invalid ones are those of a policy, with the first's reasons."
    return Table("Failed and invalid cells", note, columns, shown, prose=True)


def why_invalid(cell: CellRow) -> str:
    return "; ".join(json.loads(cell.numbers["invalid"]))


Place = tuple[str, str]
"""Names of scenario and policy, each with its knobs."""

NOTE = (
    "Below 1 the second is faster. Odds: the measure is the deadline in both, and the odds of a late or failed answer "
    "are compared."
)
CHANGE_MARKS: dict[Standing, Mark] = {"ahead": "good", "behind": "bad", "no verdict": "few"}


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
            Cell(change.standing, CHANGE_MARKS.get(change.standing, "")),
        )
        for change in order
    )
    columns = ("scenario", "policy", f"{measure} second / first", "seeds", "the second is")
    return Table("Changes", NOTE, columns, rows)
