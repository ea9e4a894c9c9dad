"""The report as JSON and CSV.

The same summary gives the same bytes: keys keep their order, floats are rounded to nine significant digits, values that
were not measured are null.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from experiments.platform.json_values import json_value
from experiments.verdict.summary import EntrySummary, Summary

CSV_COLUMNS = (
    "label", "policy", "load", "valid", "invalid_reasons", "runs", "valid_runs", "total", "ok", "ko",
    "ko_percent", "rate_per_s", "total_time_s", "min_s", "p50_s", "p75_s", "p90_s", "p95_s", "p99_s",
    "p99.9_s", "max_s", "mean_s", "std_dev_s", "few_beyond", "p99_deadline_mapped_s", "service_p50_s",
    "service_p99_s", "goodput", "errors", "share_per_worker",
)  # fmt: skip

TABLE_COLUMNS = {
    "min_s": "minimum",
    "max_s": "maximum",
    "mean_s": "mean",
    "std_dev_s": "std_dev",
    "rate_per_s": "rate",
}


def to_json(summary: Summary) -> str:
    """The whole summary as JSON. Times in seconds, shares from 0 to 1."""
    plain = {**plainly(summary), "valid": not summary.has_invalid, "format": 1}
    return json.dumps(plain, indent=2, ensure_ascii=False) + "\n"


def plainly(value: Any) -> Any:
    """Plain JSON values, floats rounded to nine significant digits."""
    return json_value(value, digits=9)


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """CSV with a head line and LF line ends."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def csv_row(entry: EntrySummary) -> dict[str, Any]:
    """One entry as a row with the columns of `CSV_COLUMNS`."""
    table = plainly(asdict(entry.table))
    counts = {name: table[name] for name in ("total", "ok", "ko", "ko_percent")}
    quantiles = {f"p{q.percent:g}_s": plainly(q.seconds) for q in entry.latency if q.percent < 100}
    mapped = {q.percent: plainly(q.seconds) for q in entry.latency_deadline_mapped}
    service = {q.percent: plainly(q.seconds) for q in entry.service_time}
    return {
        **counts,
        **{column: table[name] for column, name in TABLE_COLUMNS.items()},
        **quantiles,
        "label": entry.label,
        "policy": entry.policy["name"],
        "load": entry.load,
        "valid": "yes" if entry.valid else "INVALID",
        "invalid_reasons": "; ".join(entry.invalid_reasons),
        "runs": entry.runs,
        "valid_runs": entry.valid_runs,
        "total_time_s": plainly(entry.mean_span),
        "few_beyond": " ".join(f"p{q.percent:g}" for q in entry.latency if q.few),
        "p99_deadline_mapped_s": mapped[99.0],
        "service_p50_s": service[50.0],
        "service_p99_s": service[99.0],
        "goodput": plainly(entry.goodput),
        "errors": pairs(entry.errors),
        "share_per_worker": pairs(entry.share_per_worker),
    }


def pairs(values: dict[str, Any]) -> str:
    """Format as `emea-0=0.25 us-0=0.75`, for one cell."""
    return " ".join(f"{name}={plainly(value)}" for name, value in values.items())


def invalid_lines(summary: Summary) -> list[str]:
    """One line per invalid run with its reasons."""
    return [
        f"{run.label}, block {run.block + 1}: {'; '.join(run.invalid_reasons)}"
        for run in summary.runs
        if not run.valid
    ]
