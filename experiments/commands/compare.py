"""`experiments compare`: is the second result set better or worse than the first?

Only parses options and prints a table; the exit code is optional.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import click
from rich.console import Console
from rich.text import Text

from experiments.commands.options import (
    GRID,
    JSON,
    JUNIT,
    MEASURE,
    OUTPUT,
    Number,
    new_directory,
    require_none,
)
from experiments.compare.contrast import WORDS, Contrast, contrasts
from experiments.compare.revisions import RevisionPlan, measure
from experiments.compare.sides import Difference, Side, differences, require_comparable, side
from experiments.errors import BadInputError
from experiments.platform.checks import Check, report_checks
from experiments.platform.json_values import plainly
from experiments.platform.terminal import (
    BOUND_MISSED,
    console_here,
    in_ms,
    plain_table,
    print_verdict,
    write_json,
)
from experiments.report.document import Section
from experiments.report.tables import Table as PageTable
from experiments.report.tables import row, whole_table
from experiments.results.directory import Results, load_results
from experiments.scenario.service import LiveScenario
from experiments.stats.ceiling import GOODPUT
from experiments.stats.comparison import ENOUGH_BLOCKS, Standing
from experiments.stats.run_summary import counted
from experiments.sweep.catalogue import chosen_grid, to_read
from experiments.sweep.catalogue import differences as catalogue_differences
from experiments.sweep.driver import print_invalid
from experiments.sweep.tables import change_table, changes
from experiments.verdict.phrases import show, units_of

EPILOG = """\b
Examples:
  experiments compare results/before results/after
  experiments compare results/before results/after --fail-if-worse 1.05
  experiments compare results/measured results/simulated --json both.json --html both.html
  experiments compare --rev main HEAD --scenario steady --policies round-robin,region-aware
  experiments compare before.sqlite after.sqlite --measure p50          the catalogues of two sweeps
  experiments compare resumed.sqlite undisturbed.sqlite --exact
