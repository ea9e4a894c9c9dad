"""Tables of an access log: statistics, phases, ends.

Durations in milliseconds; failures are counted separately and are in no latency.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from experiments.report.access_log.runs import LogRuns
from experiments.report.entry_tables import COLUMNS, STATISTICS, table_of
from experiments.report.palette import Competitor
from experiments.report.tables import Cell, Table, supported
from experiments.run_data import Flags
from experiments.stats import measures

LOG_COLUMNS = [
    replace(column, head="99.9th") if column.name == "p99.9_s" else column
    for column in COLUMNS
    if column in STATISTICS or column.name == "p99.9_s"
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
    """p50 and p99 of each phase."""
    samples = log.whole.samples
    first_byte = samples.first_byte_at - samples.sent_at
    phases = (log.rows["queue"], log.rows["connect"], first_byte, samples.service_time)
    known = [values[chosen & np.isfinite(values)] for values in phases]
    return [supported(measures.quantile(values, percent)) for values in known for percent in (50.0, 99.0)]


def ending_table(log: LogRuns) -> Table:
    """Requests by end and reason, most frequent first."""
    total = len(log.whole.samples)
    rows = tuple(
        (
            Cell(end, "" if end == "ok" else "bad"),
            Cell(reason or "–"),
            Cell(str(count)),
            Cell(f"{100 * count / total:.3f}"),
        )
        for (end, reason), count in log.columns.endings.most_common()
    )
    note = "As the log has it: the kind, and the balancer's own reason where the answer was its own."
    return Table("How requests ended", note, ("end", "reason", "requests", "%"), rows)
