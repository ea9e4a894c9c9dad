"""Summary table and bound of the slow-clients benchmark. Pure functions of runs.

A ratio compares two runs of one round whose generator was punctual; the median over rounds is shown. A run with a fault
has no figures and misses the bound; without any ratio the p99 is not judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from rich.table import Table

from benchmarks.harness.open_load import LAG_PART
from benchmarks.harness.verdicts import Verdict
from benchmarks.slow_clients.runs import CONTROL, KINDS, QUIET, Run
from experiments.terminal import times

BOUND = 2.0
"""Bound on the p99 of normal traffic beside slow clients, as a multiple of the quiet p99."""


@dataclass(frozen=True, slots=True)
class Row:
    """One peer and one kind of run: medians over rounds, and the sum of all endings. Units as in `Run`."""

    peer: str
    kind: str
    requests: int
    ok: int
    p50: float
    p99: float
    ratio_p50: float | None
    ratio_p99: float | None
    cpu: float
    memory: float
    endings: dict[str, int]
    fault: str

    @property
    def is_met(self) -> bool | None:
        """100 % success and p99 within the bound; None if there is no ratio."""
        if self.fault or self.ok < self.requests:
            return False
        return None if self.ratio_p99 is None else self.ratio_p99 <= BOUND


def rows_of(runs: Sequence[Run]) -> list[Row]:
    """One row for each peer and kind, in the order of `KINDS`."""
    peers = dict.fromkeys(run.peer for run in runs)
    found = [
        (peer, kind, [r for r in runs if (r.peer, r.kind) == (peer, kind)])
        for peer in peers
        for kind in KINDS
    ]
    quiet = {round_of(run): run for run in runs if run.kind == QUIET and is_punctual(run)}
    return [row_of(own, quiet) for _, _, own in found if own]


def round_of(run: Run) -> tuple[str, str, int]:
    """Key of the runs that are compared with each other."""
    return run.peer, run.slow_kind, run.round


def is_punctual(run: Run) -> bool:
    """Whether the generator's own lag is at most `LAG_PART` of the p99."""
    return not run.fault and run.lag <= LAG_PART * run.p99


def row_of(runs: Sequence[Run], quiet: dict[tuple[str, str, int], Run]) -> Row:
    """Summarise the runs of one peer and kind, at least one; `quiet` holds the reference runs by round."""
    good = [run for run in runs if not run.fault]
    pairs = [(run, quiet[round_of(run)]) for run in good if is_punctual(run) and round_of(run) in quiet]
    endings: Counter[str] = Counter()
    for run in good:
        endings.update(run.endings)
    return Row(
        peer=runs[0].peer,
        kind=runs[0].kind,
        requests=sum(run.requests for run in good),
        ok=sum(run.ok for run in good),
        p50=middle([run.p50 for run in good]) or 0.0,
        p99=middle([run.p99 for run in good]) or 0.0,
        ratio_p50=middle([run.p50 / calm.p50 for run, calm in pairs if calm.p50]),
        ratio_p99=middle([run.p99 / calm.p99 for run, calm in pairs if calm.p99]),
        cpu=middle([run.cpu for run in good]) or 0.0,
        memory=middle([float(run.memory) for run in good]) or 0.0,
        endings=dict(endings.most_common()),
        fault=next((run.fault for run in runs if run.fault), ""),
    )


def middle(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def table_of(rows: Sequence[Row]) -> Table:
    """Table for the terminal."""
    table = Table()
    for name in ("proxy", "beside"):
        table.add_column(name, no_wrap=True)
    for name in ("success", "p50", "p99", "p50/quiet", "p99/quiet", "CPU", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("how they ended")
    for row in rows:
        table.add_row(*cells_of(row))
    return table


def cells_of(row: Row) -> list[str]:
    if row.fault:
        return [row.peer.partition(" ")[0], row.kind, "INVALID", *[""] * 6, row.fault]
    return [
        row.peer.partition(" ")[0],
        row.kind,
        f"{success(row):.3f} %",
        f"{row.p50 * 1e3:.2f} ms",
        f"{row.p99 * 1e3:.2f} ms",
        times(row.ratio_p50),
        times(row.ratio_p99),
        f"{row.cpu * 100:.0f} %",
        f"{row.memory / (1 << 20):.0f} MiB",
        ", ".join(f"{count} × {how}" for how, count in row.endings.items()) or "–",
    ]


def success(row: Row) -> float:
    """Success in per cent; capped at 99.999 so that rounding does not hide a failure."""
    share = 100.0 * row.ok / row.requests if row.requests else 0.0
    return share if row.ok == row.requests else min(share, 99.999)


def verdicts(rows: Sequence[Row], ours: str) -> list[Verdict]:
    """Bound of the balancer `ours` for each kind of slow clients, as text; None if it cannot be judged."""
    return [
        verdict(row, next((other for other in rows if (other.peer, other.kind) == (row.peer, CONTROL)), None))
        for row in rows
        if row.peer.startswith(ours) and row.kind not in (QUIET, CONTROL)
    ]


def verdict(row: Row, control: Row | None) -> Verdict:
    """Judge one row. If the A/A control differs by as much as the bound, the p99 is not judged; a failure still is."""
    is_met, said = row.is_met, words(row)
    noise = control.ratio_p99 if control is not None else None
    if noise is not None and not 1 / BOUND <= noise <= BOUND and not row.fault and row.ok == row.requests:
        is_met, said = None, f"{said}; quiet again: {times(noise)}, so this was not a quiet machine"
    return Verdict(is_met, f"{row.peer} beside {row.kind}: {said}")


def words(row: Row) -> str:
    if row.fault:
        return row.fault
    return f"{success(row):.3f} % success, p99 {times(row.ratio_p99)} quiet (bound: 100 %, {BOUND:g} ×)"


def doubts(runs: Sequence[Run]) -> str:
    """Warning that the machine was busy; empty if every run was punctual."""
    late = [run.lag for run in runs if not run.fault and not is_punctual(run)]
    if not late:
        return ""
    return (
        f"In {len(late)} of {len(runs)} runs more than half of the p99 was the generator's own (at most "
        f"{max(late) * 1e3:.1f} ms): the machine was busy. They are in no ratio."
    )