"""

STYLES = {"better": "green", "worse": "bold red", "no verdict": "yellow", "undecided": "yellow"}
MOST_REASONS = 3

AT_DEADLINE = (
    "Odds: failures make the latency the deadline on both sides; the odds of a late or failed answer decide."
)
REPLAYED = "Every run replays the same record; an interval over parts of it stands where that is wider."
COLUMNS = ("entry", "measure", "first", "second", "second / first [95 %]", "p (Holm)", "blocks", "second is")


@click.command(epilog=EPILOG)
@click.argument("first")
@click.argument("second")
@click.option(
    "--rev", is_flag=True, help="FIRST and SECOND are git revisions: measure both, block by block in turn."
)
@click.option("--scenario", help="With --rev: what both run.  [default: steady]")
@click.option(
    "--policies",
    metavar="A,B,…",
    help="With --rev: only these entries; a relative FILE.py is of the revision.",
)
@click.option("--blocks", type=click.IntRange(min=1), help="With --rev: number of blocks.  [default: 8]")
@click.option("--seed", type=click.IntRange(min=0), help="With --rev: seed of the first block.  [default: 1]")
@click.option("--quick", is_flag=True, help="With --rev: the short runs of `run --quick`.")
@click.option("--out", is_eager=True, type=click.Path(path_type=Path), help="With --rev: a new directory.")
@click.option(
    "--anyway", is_flag=True, help="Compare although the scenarios differ; the differences are shown."
)
@JSON
@click.option(
    "--html", "page", type=OUTPUT, help="Write a page with the forest plot and interactive charts there."
)
@click.option(
    "--fail-if-worse",
    "limit",
    type=Number(min=1),
    help="Exit code 1 when an entry is worse beyond noise, and by more than this factor, in the scenario's measure, "
    "and when no entry has enough blocks to be judged.",
)
@JUNIT
@GRID
@MEASURE
@click.option("--exact", is_flag=True, help="Exit code 1 unless the results of two catalogues are identical.")
def compare(
    first: str,
    second: str,
    rev: bool,
    anyway: bool,
    file: Path | None,
    page: Path | None,
    limit: float | None,
    junit: Path | None,
    grid: str | None,
    measure: str | None,
    exact: bool,
    **given: Any,
) -> int:
    """Compare result set SECOND with FIRST: ratio, interval and standing of every entry that both ran.

    The catalogues of two sweeps may be given as well.
    """
    if junit is not None and limit is None:
        raise BadInputError("--junit: needs --fail-if-worse, which is what it states")
    if not rev and Path(first).is_file():
        require_none(given, "only with --rev; a catalogue holds results already")
        require_none({"html": page}, "not for catalogues; `experiments report` draws one")
        require_none({"junit": junit}, "not for the catalogues of sweeps")
        pair = Path(first), Path(second)
        if exact:
            require_none({"measure": measure, "json": file, "fail_if_worse": limit}, "not with --exact")
            return compare_exactly(*pair, grid)
        return compare_catalogues(*pair, grid, measure or "p99", file, limit)
    require_none({"grid": grid, "measure": measure, "exact": exact}, "only for the catalogues of sweeps")
    if rev:
        both = measured((first, second), **given)
    else:
        require_none(given, "only with --rev; result sets have been measured already")
        both = [load_results(Path(name)) for name in (first, second)]
    one, other = (side(name, results) for name, results in zip((first, second), both, strict=True))
    require_comparable(one, other, anyway)
    found, unlike = contrasts(one, other), differences(one, other)
    console = console_here()
    present(console, one, other, found, unlike)
    write_json(file, as_json(one, other, found, unlike))
    if page is not None:
        draw_page(page, one, other, found, unlike)
        console.print(Text(f"Report: {page}"), soft_wrap=True)
    if limit is None:
        return 0
    checks = checks_of(found, limit)
    code = judge(console, checks, limit)
    report_checks(f"{other.name} against {one.name}", checks, junit)
    return code


def measured(
    names: Sequence[str],
    scenario: str | None,
    policies: str | None,
    blocks: int | None,
    seed: int | None,
    quick: bool,
    out: Path | None,
) -> list[Results]:
    """Measure two revisions. Raises `ExperimentError`."""
    options = (*(["--quick"] if quick else []), *(["--policies", policies] if policies else []))
    folder = out or new_directory("revisions")
    name = scenario or "steady"
    name = str(Path(name).resolve()) if name.endswith(".toml") else name
    plan = RevisionPlan(name, blocks or 8, 1 if seed is None else seed, options, folder)
    return measure(names, plan, console_here())


def present(
    console: Console, one: Side, other: Side, found: Sequence[Contrast], unlike: Sequence[Difference]
) -> None:
    """Print differences of the sets, the table, and how blocks were matched."""
    console.print(f"first   {one.name}\nsecond  {other.name}", highlight=False)
    for difference in unlike:
        console.print(Text(f"differs: {difference.in_words}", style="yellow"))
    for given in (one, other):
        for words in invalid(given):
            console.print(Text(words, style="bold red"))
    console.print(plain_table(COLUMNS, map(cells_of, found), left=("measure", "second is")))
    console.print(Text(headline(found, one), style="bold"))
    for note in notes_on(found, one):
        console.print(Text(note, style="dim"))


def draw_page(
    file: Path, one: Side, other: Side, found: Sequence[Contrast], unlike: Sequence[Difference]
) -> None:
    """Write the same as an HTML page, with figures. Raises `BadInputError`."""
    from experiments.compare.page import write_page  # matplotlib takes half a second

    note = " ".join(notes_on(found, one))
    rows = tuple(row(*cells_of(item)) for item in found)
    table = PageTable("Second against first", note, COLUMNS, rows)
    warnings = [
        Section("The sets differ", lines=[difference.in_words for difference in unlike]),
        Section("Invalid or missing runs", lines=[*invalid(one), *invalid(other)]),
    ]
    write_page(file, (one, other), found, headline(found, one), table, warnings)


def headline(found: Sequence[Contrast], one: Side) -> str:
    """Which entries of the second set are better or worse in the measure that decides, in one sentence."""
    measure = found[0].measure
    own = [item for item in found if item.measure == measure]
    kinds = [WORDS.get(standing, standing) for standing in get_args(Standing)]
    groups = {kind: [item.label for item in own if item.in_words == kind] for kind in ("worse", *kinds)}
    few = ", ".join(groups.pop("no verdict"))
    shown = "; ".join(f"{kind}: {', '.join(labels)}" for kind, labels in groups.items() if labels)
    words = [f"the second is {shown}"] * bool(shown)
    words += [f"there is no verdict on {few} ({ENOUGH_BLOCKS} blocks are needed)"] * bool(few)
    unit = units_of(one.scenario.inference is not None)[measure]
    return f"By {unit}, {'; '.join(words)}."


def invalid(given: Side) -> list[str]:
    """Warnings about runs that are missing or left out, with reasons; empty if there is none."""
    missing, planned = given.results.missing, len(given.results.campaign.plan)
    words = (
        [f"INCOMPLETE: {missing} of {planned} planned runs of {given.name} are missing"] if missing else []
    )
    if not (count := len(given.runs) - len(counted(given.runs))):
        return words
    reasons = [*dict.fromkeys(reason for run in given.runs for reason in run.invalid_reasons)]
    shown = "; ".join(reasons if len(reasons) <= MOST_REASONS else [reasons[0], "and others"])
    return [*words, f"INVALID: {count} of {len(given.runs)} runs of {given.name} are left out: {shown}"]


def cells_of(item: Contrast) -> list[str | Text]:
    """Row of one entry and measure; a dash for what is unknown."""
    is_known = not math.isnan(item.interval.ratio)
    ratio = show(item.interval) + " odds" * (item.judged_by == GOODPUT) if is_known else "–"
    p_value = "–" if math.isnan(item.interval.low) else f"{item.p_value:.4f}"
    values = (in_unit(item.measure, item.first), in_unit(item.measure, item.second))
    standing = Text(item.in_words, style=STYLES.get(item.in_words, ""))
    return [item.label, item.measure, *values, ratio, p_value, str(item.interval.blocks), standing]


def in_unit(measure: str, value: float) -> str:
    """Format a rate per second or a time in milliseconds."""
    if math.isnan(value):
        return "–"
    return f"{value:.1f}/s" if measure == "throughput" else in_ms(value)


def matching(found: Sequence[Contrast], one: Side) -> str:
    """How blocks were paired, as text."""
    found = [item for item in found if item.interval.blocks]
    paired = sum(item.is_paired for item in found)
    if not found:
        return "No entry has a valid run on both sides."
    if paired == len(found) and all(item.interval.blocks == 1 for item in found):
        return "Runs were paired by their seeds; a single pair has no interval."
    if paired == len(found):
        return "Blocks were paired by their seeds; the interval is Student's over pairs."
    if not paired:
        is_live = isinstance(one.scenario, LiveScenario)
        why = "A balancer's own traffic has no seed" if is_live else "No two runs had the same requests"
        return f"{why}, so none were paired; intervals are Welch's over all runs of both."
    return (
        f"{paired} of {len(found)} rows were paired by seeds; the others have Welch's interval over all runs."
    )


def notes_on(found: Sequence[Contrast], one: Side) -> list[str]:
    has_odds = any(item.judged_by == GOODPUT for item in found)
    notes = {matching(found, one): True, AT_DEADLINE: has_odds, REPLAYED: one.scenario.load.is_replay}
    return [note for note, is_needed in notes.items() if is_needed]


def checks_of(found: Sequence[Contrast], limit: float) -> list[Check]:
    """Whether each entry is worse beyond noise and by more than `limit`; not judged with too few blocks."""
    measure = found[0].measure
    return [
        Check(
            item.label,
            f"{measure} at most × {limit:g}",
            None if item.standing == "no verdict" else item.in_words != "worse" or item.worsening <= limit,
            "too few blocks" if item.standing == "no verdict" else f"{measure} × {show(item.interval)}",
        )
        for item in found
        if item.measure == measure
    ]


def judge(console: Console, checks: Sequence[Check], limit: float) -> int:
    """Print what is worse and what is not judged; returns the exit code, that of a miss also if nothing is judged."""
    for check in checks:
        if check.passed is False:
            print_verdict(
                console, False, f"WORSE: {check.label}: {check.message}, more than {limit:g} allowed"
            )
    unknown = [check.label for check in checks if check.passed is None]
    if unknown:
        print_verdict(console, None, f"not judged, too few blocks: {', '.join(unknown)}")
    is_met = all(check.passed is not False for check in checks) and len(unknown) < len(checks)
    return 0 if is_met else BOUND_MISSED


def as_json(
    one: Side, other: Side, found: Sequence[Contrast], unlike: Sequence[Difference]
) -> dict[str, Any]:
    """Results for JSON; times in seconds."""
    rows = [{**plainly(item), "second_is": item.in_words} for item in found]
    return {
        "first": one.name,
        "second": other.name,
        "measure": found[0].measure,
        "headline": headline(found, one),
        "differences": [asdict(item) for item in unlike],
        "entries": rows,
    }


SHOWN_CELLS = 10
"""Number of differing cells that are printed."""


def compare_catalogues(
    first: Path, second: Path, grid: str | None, measure: str, file: Path | None, limit: float | None
) -> int:
    """Compare every cell that both contain, second / first; returns the exit code: with `limit` 1 if one is worse
    beyond noise and that, or if none can be judged.

    Raises `BadInputError` when they have no cell in common.
    """
    with to_read(first) as one, to_read(second) as two:
        before, after = (opened.rows(chosen_grid(opened, grid).grid.name) for opened in (one, two))
    print_invalid(before, first, console_here())
    print_invalid(after, second, console_here())
    found = changes(before, after, measure)
    console_here().print(whole_table(change_table(found, measure)))
    write_json(file, {"measure": measure, "changes": found})
    if limit is None:
        return 0
    if all(change.standing == "no verdict" for change in found):
        print_verdict(console_here(), None, "not judged, too few seeds")
        return BOUND_MISSED
    is_worse = any(change.standing == "behind" and change.ratio.ratio > limit for change in found)
    return BOUND_MISSED if is_worse else 0


def compare_exactly(first: Path, second: Path, grid: str | None) -> int:
    """Check whether two catalogues hold identical results; returns 1 if they do not."""
    with to_read(first) as ours, to_read(second) as theirs:
        found = list(catalogue_differences(ours, theirs, grid))
    for difference in found[:SHOWN_CELLS]:
        click.echo(difference)
    if len(found) > SHOWN_CELLS:
        click.echo(f"… and {len(found) - SHOWN_CELLS} more")
    click.echo(f"{len(found)} cells differ" if found else "equal")
    return BOUND_MISSED if found else 0
