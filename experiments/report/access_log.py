"""Report of an access log: the figures and tables of an experiment that a log has data for.

A log is one run without a scenario, so nothing is compared or ranked. Requests are numbered in order of arrival, and
instants count from the first. A request is due when its first byte arrives, because a log has no earlier instant.

Writes report.html, report.md, figures/*.svg and figures/*.png.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from experiments.errors import BadInputError
from experiments.platform.terminal import in_ms
from experiments.recorded.access_log import LogColumns
from experiments.report import canvas, figures, figures_workers
from experiments.report.canvas import STYLE
from experiments.report.charts import latency_charts
from experiments.report.document import Document, Picture, Section, sections_of, to_html, to_markdown
from experiments.report.drawings import Drawing, save_drawing, tail_drawing
from experiments.report.entry_tables import COLUMNS, table_of
from experiments.report.figures_time import bins_of
from experiments.report.pages import write
from experiments.report.palette import INK, INVALID, Competitor, entry_colours, region_colours, worker_colours
from experiments.report.tables import Cell, Table, row, supported
from experiments.run_data import Flags, Floats, Ints, Kind, Place, Run, RunFacts, Samples, region_numbers
from experiments.stats import measures
from experiments.stats.measures import quantiles, success_latency
from experiments.verdict.phrases import failed_text, grouped_digits

ANSWERED = (Kind.OK, Kind.ERROR_STATUS)


@dataclass(frozen=True, slots=True, eq=False)
class LoggedSamples(Samples):
    """Rows that stand for requests that were not logged, too, whose latencies are not known."""

    def per_request(self, values: Floats, rows: Flags | slice = slice(None)) -> Floats:
        """Values of the chosen rows, each once: they support no more than they are."""
        return values[rows]


@dataclass(frozen=True, slots=True, eq=False)
class LogRuns:
    """A log that was read, and its requests by time: `rows` as in the log, `whole` as a run.

    `place` is the last endpoint tried, even without a response; -1: none.
    """

    name: str
    columns: LogColumns
    rows: NDArray[Any]
    whole: Run
    place: Ints

    @property
    def places(self) -> tuple[Place, ...]:
        return self.whole.facts.places

    @property
    def unreadable_in_words(self) -> str:
        """How many lines could not be read, with the first; empty if all could."""
        if not (count := self.columns.unreadable):
            return ""
        part = count / (count + len(self.rows) + self.columns.left_out)
        lines, are = ("line", "is") if count == 1 else ("lines", "are")
        return (
            f"{count:,} {lines} ({part:.2%}) could not be read and {are} left out; the first is "
            f"{self.columns.first_problem}"
        )

    @property
    def sampled_in_words(self) -> str:
        """How a sample was logged; empty if all was."""
        if self.columns.least_sample == 1:
            return ""
        return (
            f"Only a share of {self.columns.least_sample:g} of what went well was logged, and every failure. A line "
            "counts as the requests for which it stands; percentiles are of the lines"
        )

    def by_policy(self) -> list[Competitor]:
        """Parts by policy, in order of first appearance."""
        names = self.columns.policies
        return self._parts(names, entry_colours([*names]), self.rows["policy"])

    def by_region(self) -> list[Competitor]:
        """Parts by region, in order of first appearance, each in the first colour of its workers."""
        colours = region_colours(self.places)
        regions = [f"region {region}" for region in colours]
        return self._parts(regions, [*colours.values()], region_numbers(self.places)[self.place])

    def by_endpoint(self) -> list[Competitor]:
        """Parts by endpoint, region by region."""
        workers = [place.worker for place in self.places]
        return self._parts(workers, worker_colours(self.places), self.place)

    def altogether(self) -> Competitor:
        return self._parts(["all"], [INK], np.zeros_like(self.place))[0]

    def _parts(self, labels: Iterable[str], colours: Sequence[str], number: Ints) -> list[Competitor]:
        """The requests of each number as figures show them, with unchanged instants."""
        return [
            Competitor(
                label, colour, 0, (Run(self.whole.facts, self.whole.samples.rows(number == at)),), True
            )
            for at, (label, colour) in enumerate(zip(labels, colours, strict=True))
        ]


def log_runs(columns: LogColumns, name: str) -> LogRuns:
    """Sort the columns by time and compute the instants."""
    rows = columns.rows[np.argsort(columns.rows["at"], kind="stable")]
    at, total, service = rows["at"], rows["total"], rows["service"]
    scheduled = at - at[0]
    ended = scheduled + total
    sent = ended - service
    kind = rows["kind"]
    places, place = placed(columns, rows["endpoint"])
    unlogged = np.floor(np.cumsum(1 / rows["sample"] - 1) + 0.5).astype(np.int64)  # whole ones, which add up
    facts = RunFacts(
        label=name,
        policy={},
        mode="open",
        requests=len(at),
        block=0,
        order=0,
        seed=0,
        timeout=float(total.max()),
        places=places,
    )
    worker = np.where(np.isin(kind, ANSWERED), place, -1)
    samples = LoggedSamples(
        scheduled_at=scheduled,
        sent_at=sent,
        first_byte_at=sent + rows["first_byte"],
        ended_at=ended,
        status=rows["status"],
        kind=kind,
        worker=worker,
        region=region_numbers(places)[worker],
        sequence=np.arange(len(at)),
        attempts=rows["attempts"],
        weight=1 + np.diff(unlogged, prepend=0),
    )
    return LogRuns(name, columns, rows, Run(facts, samples), place)


def placed(columns: LogColumns, endpoint: Ints) -> tuple[tuple[Place, ...], Ints]:
    """Endpoints sorted by region and name, and each request's index among them; -1 for none."""
    names = sorted(columns.endpoints, key=lambda name: (columns.regions[name], name))
    places = tuple(Place(worker=name, region=columns.regions[name]) for name in names)
    rank = {name: index for index, name in enumerate(names)}
    by_number = np.array([*(rank[name] for name in columns.endpoints), -1], dtype=np.int64)
    return places, by_number[endpoint]


