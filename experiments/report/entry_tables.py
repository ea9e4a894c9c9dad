"""Columns of an entry, each declared once: for `summary.csv` and its page, and for the tables of statistics and tail.

The columns of all of them are in the order of `COLUMNS`. Numbers in CSV are in seconds (`…_s`), per second
(`…_per_s`), percent (`…_percent`) or, without an end, shares. In tables times are in milliseconds and shares in
percent; heads of the tail say so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

import numpy as np

from balancer.syntax.printable import with_digits
from experiments.platform.json_values import plainly
from experiments.platform.terminal import rate_digits
from experiments.report.tables import DASH, Cell, Table, is_live, milliseconds, name_cell, row, supported
from experiments.stats.estimates import paired_student
from experiments.stats.measures import Quantile
from experiments.stats.run_summary import counted
from experiments.verdict.summary import EntrySummary, Summary


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name in CSV and what it means, its value, and where it is `shown` with which head.

    "statistics" is the first table of the page and that of the terminal, "tail" the page's "Tail, failures and
    goodput". `value` is a field of an `EntrySummary`, or a function of it; those of the statistics read its `table` and
    `latency` only. `form` makes the text or the cell of a table of it, where it is finite; else a
    dash is shown. If requests failed, a column of `failures` is marked. `note` is a sentence below the table.
    """

    name: str
    meaning: str
    value: str | Callable[[Any], Any]
    shown: Literal["", "statistics", "tail"] = ""
    head: str = ""
    form: Callable[[Any], object] = str
    failures: bool = False
    note: str = ""

    def of(self, entry: Any) -> Any:
        return attrgetter(self.value)(entry) if isinstance(self.value, str) else self.value(entry)

    def cell(self, entry: Any) -> Cell:
        value = self.of(entry)
        (cell,) = row(DASH if isinstance(value, float) and not math.isfinite(value) else self.form(value))
        return cell._replace(mark="bad") if self.failures and entry.table.ko else cell

    def csv(self, entry: EntrySummary) -> Any:
        value = self.of(entry)
        if isinstance(value, dict):
            return " ".join(f"{name}={plainly(part)}" for name, part in value.items())
        return plainly(value.seconds if isinstance(value, Quantile) else value)


def percentile(
    percent: float, name: str, meaning: str, head: str = "", measure: str = "latency", note: str = ""
) -> Column:
    """Return the column of a percentile in the statistics, or, with a `head` of its own, in the table of the tail."""

    def value(entry: Any) -> Any:
        return next(one for one in getattr(entry, measure) if one.percent == percent)

    shown: Literal["statistics", "tail"] = "tail" if head else "statistics"
    return Column(name, meaning, value, shown, head or f"{percent:g}th", supported, note=note)


def seconds(field: str, name: str, meaning: str, head: str) -> Column:
    """Return the column of a time in the statistics."""
    return Column(name, meaning, f"table.{field}", "statistics", head, milliseconds)


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def errors_cell(errors: dict[str, int]) -> Cell:
    words = ", ".join(f"{kind} {count}" for kind, count in errors.items())
    return Cell(words or "none", "bad" if words else "")


DIGITS = "{:.2f}".format

COLUMNS = (
    Column("label", "the entry", "label"),
    Column("policy", "name of its policy", lambda entry: entry.policy["name"]),
    Column("load", "rate and arrivals, or batch", "load", "tail", "load"),
    Column("valid", "`yes`, or `INVALID` if no run is valid", lambda one: "yes" if one.valid else "INVALID"),
    Column("invalid_reasons", "why runs are invalid", lambda entry: "; ".join(entry.invalid_reasons)),
    Column("runs", "runs measured", "runs"),
    Column("valid_runs", "valid ones among them; the other columns rest on these", "valid_runs"),
    Column("total", "requests", "table.total", "statistics", "total"),
    Column("ok", "successes", "table.ok", "statistics", "OK"),
    Column("ko", "failures", "table.ko", "statistics", "KO", failures=True),
    Column("ko_percent", "failures in percent of the requests", "table.ko_percent", "statistics", "% KO", DIGITS, True),
    Column("rate_per_s", "successes per second", "table.rate", "statistics", "req/s", rate_digits),
    Column("total_time_s", "time of a run, mean over runs", "mean_span", "tail", "total time s", DIGITS,
           note="Total time is the mean over blocks."),
    seconds("minimum", "min_s", "least latency of a success", "min"),
    percentile(50.0, "p50_s", "median latency of successes"),
    percentile(75.0, "p75_s", "75th percentile"),
    percentile(90.0, "p90_s", "90th percentile", "p90 ms"),
    percentile(95.0, "p95_s", "95th percentile"),
    percentile(99.0, "p99_s", "99th percentile"),
    percentile(99.9, "p99.9_s", "99.9th percentile", "p99.9 ms"),
    seconds("maximum", "max_s", "greatest latency of a success", "max"),
    seconds("mean", "mean_s", "mean latency of successes", "mean"),
    seconds("std_dev", "std_dev_s", "standard deviation of the latency of successes", "std dev"),
    Column("few_beyond", "percentiles with fewer than 100 samples beyond them",
           lambda entry: " ".join(f"p{one.percent:g}" for one in entry.latency if one.few)),
    percentile(99.0, "p99_deadline_mapped_s", "99th percentile of all requests, a failure as slow as the deadline",
               "p99 with KO ms", "latency_deadline_mapped",
               "“With KO”: a failure counts as slow as the deadline, so failing fast cannot look fast."),
    percentile(50.0, "service_p50_s", "median service time of successes", "service p50 ms", "service_time",
               "Service time runs from the instant of sending; latency minus it is what the generator itself added."),
    percentile(99.0, "service_p99_s", "99th percentile of the service time", "service p99 ms", "service_time"),
    Column("goodput", "share of all requests that succeeded within the SLO", "goodput",
           "tail", "within {slo} %", percent),
    Column("errors", "failures by kind, as `timeout=3 reset=1`", "errors", "tail", "errors by kind", errors_cell),
    Column("share_per_worker", "share of the answers, as `emea-0=0.5 us-0=0.5`", "share_per_worker"),
)  # fmt: skip


