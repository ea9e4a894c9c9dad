"""Columns of an entry, each declared once: for `summary.csv` and its page, and for the tables of statistics and tail.

The columns of all of them are in the order of `COLUMNS`. Numbers in CSV are in seconds and shares, in tables in
milliseconds and percent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Literal

from experiments.report.tables import Cell, Table, is_live, milliseconds, name_cell, supported
from experiments.report.text import pairs, plainly
from experiments.stats.measures import Quantile
from experiments.verdict.summary import EntrySummary, Summary

Shown = Literal["", "statistics", "tail"]


def no_cell(entry: Any) -> Cell:
    """Cell of a column that no table shows."""
    raise AssertionError("in CSV only")


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name in CSV and what it means, its value, and where it is `shown` with which head and cell.

    `value` and `cell` are given an `EntrySummary`; those of the statistics read its `table` and `latency` only.
    """

    name: str
    meaning: str
    value: Callable[[Any], Any]
    shown: Shown = ""
    head: str = ""
    cell: Callable[[Any], Cell] = no_cell


def percentile(
    measure: str, percent: float, name: str, meaning: str, shown: Shown = "statistics", head: str = ""
) -> Column:
    """Return the column of a percentile of one of the measures of an entry."""

    def found(entry: Any) -> Quantile:
        quantiles: Sequence[Quantile] = getattr(entry, measure)
        return next(quantile for quantile in quantiles if quantile.percent == percent)

    return Column(
        name,
        meaning,
        lambda entry: found(entry).seconds,
        shown,
        head or f"{percent:g}th",
        lambda entry: supported(found(entry)),
    )


def seconds(field: str, name: str, meaning: str, head: str) -> Column:
    """Return the column of a time in the statistics."""
    value = attrgetter(f"table.{field}")
    return Column(name, meaning, value, "statistics", head, lambda entry: milliseconds(value(entry)))


def count(field: str, meaning: str, head: str, digits: int = 0, *, fails: bool = False) -> Column:
    """Return the column of a number in the statistics; `fails`: it is marked where requests failed."""
    value = attrgetter(f"table.{field}")
    return Column(
        field,
        meaning,
        value,
        "statistics",
        head,
        lambda entry: Cell(f"{value(entry):.{digits}f}", "bad" if fails and entry.table.ko else ""),
    )


def errors_cell(entry: Any) -> Cell:
    """Failures by kind."""
    errors = ", ".join(f"{kind} {count}" for kind, count in entry.errors.items())
    return Cell(errors or "none", "bad" if errors else "")


LATENCY, MAPPED, SERVICE = "latency", "latency_deadline_mapped", "service_time"