COUNTED = "Successes of each policy, by the instant at which a request came."
"""Which requests count in the tail over time."""

MOST_ROWS = 40
"""Largest number of endpoints in one figure: those with the most requests."""


def write_log_report(log: LogRuns, directory: Path, command: str) -> list[Table]:
    """Write all outputs into `directory`; returns the tables. Raises `BadInputError` if that fails."""
    tables = [statistics_of_log(log), phase_table(log), ending_table(log)]
    try:
        pictures = [save_drawing(drawing, directory / "figures") for drawing in log_drawings(log)]
        document = document_of(log, tables, pictures, command)
        write(directory / "report.md", to_markdown(document))
        write(directory / "report.html", to_html(document))
    except OSError as error:
        raise BadInputError(f"--out: {directory}: cannot be written: {error.strerror}") from None
    return tables


def log_drawings(log: LogRuns) -> list[Drawing]:
    policies, regions, whole = log.by_policy(), log.by_region(), log.altogether()
    rows = busiest([*(regions if len(regions) > 1 else []), *log.by_endpoint()])
    made = [
        Drawing(
            "throughput-over-time",
            "Throughput over time",
            "Successes per second, counted when they ended: all, and those of each region."
            + " Grey: failures." * (not whole.runs[0].samples.ok.all()),
            lambda: throughput_over_time(whole, regions),
        ),
        Drawing(
            "latency-distribution",
            "Latency distribution",
            "By policy: the share of all requests that were answered within a time, from the first byte of the "
            "request to the last of the response; then the same with the tail enlarged.",
            lambda: figures.latency_distribution(policies),
            lambda: latency_charts(policies),
        ),
        Drawing(
            "service-time-by-request",
            "Service time against request number",
            "Each dot is a request, from sent to last byte, numbered as it came; a panel for each policy, a colour for "
            "each worker. "
            f"Level bands are round trips; a slope is a queue that grows.{figures_workers.thinning(policies)}",
            lambda: figures_workers.service_by_request(policies),
        ),
    ]
    if (bins := bins_of([whole], is_mapped=False)) is not None:
        made.append(tail_drawing(policies, bins, (), COUNTED))
    if rows:  # some request got an endpoint
        made[1:1] = [
            Drawing(
                "latency-quantiles",
                "Latency by region and endpoint",
                "Further left is better, and a short line is a steady endpoint. Successes only; hollow grey marks "
                "rest on fewer than 100 samples beyond them.",
                lambda: figures.latency_quantiles(rows),
            ),
            Drawing(
                "share-per-worker",
                "Share per worker",
                "Requests of each worker, by policy. One hue per region, one shade per worker.",
                lambda: figures_workers.worker_share(policies),
            ),
        ]
    return made


