"""The report of a load curve (a campaign over several rates), from its files alone.

A function of the directory: the same files give the same bytes. It writes

    load.json  load.csv  load.html  figures/latency-against-load.svg  .png

The rate axis of the figures is absolute and the same for all entries; a point that did not keep up or is invalid is
hollow and grey, and its line continues through it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from rich.console import Console
from rich.text import Text

from balancer.syntax.printable import with_digits
from experiments.capacity.curve import Curve, Point, read_curve
from experiments.capacity.offered import pooled
from experiments.errors import BadInputError
from experiments.platform.json_values import plainly
from experiments.platform.terminal import in_ms
from experiments.report import canvas
from experiments.report.canvas import STYLE
from experiments.report.document import Document, Section, to_html
from experiments.report.drawings import Drawing, save_drawing
from experiments.report.exports import csv_text
from experiments.report.figures import line_of
from experiments.report.pages import write
from experiments.report.palette import GREY, INK, Competitor, competitors
from experiments.report.tables import Cell, Table, milliseconds, row, terminal_table

CAPTION = (
    "Left p99 against offered load with its 95 % interval over blocks, right what was answered; the thin diagonal is "
    "all that was offered. The ring is the knee: the most answers per second for the p99 they cost. Grey and hollow: "
    "requests piled up, more than 1 % failed, or a run was invalid."
)
CSV_COLUMNS = (
    "entry", "rate", "p99_s", "p99_low_s", "p99_high_s", "blocks", "mean_s", "answered", "goodput", "errors",
    "keeps_up", "valid", "knee",
)  # fmt: skip

ESSENTIAL = ("entry", "offered /s", "answered /s", "p99 ms [95 %]", "")
"""Columns that a narrow terminal shows."""


def write_load_report(directory: Path, out: Path | None = None) -> Curve:
    """Write every output beside the rates or into `out`. Raises `BadInputError` when it cannot."""
    curve, directory = read_curve(directory), out or directory
    results = curve.results[-1]
    scenario, field = results.scenario, competitors(results)
    slo, most = scenario.measured_slo, pooled(scenario)
    drawing = Drawing(
        "latency-against-load",
        "Latency against offered load",
        CAPTION,
        lambda: load_curves(curve, field, slo, most),
    )
    try:
        picture = save_drawing(drawing, directory / "figures")
        write(directory / "load.json", json.dumps(as_json(curve), indent=2, ensure_ascii=False) + "\n")
        write(directory / "load.csv", as_csv(curve))
        table = load_table(curve)
        sections = [Section(picture.title, picture), Section(table.title, table=table)]
        title = f"{scenario.name}: latency against load"
        page = Document(
            title, scenario.question, sections, f"Steelyard load curve · {scenario.name}", headline(curve)
        )
        write(directory / "load.html", to_html(page))
    except OSError as error:
        raise BadInputError(f"{directory}: the report cannot be written: {error.strerror}") from None
    return curve


def headline(curve: Curve) -> str:
    """Highest rate that each entry carries within the SLO, best first; entries with the same rate together."""
    scenario = curve.results[0].scenario
    limits: dict[tuple[float, str], list[str]] = {}
    for label in curve.labels:
        rate = curve.limit(label, scenario.measured_slo)
        lowest = curve.of(label)[0]
        why = remark(lowest) or f"p99 {in_ms(lowest.p99.ratio)}"
        words = f"up to {with_digits(rate, 4)}/s" if rate else f"at no rate from the lowest on ({why})"
        limits.setdefault((rate, words), []).append(label)
    top = max(point.rate for point in curve.points)
    shown = [
        f"{', '.join(labels)} {words}"
        + (f", the highest {'measured' if curve.missing else 'offered'}" if rate == top else "")
        for (rate, words), labels in sorted(limits.items(), key=lambda item: -item[0][0])
    ]
    missing = f". Stopped: {curve.missing} planned runs are missing" if curve.missing else ""
    return f"The p99 stays within {scenario.measured_slo * 1e3:g} ms: {'; '.join(shown)}{missing}"


def load_table(curve: Curve) -> Table:
    columns = (
        "entry",
        "offered /s",
        "answered /s",
        "p99 ms [95 %]",
        "mean ms",
        "goodput %",
        "% KO",
        "blocks",
        "",
    )
    note = (
        "p99 and mean have failures at the deadline; geometric means over blocks. Grey: fewer than 100 beyond. "
        "Answered: in the last three quarters of a run, in which chance may offer a little more than the rate."
    )
    rows = tuple(
        cells(point, curve.knee(point.label) is point) for label in curve.labels for point in curve.of(label)
    )
    return Table("Every rate", note, columns, rows)


def remark(point: Point) -> str:
    """Why a point does not count; empty if it does."""
    return "INVALID" if not point.valid else "" if point.keeps_up else "does not keep up"


def cells(point: Point, is_knee: bool) -> tuple[Cell, ...]:
    """Table row of one point of the load curve."""
    words = remark(point)
    return row(
        *(point.label, with_digits(point.rate, 4), with_digits(point.answered, 4)),
        Cell(span(point), "few" if point.few else ""),
        milliseconds(point.mean),
        f"{100 * point.goodput:.1f}",
        Cell(f"{100 * point.errors:.2f}", "bad" if point.errors else ""),
        point.p99.blocks,
        Cell(words, "bad") if words else Cell("knee" if is_knee else "", "good" if is_knee else ""),
    )


def span(point: Point) -> str:
    """Format p99 with its interval in ms as `212 [201–224]`."""
    centre, low, high = (
        milliseconds(value).text for value in (point.p99.ratio, point.p99.low, point.p99.high)
    )
    return centre if math.isnan(point.p99.low) else f"{centre} [{low}–{high}]"


def print_curve(curve: Curve, console: Console) -> None:
    console.print(terminal_table(load_table(curve), console.width, ESSENTIAL))
    console.print(Text(f"{headline(curve)}.", style="bold"))
    for label in curve.labels:
        knee = curve.knee(label)
        words = "no knee within these rates" if knee is None else f"knee at {with_digits(knee.rate, 4)}/s"
        console.print(Text(f"{label}: {words}"))


def as_json(curve: Curve) -> dict[str, Any]:
    """Load curve as JSON values; times in measured seconds, rates per scenario second."""
    scenario = curve.results[0].scenario
    return {
        "scenario": scenario.name,
        "slo": scenario.measured_slo,
        "headline": headline(curve),
        "missing_runs": curve.missing,
        "pooled": pooled(scenario),
        "knees": {label: knee.rate for label in curve.labels if (knee := curve.knee(label)) is not None},
        "points": [plainly(point) for point in curve.points],
    }


def as_csv(curve: Curve) -> str:
    rows = (
        [
            point.label,
            *map(plainly, (point.rate, point.p99.ratio, point.p99.low, point.p99.high, point.p99.blocks)),
            *map(plainly, (point.mean, point.answered, point.goodput, point.errors)),
            *map(plainly, (point.keeps_up, point.valid, curve.knee(point.label) is point)),
        ]
        for point in curve.points
    )
    return csv_text(CSV_COLUMNS, rows)


@mpl.rc_context(STYLE)
def load_curves(curve: Curve, field: Sequence[Competitor], slo: float, pooled: float) -> Figure:
    """p99 with confidence intervals on a log axis, and successes per second, both over the offered rate."""
    legend = 0.26 * math.ceil((len(field) + 3) / 5)
    figure, (left, right) = canvas.blank(4.4 + legend, columns=2)
    for one in field:
        draw_curve(left, right, one, curve.of(one.label), curve.knee(one.label))
    ends = [
        1e3 * value for point in curve.points for value in (point.p99.low, point.p99.high, point.p99.ratio)
    ]
    left.axhline(slo * 1e3, color=GREY, linewidth=1, linestyle=(0, (5, 3)))
    canvas.milliseconds(left.yaxis, [*(value for value in ends if math.isfinite(value)), slo * 1e3])
    top = max(point.rate for point in curve.points)
    right.plot([0, top], [0, top], color=GREY, linewidth=1, zorder=0)
    left.set(ylabel="p99 with failures at the deadline, ms (log)")
    right.set(ylabel="answered per second", ylim=(0, None))
    for axes in (left, right):
        axes.set(
            xlabel=f"offered per second (the workers together: {with_digits(pooled, 4)})",
            xlim=(0, top * 1.04),
        )
        axes.axvline(pooled, color=GREY, linewidth=1, linestyle=(0, (1, 2)))
    canvas.legend_above(figure, [*(line_of(one) for one in field), *marks()])
    return figure


def draw_curve(left: Axes, right: Axes, one: Competitor, points: Sequence[Point], knee: Point | None) -> None:
    """Draw one entry in both panels."""
    rates = [point.rate for point in points]
    for axes, values in ((left, [1e3 * p.p99.ratio for p in points]), (right, [p.answered for p in points])):
        axes.plot(rates, values, color=one.colour, linestyle=one.dash, linewidth=1.9)
        for point, value in zip(points, values, strict=True):
            is_sound = point.keeps_up and point.valid
            face, edge = (one.colour, one.colour) if is_sound else ("white", GREY)
            axes.plot(
                [point.rate], [value], "o", markersize=5, markerfacecolor=face, markeredgecolor=edge, zorder=3
            )
    for point in points:
        if math.isfinite(point.p99.low):
            ends = [1e3 * point.p99.low, 1e3 * point.p99.high]
            left.plot([point.rate, point.rate], ends, color=one.colour, linewidth=1.2, alpha=0.8)
    if knee is not None:
        ring: Any = {"markersize": 13, "markerfacecolor": "none", "markeredgewidth": 1.6, "linestyle": ""}
        left.plot([knee.rate], [1e3 * knee.p99.ratio], marker="o", markeredgecolor=one.colour, **ring)


def marks() -> list[Line2D]:
    """Legend handles other than the entries' lines."""
    point: dict[str, Any] = {"linestyle": "", "marker": "o"}
    return [
        Line2D([], [], markersize=11, markerfacecolor="none", color=INK, label="knee", **point),
        Line2D([], [], markerfacecolor="white", color=GREY, label="does not keep up", **point),
        Line2D([], [], color=GREY, linestyle=(0, (5, 3)), label="SLO"),
    ]
