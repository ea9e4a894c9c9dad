"""Data of the interactive charts of a report: lines of entries over time, and latency curves.

Their size is bounded: the lines of a chart together have at most `MOST_VALUES` values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from experiments.report.document import Chart, Line
from experiments.report.figures_time import Bins, Shading, middles, rate_edges, rates
from experiments.report.palette import DARK, Competitor
from experiments.run_data import Floats
from experiments.stats.measures import LEAST_BEYOND, requests_beside, success_latency

MOST_VALUES = 8_000
MOST_PLACES = 300
"""Points of a latency curve: those of its lines together, and of one line."""

DASH_PIXELS = 2
"""Pixels of a dash whose length matplotlib counts in line widths."""


def rate_charts(field: Sequence[Competitor], events: Sequence[Shading]) -> list[Chart]:
    """Successes per second, and errors per second if there are any."""
    edges = rate_edges(field)
    both = [rates(one, edges) for one in field]
    places = middles(edges).tolist()
    charts = [
        Chart(title, "seconds", "rate", places, lines_of(field, values), events)
        for title, values in zip(
            ("Requests per second", "Errors per second"), zip(*both, strict=True), strict=True
        )
    ]
    return charts if any(errors.any() for _, errors in both) else charts[:1]


def tail_charts(field: Sequence[Competitor], bins: Bins, events: Sequence[Shading]) -> list[Chart]:
    values = [bins.percentiles(one, (bins.percent,))[0] for one in field]
    places = middles(bins.edges).tolist()
    return [Chart(f"p{bins.percent:g} in ms", "seconds", "ms", places, lines_of(field, values), events)]


def latency_charts(field: Sequence[Competitor]) -> list[Chart]:
    """Share of all requests that were answered within a time, and latency by percentile of all requests."""
    sorted_ms = [1e3 * np.sort(success_latency(one.runs)) for one in field]
    totals = [requests_beside(ms, one.runs) for ms, one in zip(sorted_ms, field, strict=True)]
    if not any(map(len, sorted_ms)):
        return []
    count = min(MOST_PLACES, max(2, MOST_VALUES // len(field)))
    least, most = (
        max(1e-3, edge([ms[at] for ms in sorted_ms if len(ms)])) for edge, at in ((min, 0), (max, -1))
    )
    within = np.geomspace(least, max(most, 1.1 * least), count)
    shares = [
        100 * np.searchsorted(ms, within, side="right") / total
        for ms, total in zip(sorted_ms, totals, strict=True)
    ]
    ratios = np.geomspace(1, max(2, max(totals) / LEAST_BEYOND), count)
    tails = [at_ratios(ms, total, ratios) for ms, total in zip(sorted_ms, totals, strict=True)]
    return [
        Chart(
            "Answered within a time in ms, % of all requests",
            "ms",
            "percent",
            within.tolist(),
            lines_of(field, shares),
        ),
        Chart(
            "Latency in ms by percentile of all requests",
            "percentile",
            "ms",
            ratios.tolist(),
            lines_of(field, tails),
        ),
    ]


def at_ratios(ms: Floats, total: float, ratios: Floats) -> Floats:
    """Latency at the percentiles 1 - 1 / ratio of `total` requests; nan beyond the successes and in the slowest few."""
    rank = np.maximum(np.ceil(total * (1 - 1 / ratios) - 1e-9).astype(np.int64), 1)
    known = (rank <= len(ms)) & (total - rank >= LEAST_BEYOND - 1)
    values = np.full(len(ratios), np.nan)
    values[known] = ms[rank[known] - 1]
    return values


def lines_of(field: Sequence[Competitor], values: Sequence[Floats]) -> list[Line]:
    return [
        Line(one.name, one.colour, DARK.get(one.colour, one.colour), dash_of(one), column.tolist())
        for one, column in zip(field, values, strict=True)
    ]


def dash_of(one: Competitor) -> list[float]:
    """Lengths of dashes and gaps in pixels; none for a solid line."""
    return [] if one.dash == "solid" else [DASH_PIXELS * part for part in one.dash[1]]