def busiest(rows: list[Competitor]) -> list[Competitor]:
    """The `MOST_ROWS` rows with the most requests, in their order; rows without a success are omitted."""
    able = [one for one in rows if one.runs[0].samples.ok.any()]
    most = sorted(able, key=lambda one: one.runs[0].samples.requests, reverse=True)[:MOST_ROWS]
    return [one for one in able if one in most]


def method(log: LogRuns, command: str) -> list[str]:
    began = datetime.fromtimestamp(float(log.rows["at"][0]), UTC)
    lines = [
        f"Repeat it: {command}",
        f"The log begins {began:%Y-%m-%d %H:%M:%S} UTC and spans {log.whole.samples.span:.1f} s.",
        "Latency runs from the first byte of a request's head to the last byte of its response, as the balancer "
        "saw them; service time from the instant of sending.",
        "A success is an answer with a status below 400. Failures are counted where they were tried last.",
        "Requests are numbered in the order in which they came.",
    ]
    if log.columns.left_out:
        lines.append(f"Left out: {log.columns.left_out} admin requests and tunnels.")
    return lines


def headline(log: LogRuns) -> str:
    """Failures and the best supported percentile of the whole log, in one line."""
    samples, latency = log.whole.samples, success_latency([log.whole])
    failed = samples.requests - samples.successes
    known = [one for one in quantiles(latency) if not one.hidden and one.percent <= 99]
    share = (
        f"{failed_text(failed, samples.requests)} requests failed"
        if failed
        else f"None of {grouped_digits(samples.requests)} requests failed"
    )
    if not known:
        return share
    whose = "of the others" if failed else "of them"
    return f"{share}; {known[-1].percent:g} % {whose} were answered within {in_ms(known[-1].seconds)}"


def document_of(log: LogRuns, tables: Sequence[Table], pictures: Sequence[Picture], command: str) -> Document:
    heading = f"{grouped_digits(log.whole.samples.requests)} requests from {log.name}"
    return Document(
        title=heading,
        heading=heading,
        eyebrow="Steelyard access log",
        headline=headline(log),
        warnings=[
            Section("Lines that could not be read", lines=[*filter(None, [log.unreadable_in_words])]),
            Section("A sample", lines=[*filter(None, [log.sampled_in_words])]),
        ],
        sections=sections_of(tables, pictures, method(log, command)),
    )


BINS = 60


@mpl.rc_context(STYLE)
def throughput_over_time(whole: Competitor, regions: Sequence[Competitor]) -> Figure:
    """Successes per second in total and by region, and failures per second in grey."""
    figure, (axes,) = canvas.blank(3.2)
    samples = whole.runs[0].samples
    edges = np.linspace(0, max(samples.span, 1e-3), BINS + 1)
    if not samples.ok.all():
        step(axes, samples.rows(~samples.ok), edges, INVALID, filled=True)
    for one in regions if len(regions) > 1 else ():
        part = one.runs[0].samples
        step(axes, part.rows(part.ok), edges, one.colour)
    step(axes, samples.rows(samples.ok), edges, INK)
    axes.set(xlabel="seconds from the first request", ylabel="requests per second", xlim=(0, edges[-1]))
    axes.set_ylim(bottom=0)
    named = [("all successes", INK), *((one.label, one.colour) for one in regions if len(regions) > 1)]
    shown = [*named, *([] if samples.ok.all() else [("failed", INVALID)])]
    handles = [Line2D([], [], color=colour, linewidth=2.2, label=name) for name, colour in shown]
    canvas.legend_above(figure, handles)
    return figure


