"""Tables of storms side by side, with a column for each proxy.

Counts of several rounds are summed; for times the worst is shown, for p99 the geometric mean, with the interval of the
ratio.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from rich.table import Table

from benchmarks.harness.verdicts import bracketed, over_blocks
from benchmarks.storm.figures import Figures, seconds, success
from benchmarks.storm.plan import FAULTS
from experiments.stats.estimates import geometric_mean

NOTHING = "–"


def table_of(proxies: Sequence[Sequence[Figures]]) -> Table:
    table = with_columns(Table(), "in the storm", proxies)
    for name, cells in rows_of(proxies):
        table.add_row(name, *cells, end_section=name == CELLS[-1][0])
    return table


def with_columns(table: Table, first: str, proxies: Sequence[Sequence[Figures]]) -> Table:
    table.add_column(first, no_wrap=True)
    for runs in proxies:
        table.add_column(runs[0].peer.partition(" ")[0], justify="right")
    return table


def rows_of(proxies: Sequence[Sequence[Figures]]) -> list[tuple[str, list[str]]]:
    """Row names and a cell for each proxy."""
    good = [[run for run in runs if not run.fault] for runs in proxies]
    rows = [(name, [cell(runs) if runs else "INVALID" for runs in good]) for name, cell in CELLS]
    for method in ("GET", "POST"):
        kinds = dict.fromkeys(kind for runs in good for run in runs for kind in run.failures[method])
        for kind in kinds:
            totals = [sum(run.failures[method].get(kind, 0) for run in runs) for runs in good]
            rows.append((f"{method}: {kind}", list(map(count, totals))))
    return rows


def count(number: int) -> str:
    return str(number) if number else NOTHING


def ratio_words(rounds: Sequence[tuple[float, float]]) -> str:
    """Text such as `23.3 ms = 1.04 × [1.01–1.07] 22.4 ms`, from the p99 without and with faults of each round."""
    known = [both for both in rounds if min(both) > 0]
    if not known:
        return NOTHING
    quiet, storm = (geometric_mean(column) * 1e3 for column in zip(*known, strict=True))
    return f"{storm:.1f} ms = {bracketed(over_blocks([b / a for a, b in known]))} {quiet:.1f} ms"


def medians(rounds: Sequence[tuple[float, float]]) -> str:
    """Text such as `98% / 100%`."""
    return " / ".join(f"{median(column):.0%}" for column in zip(*rounds, strict=True))


CELLS: tuple[tuple[str, Callable[[Sequence[Figures]], str]], ...] = (
    ("GET success", lambda runs: success(sum(r.gets_ok for r in runs), sum(r.gets for r in runs))),
    ("POST success", lambda runs: success(sum(r.posts_ok for r in runs), sum(r.posts for r in runs))),
    ("POSTs executed twice", lambda runs: count(sum(r.twice for r in runs))),
    ("responses crossed or corrupted", lambda runs: count(sum(r.crossed for r in runs))),
    ("POSTs answered but not executed", lambda runs: count(sum(r.untrue for r in runs))),
    ("POSTs failed but executed", lambda runs: count(sum(r.in_doubt for r in runs))),
    ("longest recovery", lambda runs: seconds(max(r.recovery for r in runs))),
    ("p99", lambda runs: ratio_words([(r.quiet_p99, r.storm_p99) for r in runs])),
    ("p99 without exclusions", lambda runs: ratio_words([r.whole_p99 for r in runs])),
    ("undisturbed before / in the storm", lambda runs: medians([r.undisturbed for r in runs])),
    ("lag of the generator", lambda runs: f"{max(r.lag for r in runs) * 1e3:.2f} ms"),
    ("utilisation of cores: proxy / rest", lambda runs: medians([r.busy for r in runs])),
)


def faults_table_of(proxies: Sequence[Sequence[Figures]]) -> Table:
    title = "GETs failed / POSTs failed / p99 after the first second / longest recovery"
    table = with_columns(Table(title=title, title_justify="left"), "fault", proxies)
    for number, fault in enumerate(FAULTS):
        table.add_row(fault, *(fault_cell([run for run in runs if run.faults], number) for runs in proxies))
    return table


def fault_cell(runs: Sequence[Figures], number: int) -> str:
    if not runs:
        return "INVALID"
    found = [run.faults[number] for run in runs]
    gets, posts = sum(one.gets_failed for one in found), sum(one.posts_failed for one in found)
    back = [one.recovery for one in found]
    longest = None if None in back else max(one for one in back if one is not None)
    p99 = max(one.p99 for one in found)
    return f"{gets} / {posts} / {p99 * 1e3:.0f} ms / {seconds(longest)}"
