"""`experiments reproduce keepalive`: gain of keep-alive, TLS 1.3 and HTTP/2 for one sequential client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from rich.table import Table

from experiments.platform.session import BoundVerdict
from experiments.platform.terminal import plain_table
from experiments.report import canvas
from experiments.report.canvas import STYLE
from experiments.reproduce.charts import BAD, GOOD, SOURCE_MARK, bar, label_bars
from experiments.reproduce.judging import written
from experiments.reproduce.keepalive_runs import (
    CASES,
    MAX_DEVIATION,
    PROXIED,
    QUICK,
    SOURCE_HTTP2_RATIO,
    KeepaliveCase,
    KeepalivePlan,
    KeepaliveRow,
    Measurement,
    Timing,
    http2_to_http1,
    is_busy,
    measure,
    oversleep_of,
    rows_of,
    saved_by_keep_alive,
)
from experiments.reproduce.reproduction import Publication, ReportProgress, Reproduction

SOURCE = {("1.2", True): 135, ("1.2", False): 30}
"""The source's results in ms, by TLS version and whether a connection is opened; the first is a lower bound. It counts
TCP's third packet, which travels with TLS's first, as a round trip of its own, and no service time.
"""


class Keepalive(Reproduction):
    """HTTP versions, TLS versions and keep-alive in all combinations, and a balancer between."""

    name = "keepalive"
    document = Publication(
        "Improving API Performance with HTTP Keepalive", "Clete Blackwell II, State Farm Engineering"
    )
    summary = "HTTP/1.1 and 2, TLS 1.2 and 1.3, with keep-alive and without, over 15 ms one way."
    duration = "about four minutes"

    def __init__(self, is_quick: bool) -> None:
        self._plan = QUICK if is_quick else KeepalivePlan()
        self._found: list[Measurement] = []

    def introduction(self) -> str:
        plan = self._plan
        return (
            f"One sequential client, workers {1e3 * plan.one_way:g} ms away one way, {1e3 * plan.service:g} ms of "
            f"service, {plan.blocks} blocks of {plan.calls} calls in each case, and as many to its counterpart without "
            "distance, which shows the time that both ends compute.\n"
            "The client is a blocking socket, with the ngh2 library for HTTP/2; no session is resumed.\n"
        )

    async def measure(self, seed: int, folder: Path, progress: ReportProgress) -> None:
        def measured(one: Measurement) -> None:
            self._found.append(one)
            progress(f"[{len(self._found)}/{self._plan.blocks * 2 * len(CASES)}] {one.case.name}")

        await measure(self._plan, seed, folder, measured)

    @property
    def _rows(self) -> list[KeepaliveRow]:
        return rows_of(self._found, self._plan)

    def findings(self) -> Sequence[Table | str]:
        if not (rows := self._rows):
            return ()
        explained = sum(row.is_explained for row in rows)
        found: list[Table | str] = [table_of(rows), *conclusions(rows, self._found)]
        found.append(
            f"{explained} of {len(rows)} cases are within {MAX_DEVIATION:.0%} of round trips plus the time without "
            "distance."
        )
        if is_busy(self._found):
            late = 1e3 * oversleep_of(self._found)
            found.append(f"The machine was busy: every tenth sleep ended {late:.1f} ms late or more.")
        return found

    def verdicts(self) -> list[BoundVerdict]:
        busy = is_busy(self._found)
        return [
            BoundVerdict(
                row.case.name,
                f"both within {MAX_DEVIATION:.0%} of arithmetic",
                row.is_met(busy),
                f"{in_ms(row.first)} and {in_ms(row.later)} ms",
            )
            for row in self._rows
        ]

    def figure(self) -> Figure:
        return keepalive_figure(self._rows)

    def content(self) -> dict[str, Any]:
        ratio, busy = http2_to_http1(self._found), is_busy(self._found)
        return {
            "plan": self._plan,
            "oversleep": oversleep_of(self._found),
            "rows": [
                {"case": row.case, "name": row.case.name}
                | {"is_met": row.is_met(busy), "is_explained": row.is_explained}
                | timing_content("first", row.first)
                | timing_content("later", row.later)
                for row in self._rows
            ],
            "http2_to_http1": ratio and {"ratio": ratio.ratio, "interval": (ratio.low, ratio.high)},
            "measurements": self._found,
        }


def timing_content(name: str, timing: Timing) -> dict[str, Any]:
    """Figures of first or later calls for JSON."""
    found = timing.found
    figures = {"theory": timing.theory, "expected": timing.expected, "interval": (found.low, found.high)}
    return {name: found.ratio} | {f"{name}_{key}": value for key, value in figures.items()}


def in_ms(timing: Timing) -> str:
    return f"{timing.found.ratio:.1f} [{timing.found.low:.0f}, {timing.found.high:.0f}]"


def table_of(rows: Sequence[KeepaliveRow]) -> Table:
    """Table with a row for each case: measured, interval, expected, theory and source."""
    heads = ("case", "first", "near + trips", "source", "later", "near + trips", "source")
    title = (
        "ms: mean [95 % interval]; time without distance + round trips (arithmetic: service + round trips); "
        "the source's, without service"
    )
    cells = ((row.case.name, *cells_of(row, True), *cells_of(row, False)) for row in rows)
    return plain_table(heads, cells, title=title)


def cells_of(row: KeepaliveRow, is_first: bool) -> tuple[str, ...]:
    timing, source = row.first if is_first else row.later, source_of(row.case, is_first)
    least = "≥ " if is_new(row.case, is_first) else ""
    expected = f"{timing.expected:.1f} ({timing.theory:.0f})"
    return in_ms(timing), expected, "–" if source is None else f"{least}{source}"


def is_new(case: KeepaliveCase, is_first: bool) -> bool:
    """Whether a connection is opened for the call."""
    return is_first or not case.keep_alive


def source_of(case: KeepaliveCase, is_first: bool) -> float | None:
    """The source's milliseconds of a call; None if it gives no figure."""
    return SOURCE.get((case.tls, is_new(case, is_first)))