COLUMNS = (
    Column("label", "the entry", attrgetter("label")),
    Column("policy", "name of its policy", lambda entry: entry.policy["name"]),
    Column(
        "load", "rate and arrivals, or batch", attrgetter("load"), "tail", "load", lambda one: Cell(one.load)
    ),
    Column(
        "valid",
        "`yes`, or `INVALID` if no run is valid",
        lambda entry: "yes" if entry.valid else "INVALID",
    ),
    Column("invalid_reasons", "why runs are invalid", lambda entry: "; ".join(entry.invalid_reasons)),
    Column("runs", "runs measured", attrgetter("runs")),
    Column("valid_runs", "valid ones among them; the other columns rest on these", attrgetter("valid_runs")),
    count("total", "requests", "total"),
    count("ok", "successes", "OK"),
    count("ko", "failures", "KO", fails=True),
    count("ko_percent", "failures in percent of the requests", "% KO", 2, fails=True),
    replace(count("rate", "successes per second", "req/s", 1), name="rate_per_s"),
    Column(
        "total_time_s",
        "time of a run, mean over runs",
        attrgetter("mean_span"),
        "tail",
        "total time s",
        lambda entry: Cell(f"{entry.mean_span:.2f}"),
    ),
    seconds("minimum", "min_s", "least latency of a success", "min"),
    percentile(LATENCY, 50.0, "p50_s", "median latency of successes"),
    percentile(LATENCY, 75.0, "p75_s", "75th percentile"),
    percentile(LATENCY, 90.0, "p90_s", "90th percentile", "tail", "p90 ms"),
    percentile(LATENCY, 95.0, "p95_s", "95th percentile"),
    percentile(LATENCY, 99.0, "p99_s", "99th percentile"),
    percentile(LATENCY, 99.9, "p99.9_s", "99.9th percentile", "tail", "p99.9 ms"),
    seconds("maximum", "max_s", "greatest latency of a success", "max"),
    seconds("mean", "mean_s", "mean latency of successes", "mean"),
    seconds("std_dev", "std_dev_s", "standard deviation of the latency of successes", "std dev"),
    Column(
        "few_beyond",
        "percentiles with fewer than 100 samples beyond them",
        lambda entry: " ".join(f"p{one.percent:g}" for one in entry.latency if one.few),
    ),
    percentile(
        MAPPED,
        99.0,
        "p99_deadline_mapped_s",
        "99th percentile of all requests, a failure as slow as the deadline",
        "tail",
        "p99 with KO ms",
    ),
    percentile(SERVICE, 50.0, "service_p50_s", "median service time of successes", "tail", "service p50 ms"),
    percentile(
        SERVICE, 99.0, "service_p99_s", "99th percentile of the service time", "tail", "service p99 ms"
    ),
    Column(
        "goodput",
        "share of all requests that succeeded within the SLO",
        attrgetter("goodput"),
        "tail",
        "within {slo} %",
        lambda entry: Cell(f"{100 * entry.goodput:.1f}"),
    ),
    Column(
        "errors",
        "failures by kind, as `timeout=3 reset=1`",
        lambda entry: pairs(entry.errors),
        "tail",
        "errors by kind",
        errors_cell,
    ),
    Column(
        "share_per_worker",
        "share of the answers, as `emea-0=0.5 us-0=0.5`",
        lambda entry: pairs(entry.share_per_worker),
    ),
)

CSV_COLUMNS = tuple(column.name for column in COLUMNS)
STATISTICS = tuple(column for column in COLUMNS if column.shown == "statistics")


def csv_row(entry: EntrySummary) -> list[Any]:
    """Return the values of `CSV_COLUMNS`."""
    return [plainly(column.value(entry)) for column in COLUMNS]


def table_of(
    title: str, note: str, columns: Iterable[Column], rows: Iterable[tuple[Cell, Any]], slo: str = ""
) -> Table:
    """Return a table with a row for each name and entry."""
    shown = tuple(columns)
    heads = ("entry", *(column.head.format(slo=slo) for column in shown))
    return Table(title, note, heads, tuple((name, *(c.cell(entry) for c in shown)) for name, entry in rows))


def statistics_table(summary: Summary) -> Table:
    """Gatling's statistics table, one row per entry."""
    begins = (
        "as the balancer counts it" if is_live(summary) else "from the instant at which the request was due"
    )
    note = (
        f"Latency of successes in milliseconds, {begins}; req/s counts successes. "
        "A percentile is grey with fewer than 100 samples beyond it, and left out with fewer than 10."
    )
    return table_of("Statistics", note, STATISTICS, ((name_cell(entry), entry) for entry in summary.entries))


def tail_table(summary: Summary) -> Table:
    """Far tail, deadline-mapped failures, goodput and total time."""
    hidden = {"service_p50_s", "service_p99_s"} if is_live(summary) else set[str]()
    if len({entry.load for entry in summary.entries}) <= 1:
        hidden.add("load")
    note = "“With KO”: a failure counts as slow as the deadline, so failing fast cannot look fast. "
    if not is_live(summary):
        note += "Service time runs from the instant of sending; latency minus it is what the generator itself added. "
    return table_of(
        "Tail, failures and goodput",
        note + "Total time is the mean over blocks.",
        (column for column in COLUMNS if column.shown == "tail" and column.name not in hidden),
        ((name_cell(entry), entry) for entry in summary.entries),
        f"{summary.scenario.slo * 1e3:g} ms",
    )
