"""Tables of a catalogue, shared by the page and the terminal.

Numbers are formatted here, with their unit in the column head or beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from experiments.platform.terminal import clock
from experiments.report.tables import Cell, Mark, Table
from experiments.stats.ceiling import GOODPUT
from experiments.sweep.catalogue import CellRow, GridFacts
from experiments.sweep.equality import cell_text
from experiments.sweep.matrix import Matrix, Square, policy_name, scenario_name
from experiments.sweep.sentences import in_ms, percent
from experiments.verdict.phrases import show

MARKS: dict[str, Mark] = {
    "best": "good",
    "equal": "good",
    "behind": "",
    "undecided": "",
    "no verdict": "few",
    "bound": "",
}
WORDS = {
    "best": "best",
    "equal": "equal",
    "undecided": "undecided",
    "behind": "behind",
    "no verdict": "–",
    "bound": "bound",
}


def matrix_table(matrix: Matrix) -> Table:
    """Every square with its interval, policies from best to worst."""
    note = (
        f"{matrix.measure} as a ratio to the observed best policy of the scenario: geometric mean over seeds, paired "
        "by seed, and the 95 % interval of the ratio to the true best, which holds for all policies at once. A failed "
        "request counts as slow as the deadline; odds: of a late or failed answer, where the deadline is the measure "
        "of all. Green: best, or by the whole interval at most 5 % worse."
    )
    rows = tuple(
        (
            Cell(matrix.shown_name(policy)),
            *(square_cell(matrix.squares.get((policy, name))) for name in matrix.scenarios),
        )
        for policy in matrix.ranked()
    )
    return Table(f"{matrix.measure} ratio to the best", note, ("policy", *matrix.scenarios), rows)


def square_cell(square: Square | None) -> Cell:
    """Table cell with the ratio and its interval, such as `1.12 [1.08–1.17]`."""
    return Cell("–", "few") if square is None else Cell(ratio_text(square), MARKS[square.mark])


def ratio_text(square: Square) -> str:
    """Ratio to the best with its interval, marked where it is one of odds."""
    return show(square.ratio) + " odds" * (square.judged_by == GOODPUT)


def best_table(matrix: Matrix, ours: str) -> Table:
    """Each scenario: the best policy with its value, and the comparison of `ours` with it."""
    rows = []
    for scenario in matrix.scenarios:
        best, own = matrix.best(scenario), matrix.squares.get((ours, scenario))
        if best is None:
            rows.append((Cell(scenario), *(Cell("–", "few") for _ in range(8))))
            continue
        rows.append(
            (
                Cell(scenario),
                Cell(best.policy),
                Cell(in_ms(best.value)),
                Cell(f"{percent(best.failed, 2)}"),
                Cell(f"{percent(best.goodput, 2)}"),
                *(own_cells(own) if own is not None else (Cell("–", "few"),) * 4),
            )
        )
    columns = (
        "scenario",
        "best",
        matrix.measure,
        "failed",
        "goodput",
        f"{ours}",
        "failed",
        "goodput",
        "standing",
    )
    note = (
        f"Best: the lowest {matrix.measure}, failures at the deadline, proven only if marked so. Failed is the part of "
        "the requests that failed, goodput that answered within the SLO."
    )
    return Table("Scenarios", note, columns, tuple(rows), prose=True)


def own_cells(own: Square) -> tuple[Cell, ...]:
    """Cells of `ours` for a scenario."""
    standing = Cell(f"{WORDS[own.mark]}, ×\u00a0{ratio_text(own)}", MARKS[own.mark])
    shares = (Cell(percent(own.failed, 2)), Cell(percent(own.goodput, 2)))
    return Cell(in_ms(own.value)), *shares, standing


def grid_table(grids: Sequence[GridFacts]) -> Table:
    """Table of the grids in a catalogue."""
    columns = ("grid", "cells", "done", "failed", "missing", "seeds", "computing", "code", "begun (UTC)")
    rows = tuple(
        (
            Cell(facts.grid.name),
            Cell(str(facts.planned)),
            Cell(str(facts.done)),
            Cell(str(facts.failed), "bad" if facts.failed else ""),
            Cell(str(facts.planned - facts.done - facts.failed)),
            Cell(str(len(facts.grid.seeds))),
            Cell(clock(facts.seconds)),
            Cell(facts.code),
            Cell(facts.began_at[:16].replace("T", " ")),
        )
        for facts in grids
    )
    return Table("Grids", "computing: seconds of all workers together", columns, rows)


def group_table(rows: Sequence[CellRow]) -> Table:
    """Policies under scenarios: means of the cells over their seeds."""
    columns = ("scenario", "policy", "done", "KO", "req/s", "50th", "95th", "99th", "max", "goodput")
    groups: dict[tuple[str, str], list[CellRow]] = {}
    for row in rows:
        groups.setdefault((scenario_name(row), policy_name(row)), []).append(row)
    shown = tuple(
        (
            Cell(scenario),
            Cell(policy),
            *group_cells([row for row in group if row.state == "done"], len(group)),
        )
        for (scenario, policy), group in groups.items()
    )
    note = "Latency in ms, deadline-mapped, the mean over seeds."
    return Table("Cells", note, columns, shown)


def group_cells(done: Sequence[CellRow], planned: int) -> tuple[Cell, ...]:
    """Cells of one policy under a scenario; dashes where no cell has finished."""
    count = Cell(f"{len(done)}/{planned}", "" if len(done) == planned else "bad")
    if not done:
        return (count, *(Cell("–", "few") for _ in range(7)))
    times = [Cell(f"{1e3 * mean(done, name):.1f}") for name in ("p50", "p95", "p99", "max")]
    failed = fmean(row.numbers["requests"] - row.numbers["ok"] for row in done)
    return (
        count,
        Cell(f"{failed:.1f}", "bad" if failed else ""),
        Cell(f"{mean(done, 'throughput'):.1f}"),
        *times,
        Cell(f"{percent(mean(done, 'goodput'), 1)}"),
    )


def mean(rows: Sequence[CellRow], name: str) -> float:
    """Mean of one column; nan where no row has a value."""
    known = [row.numbers[name] for row in rows if row.numbers[name] is not None]
    return fmean(known) if known else float("nan")


def failure_table(rows: Sequence[CellRow]) -> Table:
    """Failed cells by message, the most frequent first."""
    messages: dict[str, list[CellRow]] = {}
    for row in rows:
        if row.state == "failed":
            messages.setdefault(str(row.numbers["message"]), []).append(row)
    shown = tuple(
        (Cell(message), Cell(str(len(found))), Cell(cell_text(found[0])))
        for message, found in sorted(messages.items(), key=lambda pair: -len(pair[1]))
    )
    return Table(
        "Failed cells", "The same command tries them again.", ("message", "cells", "such as"), shown, True
    )
