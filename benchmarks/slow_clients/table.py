"""Summary table and bound of the slow-clients benchmark. Pure functions of runs.

A ratio compares two runs of one round whose generator was punctual; the 95 % interval of the geometric mean over rounds
is judged. A run with a fault has no figures and misses the bound; without an interval the p99 is not judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from rich.table import Table

from benchmarks.harness.open_load import LAG_PART
from benchmarks.harness.verdicts import block_ratios, bracketed, over_blocks, side_of
from benchmarks.slow_clients.flood_client import FLOODS
from benchmarks.slow_clients.runs import CONTROL, KINDS, QUIET, SlowRun
from experiments.platform.session import BoundVerdict
from experiments.stats.comparison import Interval

BOUND = 2.0
"""Bound on the p99 of normal traffic beside slow clients, as a multiple of the quiet p99."""

MOST_MEMORY = 64 << 20
LONGEST_PROBE = 1.0
"""Bounds of floods: bytes of memory beyond those of quiet runs, and seconds to an answer of liveness or the admin
socket."""


@dataclass(frozen=True, slots=True)
class SlowRow:
    """One peer and one kind of run: medians and mean ratios over rounds, the sum of all endings. Units as in `Run`."""

    peer: str
    kind: str
    requests: int
    ok: int
    p50: float
    p99: float
    ratio_p50: Interval | None
    ratio_p99: Interval | None
    cpu: float
    memory: float
    growth: float
    """Bytes of memory beyond those of the quiet runs."""

    probe: float
    endings: dict[str, int]
    fault: str

    @property
    def is_met(self) -> bool | None:
        """100 % success and p99 within the bound, and of floods memory and probes; None if that cannot be judged."""
        if self.fault or self.ok < self.requests or self.exceeds:
            return False
        return side_of(self.ratio_p99, BOUND)

    @property
    def exceeds(self) -> str:
        """What is beyond the bounds of floods; empty if nothing is."""
        if self.kind not in FLOODS:
            return ""
        memory = f", {self.growth / (1 << 20):.0f} MiB more memory" if self.growth > MOST_MEMORY else ""
        return memory + (f", a probe took {self.probe:.1f} s" if self.probe > LONGEST_PROBE else "")


def rows_of(runs: Sequence[SlowRun]) -> list[SlowRow]:
    """One row for each peer and kind, in the order of `KINDS`."""
    peers = dict.fromkeys(run.peer for run in runs)
    found = [[r for r in runs if (r.peer, r.kind) == (peer, kind)] for peer in peers for kind in KINDS]
    quiet = [run for run in runs if run.kind == QUIET and is_punctual(run)]
    return [slow_row(own, quiet) for own in found if own]


def is_punctual(run: SlowRun) -> bool:
    """Whether the generator's own lag is at most `LAG_PART` of the p99."""
    return not run.fault and run.lag <= LAG_PART * run.p99


def by_round(runs: Sequence[SlowRun], figure: str) -> dict[tuple[str, str, int], float]:
    """One figure of punctual runs, by the round whose runs are compared with each other."""
    return {(run.peer, run.slow_kind, run.round): getattr(run, figure) for run in runs if is_punctual(run)}


def slow_row(runs: Sequence[SlowRun], quiet: Sequence[SlowRun]) -> SlowRow:
    """Summarise the runs of one peer and kind, at least one; `quiet` are the reference runs."""
    good = [run for run in runs if not run.fault]
    endings: Counter[str] = Counter()
    for run in good:
        endings.update(run.endings)
    ratio_p50, ratio_p99 = (
        over_blocks(block_ratios(by_round(good, figure), by_round(quiet, figure)))
        for figure in ("p50", "p99")
    )
    p50, p99, cpu, memory = (
        median([getattr(run, name) for run in good] or [0.0]) for name in ("p50", "p99", "cpu", "memory")
    )
    return SlowRow(
        peer=runs[0].peer,
        kind=runs[0].kind,
        requests=sum(run.requests for run in good),
        ok=sum(run.ok for run in good),
        p50=p50,
        p99=p99,
        ratio_p50=ratio_p50,
        ratio_p99=ratio_p99,
        cpu=cpu,
        memory=memory,
        growth=memory - median([run.memory for run in quiet if run.peer == runs[0].peer] or [memory]),
        probe=max((run.probe for run in good), default=0.0),
        endings=dict(endings.most_common()),
        fault=next((run.fault for run in runs if run.fault), ""),
    )


