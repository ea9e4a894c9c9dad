"""The table of `balancer status`: one row for each endpoint, from one or two readings of the status."""

from __future__ import annotations

from typing import Any

from balancer.syntax.printable import with_digits
from policies.stats.load import Histogram

HEADS = ("endpoint", "region", "share", "in flight", "req/s", "p50 ms", "p99 ms", "errors", "condition")
LEFT = frozenset((0, 1, len(HEADS) - 1))
"""Columns of text; the others have numbers and are aligned to the right."""

SILENT = frozenset(("ok", "abandoned", "tunnelled"))
"""Outcomes that are no error of the endpoint."""

Counts = dict[str, Any]


def endpoint_table(document: dict[str, Any], now: Counts, before: Counts | None, seconds: float) -> list[str]:
    """Return the lines of the table.

    `now` and `before` are readings of /-/latency that lie `seconds` apart; None: all since the start.
    """
    earlier = {each["id"]: each for each in before["endpoints"]} if before is not None else {}
    grown = {each["id"]: grown_by(each, earlier.get(each["id"])) for each in now["endpoints"]}
    total = sum(sum(outcomes.values()) for outcomes, _ in grown.values())
    rows: list[tuple[str, ...]] = [HEADS]
    for each in document["endpoints"]:
        outcomes, latency = grown.get(each["id"], ({}, Histogram()))
        number = sum(outcomes.values())
        errors = sum(count for kind, count in outcomes.items() if kind not in SILENT)
        rows.append((
            each["id"], each["region"], f"{number / total:.1%}" if total else "–", str(each["in_flight"]),
            f"{number / seconds:.1f}" if seconds > 0 else "–", _milliseconds(latency.quantile(0.5)),
            _milliseconds(latency.quantile(0.99)), str(errors), each["condition_text"],
        ))  # fmt: skip
    return aligned(rows)


def grown_by(now: Counts, before: Counts | None) -> tuple[dict[str, int], Histogram]:
    """Return the outcomes and latencies between two readings of an endpoint; all of `now` if counters have shrunk,
    because the balancer was started again.
    """
    outcomes, buckets = now["outcomes"], now["buckets"]
    if before is not None:
        fewer = [count - earlier for count, earlier in zip(buckets, before["buckets"], strict=True)]
        less = {kind: count - before["outcomes"].get(kind, 0) for kind, count in outcomes.items()}
        if min(fewer) >= 0 and min(less.values()) >= 0:
            outcomes, buckets = less, fewer
    return outcomes, Histogram.of(buckets, 0.0)


def aligned(rows: list[tuple[str, ...]]) -> list[str]:
    """Return rows of equal length as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if at in LEFT else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else with_digits(seconds * 1000, 3)
