"""The report as JSON and CSV.

The same summary gives the same bytes: keys keep their order, floats are rounded to nine significant digits, values that
were not measured are null.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

from experiments.platform.json_values import json_value
from experiments.stats.run_summary import RunSummary
from experiments.verdict.summary import Summary


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


def invalid_lines(runs: Sequence[RunSummary]) -> list[str]:
    """One line per invalid run with its reasons."""
    return [
        f"{run.label}, block {run.block + 1}: {'; '.join(run.invalid_reasons)}"
        for run in runs
        if not run.valid
    ]