def conclusions(rows: Sequence[KeepaliveRow], found: Sequence[Measurement]) -> Iterator[str]:
    """The source's conclusions with the results measured here."""
    for tls, theirs in (("1.2", "206 ms, over a longer distance"), ("1.3", "–")):
        if (saved := saved_by_keep_alive(rows, tls)) is not None:
            yield f"Keep-alive saves {saved:.1f} ms per later call with TLS {tls} (source: {theirs})."
    if (ratio := http2_to_http1(found)) is not None:
        yield (
            f"HTTP/2 takes {written(ratio, '{:.3f}'.format)} times as long as HTTP/1.1 for one sequential client "
            f"(source: {SOURCE_HTTP2_RATIO} times)."
        )
    later = {row.case: row.later.found.ratio for row in rows}
    direct = KeepaliveCase(PROXIED.http, PROXIED.tls, PROXIED.keep_alive)
    if PROXIED in later and direct in later:
        yield f"The proxy, called without TLS, adds {later[PROXIED] - later[direct]:+.2f} ms to a later call."


HEIGHT = 0.36


@mpl.rc_context(STYLE)
def keepalive_figure(rows: Sequence[KeepaliveRow]) -> Figure:
    """Figure with two bars for each case, in milliseconds."""
    figure, (axes,) = canvas.blank(1.4 + 0.48 * len(rows), 1, 1)
    for at, row in enumerate(rows[::-1]):
        for timing, is_first in ((row.first, True), (row.later, False)):
            place, colour = (at + HEIGHT / 2, BAD) if is_first else (at - HEIGHT / 2, GOOD)
            text, interval = f"{timing.found.ratio:.1f}", (timing.found.low, timing.found.high)
            bar(axes, place, timing.found.ratio, text, colour, 0.92 * HEIGHT, interval, timing.expected)
            if (source := source_of(row.case, is_first)) is not None:
                axes.plot(source, place, **SOURCE_MARK)
    label_bars(
        axes,
        [row.case.name for row in rows[::-1]],
        "ms per call: mean, its 95 % interval, and round trips plus the time without delay (stroke)",
    )
    axes.set_title("Gain of keep-alive, TLS 1.3 and HTTP/2 for one sequential client", fontweight="bold")
    bars = [
        mpl.patches.Patch(color=colour, label=label)
        for colour, label in ((BAD, "first call"), (GOOD, "later calls"))
    ]
    circle = mpl.lines.Line2D([], [], **SOURCE_MARK, label="source, without the time of service")
    canvas.legend_above(figure, [*bars, circle])
    return figure
