"""`experiments reproduce reuse`: gain of connection reuse for a service that calls a third party."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table
from rich.text import Text

from experiments.platform.session import BoundVerdict
from experiments.platform.terminal import plain_table
from experiments.report import canvas
from experiments.report.canvas import STYLE
from experiments.report.palette import GREY
from experiments.reproduce.charts import bar, draw_percentiles, label_bars, label_percentiles, nines
from experiments.reproduce.client import failures
from experiments.reproduce.judging import failures_verdict
from experiments.reproduce.latency_summary import SUMMARY_HEADS, LatencySummary, summary_of
from experiments.reproduce.reproduction import Publication, ReportProgress, Reproduction
from experiments.reproduce.reuse_runs import (
    NEW_CONNECTIONS,
    OURS,
    QUICK,
    TRANSPORTS,
    ReusePlan,
    TransportPart,
    TransportRun,
    measure,
)

BEFORE = LatencySummary(109.195, 375, 3493, 4941, 9035, 14522, 23363, 4289, 2599)
AFTER = LatencySummary(168.142, 212, 1587, 2063, 5725, 24686, 48450, 2546, 3956)
SOURCE = {"source: new connections": BEFORE, "source: reuse, libcurl": AFTER}

GAIN = 1.54
HALF_RATIO = 0.5


class Reuse(Reproduction):
    """The same calls by every transport: all users at once, then little traffic."""

    name = "reuse"
    document = Publication(
        "Connection reuse and libcurl: load tests of an API service that calls external APIs",
        "publisher not stated in the copy that was used",
    )
    summary = "Nine calls, 19 000 requests, to a third party by https: new connections, aiohttp, libcurl and our pool."
    duration = "four minutes"

    def __init__(self, is_quick: bool) -> None:
        self._plan = QUICK if is_quick else ReusePlan()
        self._runs: list[TransportRun] = []

    def introduction(self) -> str:
        plan = self._plan
        (low, high), (fewest, most), (shortest, longest) = plan.service, plan.requests, plan.idle
        return (
            f"{plan.users} users at once, each with its nine kinds of calls one after the other, {plan.calls} in all; "
            f"the service makes {plan.at_once} at a time.\nThe third party: {1e3 * plan.round_trip:g} ms of round "
            f"trip, TLS 1.2, {1e3 * low:g} to {1e3 * high:g} ms of service; it ends connections after {fewest} to "
            f"{most} requests and, without notice, after {shortest:g} to {longest:g} idle seconds.\nTime is "
            f"compressed: a second takes {plan.time_scale:g} s here, and results are given in the source's time.\n"
        )

    async def measure(self, seed: int, folder: Path, progress: ReportProgress) -> None:
        await measure(self._plan, seed, folder, progress, self._runs.append)

    @property
    def _rows(self) -> dict[str, LatencySummary]:
        return {run.transport.name: run.latency(self._plan.time_scale) for run in self._runs}

    def findings(self) -> Sequence[Table | Text]:
        if not self._runs:
            return ()
        return [
            table_of_latency(self._rows, self._runs, self._plan),
            table_of_connections(self._runs, self._plan),
            *(
                Text(f"{one.name}: not measured, {one.why_absent}.", style="yellow")
                for one in TRANSPORTS
                if one.why_absent
            ),
        ]

    def verdicts(self) -> list[BoundVerdict]:
        return verdicts(self._rows, {run.transport.name: run for run in self._runs})

    def figure(self) -> Figure:
        scale = self._plan.time_scale
        taken = {
            run.transport.name: [one.took / scale for one in run.load.calls.answers if one.is_ok]
            for run in self._runs
        }
        return reuse_figure(taken, self._rows, SOURCE)

    def content(self) -> dict[str, Any]:
        return {
            "plan": self._plan,
            "source": SOURCE,
            "rows": self._rows,
            "runs": [
                {
                    "transport": run.transport.name,
                    "load": part_content(run.load),
                    "low_traffic": part_content(run.low_traffic),
                }
                for run in self._runs
            ],
            "not_measured": {one.name: one.why_absent for one in TRANSPORTS if one.why_absent},
        }


def part_content(part: TransportPart) -> dict[str, Any]:
    """Counts for JSON, without single calls."""
    answers = part.calls.answers
    return {
        "requests": len(answers),
        "failed": failures(answers),
        "calls": Counter(one.call for one in answers),
        "statuses": Counter(one.status for one in answers),
        "failed_calls": Counter(one.call for one in answers if not one.is_ok),
        "span": part.calls.span,
        "connections": part.connections,
    }


def table_of_latency(
    rows: Mapping[str, LatencySummary], runs: Sequence[TransportRun], plan: ReusePlan
) -> Table:
    """The source's rows and ours."""
    failed = {run.transport.name: failures(run.load.calls.answers) for run in runs}
    cells = [(name, *row.texts(), str(failed.get(name, 0))) for name, row in (SOURCE | dict(rows)).items()]
    title = f"{plan.calls} requests; ms, in the source's time: 1 s of it took {plan.time_scale:g} s"
    return plain_table(("", *SUMMARY_HEADS, "failed"), cells, title=title)