def table_of(
    title: str, note: str, columns: Iterable[Column], rows: Iterable[tuple[Cell, Any]], slo: str = ""
) -> Table:
    """Table of the columns, with their notes behind its own."""
    shown = tuple(columns)
    note = " ".join(filter(None, (note, *(column.note for column in shown))))
    heads = ("entry", *(column.head.format(slo=slo) for column in shown))
    return Table(title, note, heads, tuple((name, *(c.cell(entry) for c in shown)) for name, entry in rows))


def statistics_table(summary: Summary) -> Table:
    """Gatling's statistics table, one row per entry."""
    begins = (
        "as the balancer counts it" if is_live(summary) else "from the instant at which the request was due"
    ) + ", to the first token" * (summary.scenario.inference is not None)
    note = (
        f"Latency of successes in milliseconds, {begins}; req/s counts successes. "
        "A percentile is grey with fewer than 100 samples beyond it, and left out with fewer than 10."
    )
    shown = (column for column in COLUMNS if column.shown == "statistics")
    return table_of("Statistics", note, shown, ((name_cell(entry), entry) for entry in summary.entries))


def tail_table(summary: Summary) -> Table:
    """Far tail, deadline-mapped failures, goodput and total time."""
    hidden = {"service_p50_s", "service_p99_s"} if is_live(summary) else set[str]()
    if len({entry.load for entry in summary.entries}) <= 1:
        hidden.add("load")
    return table_of(
        "Tail, failures and goodput",
        "",
        (column for column in COLUMNS if column.shown == "tail" and column.name not in hidden),
        ((name_cell(entry), entry) for entry in summary.entries),
        f"{summary.scenario.measured_slo * 1e3:g} ms",
    )


TOKEN_COLUMNS = {
    "tpot_mean": ("TPOT mean ms", 1e3),
    "tpot_p99": ("TPOT p99 ms", 1e3),
    "end_to_end_mean": ("end to end mean s", 1.0),
    "end_to_end_p99": ("end to end p99 s", 1.0),
    "good_rate": ("within limits /s", 1.0),
    "cached_share": ("cached %", 100.0),
    "output_rate": ("output tokens/s", 1.0),
}
"""Measure -> head of its column, and factor of its unit."""


def token_table(summary: Summary) -> Table | None:
    """Measures of inference; None for other scenarios."""
    asked, kept = summary.scenario.inference, counted(summary.runs)
    if asked is None:
        return None
    rows = []
    for entry in summary.entries:
        runs = [run.tokens for run in kept if run.label == entry.label and run.tokens]
        cells = [
            token_cell([run[name] * factor for run in runs], summary.scenario.load.is_replay)
            for name, (_, factor) in TOKEN_COLUMNS.items()
        ]
        rows.append(row(name_cell(entry), *cells))
    note = (
        "TPOT is the time per output token after the first. Within limits: requests per second whose first token "
        f"took at most {summary.scenario.slo:g} s, and the others at most {asked.tpot_slo * 1e3:g} ms each. Cached: "
        "share of the prompts' tokens. Mean over runs, with Student's interval at 95 % unless all replay one record."
    )
    columns = ("entry", *(head for head, _ in TOKEN_COLUMNS.values()))
    return Table("Tokens", note, columns, tuple(rows))


def token_cell(values: list[float], is_replay: bool) -> Cell:
    """Mean of the runs with its interval, such as `12.3 [12.1–12.5]`; a dash without runs. Runs of a replay have no
    interval: they have the same requests.
    """
    found = paired_student(np.array(values))
    if not math.isfinite(found.mean):
        return DASH
    mean, low, high = (with_digits(one, 3) for one in (found.mean, found.low, found.high))
    return Cell(mean if is_replay or math.isnan(found.low) else f"{mean} [{low}–{high}]")
