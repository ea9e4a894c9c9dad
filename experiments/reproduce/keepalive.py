"""`experiments reproduce keepalive`: gain of keep-alive, TLS 1.3 and HTTP/2 for one sequential client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from rich.table import Table

from experiments.platform.session import BoundVerdict
from experiments.platform.terminal import plain_table
from experiments.report import canvas
from experiments.report.canvas import STYLE
from experiments.reproduce.charts import BAD, GOOD, bar, label_bars
from experiments.reproduce.keepalive_runs import (
    CASES,
    MAX_DEVIATION,
    MOST_OVERSLEEP,
    PROXIED,
    QUICK,
    SOURCE_HTTP2_RATIO,
    KeepaliveCase,
    KeepalivePlan,
    KeepaliveRow,
    Measurement,
    http2_to_http1,
    measure,
    oversleep_of,
    rows_of,
    saved_by_keep_alive,
)
from experiments.reproduce.reproduction import Publication, ReportProgress, Reproduction

SOURCE = {("1.2", True): "≥ 135", ("1.2", False): "30"}
"""The source's results in ms, by TLS version and whether it is the first call. It counts TCP's third packet, which
travels with TLS's first, as a round trip of its own, and no service time.
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
        if any(self._is_met(row) is None for row in rows):
            late = 1e3 * oversleep_of(self._found)
            found.append(f"The machine was busy: every tenth sleep ended {late:.1f} ms late or more.")
        return found

    def verdicts(self) -> list[BoundVerdict]:
        return [
            BoundVerdict(
                row.case.name,
                f"medians within {MAX_DEVIATION:.0%} of arithmetic",
                self._is_met(row),
                f"{row.first:.1f} and {row.later:.1f} ms",
            )
            for row in self._rows
        ]

    def _is_met(self, row: KeepaliveRow) -> bool | None:
        """Verdict on a case. Other load on the machine only adds time: under it a miss is not judged."""
        return row.is_met or (None if oversleep_of(self._found) > MOST_OVERSLEEP else False)

    def figure(self) -> Figure | None:
        return keepalive_figure(rows) if (rows := self._rows) else None

    def content(self) -> dict[str, Any]:
        ratio = http2_to_http1(self._found)
        return {
            "plan": asdict(self._plan),
            "oversleep": oversleep_of(self._found),
            "rows": [
                asdict(row)
                | {"name": row.case.name, "is_met": self._is_met(row), "is_explained": row.is_explained}
                for row in self._rows
            ],
            "http2_to_http1": ratio and {"ratio": ratio[0], "interval": ratio[1]},
            "measurements": [asdict(one) for one in self._found],
        }


def table_of(rows: Sequence[KeepaliveRow]) -> Table:
    """Table with a row for each case: measured, interval, expected, theory and source."""
    heads = ("case", "first", "near + trips", "source", "later", "near + trips", "source")
    title = (
        "ms: median [95 % interval]; time without distance + round trips (arithmetic: service + round trips); "
        "the source's, without service"
    )
    return plain_table(heads, [cells_of(row) for row in rows], title=title)


def cells_of(row: KeepaliveRow) -> tuple[str, ...]:
    tls = row.case.tls
    return (
        row.case.name,
        with_interval(row.first, row.first_interval),
        f"{row.first_expected:.1f} ({row.first_theory:.0f})",
        SOURCE.get((tls, True), "–"),
        with_interval(row.later, row.later_interval),
        f"{row.later_expected:.1f} ({row.later_theory:.0f})",
        SOURCE.get((tls, not row.case.keep_alive), "–"),
    )


def with_interval(value: float, interval: tuple[float, float]) -> str:
    return f"{value:.1f} [{interval[0]:.0f}, {interval[1]:.0f}]"


def conclusions(rows: Sequence[KeepaliveRow], found: Sequence[Measurement]) -> Iterator[str]:
    """The source's conclusions with the results measured here."""
    for tls, theirs in (("1.2", "206 ms, over a longer distance"), ("1.3", "–")):
        if (saved := saved_by_keep_alive(rows, tls)) is not None:
            yield f"Keep-alive saves {saved:.1f} ms per later call with TLS {tls} (source: {theirs})."
    if (measured := http2_to_http1(found)) is not None:
        ratio, (low, high) = measured
        yield (
            f"HTTP/2 takes {ratio:.3f} [{low:.3f}, {high:.3f}] times as long as HTTP/1.1 for one sequential client "
            f"(source: {SOURCE_HTTP2_RATIO} times)."
        )
    later = {row.case: row.later for row in rows}
    direct = KeepaliveCase(PROXIED.http, PROXIED.tls, PROXIED.keep_alive)
    if PROXIED in later and direct in later:
        yield f"The proxy, called without TLS, adds {later[PROXIED] - later[direct]:+.2f} ms to a later call."


FIRST, LATER = BAD, GOOD
HEIGHT = 0.36


@mpl.rc_context(STYLE)
def keepalive_figure(rows: Sequence[KeepaliveRow]) -> Figure:
    """Figure with two bars for each case, in milliseconds."""
    figure, (axes,) = canvas.blank(1.4 + 0.48 * len(rows), 1, 1)
    rows = rows[::-1]
    for at, row in enumerate(rows):
        for value, expected, interval, place, colour in (
            (row.first, row.first_expected, row.first_interval, at + HEIGHT / 2, FIRST),
            (row.later, row.later_expected, row.later_interval, at - HEIGHT / 2, LATER),
        ):
            bar(axes, place, value, f"{value:.1f}", colour, 0.92 * HEIGHT, interval, expected)
    label_bars(
        axes,
        [row.case.name for row in rows],
        "ms per call: median, its 95 % interval, and round trips plus the time without delay (stroke)",
    )
    axes.set_title("Gain of keep-alive, TLS 1.3 and HTTP/2 for one sequential client", fontweight="bold")
    handles = [
        mpl.patches.Patch(color=FIRST, label="first call"),
        mpl.patches.Patch(color=LATER, label="later calls"),
    ]
    axes.legend(handles=handles, loc="lower right")
    return figure