def table_of(rows: Sequence[SlowRow]) -> Table:
    table = Table()
    for name in ("proxy", "beside"):
        table.add_column(name, no_wrap=True)
    for name in ("success", "p50", "p99", "p50/quiet", "p99/quiet", "CPU", "memory", "probe"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("ends of slow connections")
    for row in rows:
        table.add_row(*cells_of(row))
    return table


def cells_of(row: SlowRow) -> list[str]:
    if row.fault:
        return [row.peer.partition(" ")[0], row.kind, "INVALID", *[""] * 7, row.fault]
    return [
        row.peer.partition(" ")[0],
        row.kind,
        f"{success(row):.3f} %",
        f"{row.p50 * 1e3:.2f} ms",
        f"{row.p99 * 1e3:.2f} ms",
        bracketed(row.ratio_p50),
        bracketed(row.ratio_p99),
        f"{row.cpu * 100:.0f} %",
        f"{row.memory / (1 << 20):.0f} MiB",
        f"{row.probe * 1e3:.0f} ms" if row.probe else "–",
        ", ".join(f"{count} × {how}" for how, count in row.endings.items()) or "–",
    ]


def success(row: SlowRow) -> float:
    """Success in per cent; capped at 99.999 so that rounding does not hide a failure."""
    share = 100.0 * row.ok / row.requests if row.requests else 0.0
    return share if row.ok == row.requests else min(share, 99.999)


def verdicts(rows: Sequence[SlowRow], ours: str) -> list[BoundVerdict]:
    """Verdict on the balancer `ours` for each kind of slow clients."""
    controls = {row.peer: row for row in rows if row.kind == CONTROL}
    judged = [row for row in rows if row.peer.startswith(ours) and row.kind not in (QUIET, CONTROL)]
    return [verdict(row, controls.get(row.peer)) for row in judged]


def verdict(row: SlowRow, control: SlowRow | None) -> BoundVerdict:
    """Judge one row. If the A/A control differs by as much as the bound, the p99 is not judged; a failure still is."""
    is_met = row.is_met
    found = row.fault or f"{success(row):.3f} % success, {bracketed(row.ratio_p99)}{row.exceeds}"
    noise = control.ratio_p99 if control is not None else None
    if (
        noise is not None
        and not 1 / BOUND <= noise.ratio <= BOUND
        and not (row.fault or row.exceeds)
        and row.ok == row.requests
    ):
        is_met, found = None, f"{found}; A/A control: {bracketed(noise)}, the machine was not quiet"
    bounds = f"100 % success, p99 ≤ {BOUND:g} × quiet"
    if row.kind in FLOODS:
        bounds += f", memory ≤ quiet + {MOST_MEMORY >> 20} MiB, probes ≤ {LONGEST_PROBE:g} s"
    return BoundVerdict(row.peer, f"beside {row.kind}: {bounds}", is_met, found)


def doubts(runs: Sequence[SlowRun]) -> str:
    """Warning that the machine was busy; empty if every run was punctual."""
    late = [run.lag for run in runs if not run.fault and not is_punctual(run)]
    if not late:
        return ""
    return (
        f"In {len(late)} of {len(runs)} runs more than half of the p99 was the generator's own lag (at most "
        f"{max(late) * 1e3:.1f} ms): the machine was busy. These runs are in no ratio."
    )