def step(axes: Axes, samples: Samples, edges: Floats, colour: str, filled: bool = False) -> None:
    """Draw a rate for each bin, as steps."""
    counts, _ = np.histogram(samples.ended_at, edges, weights=samples.weight)
    rate = counts / np.diff(edges)
    if filled:
        axes.stairs(rate, edges, color=colour, alpha=0.5, fill=True)
    else:
        axes.stairs(rate, edges, baseline=None, color=colour, linewidth=1.8)


LOG_COLUMNS = [
    replace(column, head="99.9th") if column.name == "p99.9_s" else column
    for column in COLUMNS
    if column.shown == "statistics" or column.name == "p99.9_s"
]
"""Columns of the statistics, which show the 99.9th percentile, too."""


def statistics_of_log(log: LogRuns) -> Table:
    """Statistics of the whole log, and of each policy, region and endpoint if there are several."""
    groups = (log.by_policy(), log.by_region(), log.by_endpoint())
    rows = [log.altogether(), *(one for group in groups if len(group) > 1 for one in group)]
    note = (
        "Latency of successes in milliseconds, from the first byte of the request to the last of the response; "
        "req/s counts successes over the time of the row's own requests. A percentile is grey with fewer than 100 "
        "samples beyond it, and left out with fewer than 10."
    )
    return table_of("Statistics", note, LOG_COLUMNS, ((Cell(one.label), entry_of(one)) for one in rows))


def entry_of(one: Competitor) -> SimpleNamespace:
    """What the columns of the statistics read of an entry."""
    latency = measures.quantiles(measures.success_latency(one.runs))
    return SimpleNamespace(table=measures.statistics_row(one.runs), latency=latency)


def phase_table(log: LogRuns) -> Table:
    """Phases of successful requests by endpoint."""
    columns = ("endpoint", "region", *(f"{name} {q}" for name in PHASES for q in ("p50", "p99")))
    note = (
        "Successes, in milliseconds. Queue: waiting for its turn and for an endpoint with room. Connect: until a "
        "connection to the worker stood, 0 where one was there. First byte and service: from the instant of sending "
        "to the first and the last byte."
    )
    ok = log.whole.samples.ok
    rows = tuple(
        (Cell(place.worker), Cell(place.region), *phase_cells(log, ok & (log.place == index)))
        for index, place in enumerate(log.places)
    )
    return Table("Phases", note, columns, rows)


PHASES = ("queue", "connect", "first byte", "service")


def phase_cells(log: LogRuns, chosen: Flags) -> list[Cell]:
    samples = log.whole.samples
    first_byte = samples.first_byte_at - samples.sent_at
    phases = (log.rows["queue"], log.rows["connect"], first_byte, samples.service_time)
    known = [values[chosen & np.isfinite(values)] for values in phases]
    return [supported(measures.quantile(values, percent)) for values in known for percent in (50.0, 99.0)]


def ending_table(log: LogRuns) -> Table:
    """Requests by end and reason, most frequent first."""
    total = log.whole.samples.requests
    rows = tuple(
        row(
            Cell(end, "" if end == "ok" else "bad"), reason or "–", round(count), f"{100 * count / total:.3f}"
        )
        for (end, reason), count in sorted(log.columns.endings.items(), key=lambda item: -item[1])
    )
    note = "As the log has it: the kind, and the balancer's own reason where the answer was its own."
    return Table("How requests ended", note, ("end", "reason", "requests", "%"), rows)
