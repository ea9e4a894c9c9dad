"""The report as JSON, CSV and Markdown.

The same summary gives the same bytes: keys keep their order, floats are rounded to nine significant digits, values that
were not measured are null.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from experiments.json_values import json_value
from experiments.report.tables import Cell, Table, tables_of
from experiments.results.summary import EntrySummary, Summary

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


def to_csv(summary: Summary) -> str:
    """CSV with a row per entry."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for entry in summary.entries:
        writer.writerow(csv_row(entry))
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


def to_markdown(summary: Summary, figures: Sequence[tuple[str, str, str]], method: Sequence[str]) -> str:
    """The report as Markdown. `figures` are (name, title, caption), `method` lines of text."""
    parts = [f"# {summary.scenario.name}: {summary.scenario.question}", f"**{summary.verdict.headline}.**"]
    parts += [" ".join(summary.verdict.sentences)]
    parts += [f"> **INVALID**: {line}" for line in invalid_lines(summary)]
    parts += [markdown_table(table) for table in tables_of(summary)]
    parts += [
        f"## {title}\n\n![{title}](figures/{file}.png)\n\n{caption}" for file, title, caption in figures
    ]
    parts += ["## Method", "\n".join(f"- {line}" for line in method)]
    return "\n\n".join(part for part in parts if part) + "\n"


def invalid_lines(summary: Summary) -> list[str]:
    """One line per invalid run with its reasons."""
    return [
        f"{run.label}, block {run.block + 1}: {'; '.join(run.invalid_reasons)}"
        for run in summary.runs
        if not run.valid
    ]


def markdown_table(table: Table) -> str:
    """Markdown table with title and note; few samples in italics, bad cells in bold."""
    align = [":--"] + ["--:" if not table.prose else ":--"] * (len(table.columns) - 1)
    lines = [table.columns, align, *([markdown_cell(cell) for cell in row] for row in table.rows)]
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"## {table.title}\n\n{table.note}\n\n{body}"


def markdown_cell(cell: Cell) -> str:
    """Cell with emphasis by mark; a pipe is escaped because it would end the cell."""
    text = cell.text.replace("|", "\\|")
    return {"few": f"*{text}*", "bad": f"**{text}**"}.get(cell.mark, text)