def table_of_connections(runs: Sequence[TransportRun], plan: ReusePlan) -> Table:
    """Connection counters under load and with little traffic."""
    low = plan.low_traffic
    title = (
        f"connections: with all users; and with {low.calls} calls, to each of {low.parties} third parties one every "
        f"{low.gap * low.parties:g} s"
    )
    heads = (
        "",
        "opened",
        "reused",
        "opened",
        "reused",
        "lost while idle",
        "died",
        "retried",
        "failed",
        "p50, ms",
    )
    return plain_table(heads, [connection_cells(run) for run in runs], title=title)


def connection_cells(run: TransportRun) -> tuple[str, ...]:
    load, low, answers = run.load.connections, run.low_traffic.connections, run.low_traffic.calls.answers
    is_native = run.transport.transport == "native"  # aiohttp and libcurl do not expose these counters
    lost = [str(count) if is_native else "–" for count in (low.lost_idle, low.died)]
    p50 = summary_of([one.took for one in answers], 0.0).p50
    counts = map(str, (load.opened, load.reused, low.opened, low.reused))
    return (run.transport.name, *counts, *lost, str(low.retried), str(failures(answers)), f"{p50:.0f}")


def verdicts(rows: Mapping[str, LatencySummary], runs: Mapping[str, TransportRun]) -> list[BoundVerdict]:
    """Verdicts on our pool against new connections."""
    if NEW_CONNECTIONS.name not in rows or OURS.name not in rows:
        return []
    old, new, run = rows[NEW_CONNECTIONS.name], rows[OURS.name], runs[OURS.name]
    gain, half = new.rate / old.rate, new.p50 / old.p50
    load, low = run.load.calls.answers, run.low_traffic.calls.answers
    return [
        BoundVerdict("throughput", f"≥ {GAIN} × that of new connections", gain >= GAIN, f"{gain:.2f} ×"),
        BoundVerdict(
            "median",
            f"≤ {HALF_RATIO} of theirs (source: {AFTER.p50 / BEFORE.p50:.2f})",
            half <= HALF_RATIO,
            f"{half:.2f}",
        ),
        *(
            BoundVerdict(name, f"< theirs, {theirs:.0f} ms (source: {grew})", ours < theirs, f"{ours:.0f} ms")
            for name, ours, theirs, grew in (
                ("p99", new.p99, old.p99, "it grew by 70 %"),
                ("max", new.max, old.max, "it doubled"),
            )
        ),
        *(
            failures_verdict(f"{part}, our pool", failures(calls), len(calls))
            for part, calls in (("all users", load), ("little traffic", low))
        ),
    ]


COLOURS = ("#D55E00", "#009E73", "#CC79A7", "#0072B2")
SOURCE_COLOURS = (GREY, "#222222")
RANKS = (0.0, 50.0, 75.0, 95.0, 99.0, 99.9)


@mpl.rc_context(STYLE)
def reuse_figure(
    taken: Mapping[str, Sequence[float]],
    rows: Mapping[str, LatencySummary],
    source: Mapping[str, LatencySummary],
) -> Figure:
    """Figure with both panels. `taken`: seconds of each call, by transport."""
    figure, (latency, rate) = canvas.blank(4.6, 1, 2, width_ratios=(2.2, 1))
    colours = dict(zip([*source, *rows], [*SOURCE_COLOURS, *COLOURS], strict=False))
    draw_latency(latency, taken, source, colours)
    handles, _ = latency.get_legend_handles_labels()
    canvas.legend_above(figure, handles, columns=3)
    both = dict(reversed([*source.items(), *rows.items()]))
    for at, (name, row) in enumerate(both.items()):
        bar(rate, at, row.rate, f"{row.rate:.0f}", colours[name])
    rate.set_xlim(0, 1.18 * max(row.rate for row in both.values()))
    label_bars(rate, list(both), "requests per second")
    rate.set_title("Throughput", fontweight="bold")
    return figure


def draw_latency(
    axes: Axes,
    taken: Mapping[str, Sequence[float]],
    source: Mapping[str, LatencySummary],
    colours: Mapping[str, str],
) -> None:
    """Latency percentiles in milliseconds; of the source only those that it states."""
    for name, seconds in taken.items():
        draw_percentiles(axes, seconds, colours[name], name)
    for name, row in source.items():
        values = (row.p50, row.p75, row.p95, row.p99)
        at = nines((50.0, 75.0, 95.0, 99.0))
        axes.plot(at, values, "o--", color=colours[name], linewidth=1, markersize=4, label=name)
    ends = [1e3 * one for seconds in taken.values() for one in (min(seconds), max(seconds))]
    canvas.milliseconds(axes.yaxis, [*ends, *(row.p99 for row in source.values())])
    label_percentiles(axes, RANKS)
    axes.set_ylabel("ms, in the source's time")
    axes.set_title("Latency of a call", fontweight="bold")
