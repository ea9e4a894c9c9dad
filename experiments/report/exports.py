"""Tables of numbers that are written beside a report: as CSV, and as Parquet on request.

docs/results.md describes every column; a test compares it with what is written.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from experiments.platform.json_values import plainly
from experiments.report.entry_tables import COLUMNS
from experiments.results.directory import Results
from experiments.run_data import Samples
from experiments.verdict.summary import Summary

SHARE_COLUMNS = ("entry", "policy", "region", "worker", "share")
COMPARISON_COLUMNS = (
    "kind", "measure", "decides", "entry", "other", "ratio", "low", "high", "p_value", "blocks", "standing",
    "judged_by",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DataTable:
    """A table of plain values; `name` is its file name without suffix."""

    name: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]

    @property
    def csv(self) -> str:
        return csv_text(self.columns, self.rows)


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """CSV with a head line and LF line ends."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def data_tables(results: Results, summary: Summary) -> list[DataTable]:
    """Summary, shares and comparisons of a campaign."""
    return [
        DataTable(
            "summary",
            tuple(column.name for column in COLUMNS),
            [[column.csv(entry) for column in COLUMNS] for entry in summary.entries],
        ),
        DataTable("shares", SHARE_COLUMNS, [*share_rows(results, summary)]),
        DataTable("comparisons", COMPARISON_COLUMNS, [*comparison_rows(summary)]),
    ]


def share_rows(results: Results, summary: Summary) -> Iterator[tuple[object, ...]]:
    regions = {place.worker: place.region for run in results.runs for place in run.facts.places}
    for entry in summary.entries:
        for worker, share in entry.share_per_worker.items():
            yield (entry.label, entry.policy["name"], regions[worker], worker, plainly(share))


def comparison_rows(summary: Summary) -> Iterator[tuple[object, ...]]:
    """Comparisons with the baseline, those of the winner with its rivals, and the A/A control of each measure."""
    decides, choice = summary.measure, summary.verdict.choice
    kinds = [("baseline", one) for one in summary.comparisons]
    kinds += [("rival", one) for one in (choice.rivals if choice else ())]
    for kind, one in kinds:
        of = one.interval
        p_value = one.p_value if of.blocks > 1 else None  # empty where there is no interval
        numbers = map(plainly, (of.ratio, of.low, of.high, p_value, of.blocks))
        labels = (one.measure, one.measure == decides, one.label, one.baseline)
        yield (kind, *labels, *numbers, one.standing, one.judged_by)
    original, repeated = summary.scenario.control_pair or ("", "")
    for measure, floor in summary.noise_floor.items():
        numbers = map(plainly, (floor.ratio, floor.low, floor.high, None, floor.blocks))
        yield ("control", measure, measure == decides, repeated, original, *numbers, "noise floor", measure)


def write_parquet(table: DataTable, directory: Path) -> None:
    """Write a table as `name.parquet`."""
    columns = {name: [row[number] for row in table.rows] for number, name in enumerate(table.columns)}
    save_parquet(columns, directory / f"{table.name}.parquet")


def write_requests(results: Results, directory: Path) -> None:
    """Write the samples of all runs as `requests.parquet`, a row per request, or per `weight` of them."""
    runs = results.runs
    sizes = [len(run.samples) for run in runs]
    columns: dict[str, Any] = {
        "entry": np.repeat([run.facts.label for run in runs], sizes),
        "block": np.repeat([run.facts.block for run in runs], sizes),
        "order": np.repeat([run.facts.order for run in runs], sizes),
        "valid": np.repeat([run.facts.is_valid for run in runs], sizes),
    }
    for field in fields(Samples):
        columns[field.name] = np.concatenate([getattr(run.samples, field.name) for run in runs])
    save_parquet(columns, directory / "requests.parquet")


def save_parquet(columns: dict[str, Any], path: Path) -> None:
    """Write columns as Parquet; one without any value has the type of numbers, as where it has some."""
    import pyarrow  # optional, and a quarter of a second of imports
    import pyarrow.parquet

    table = pyarrow.table(columns)
    types = [pyarrow.float64() if pyarrow.types.is_null(each.type) else each.type for each in table.schema]
    schema = pyarrow.schema([*zip(table.column_names, types, strict=True)])
    pyarrow.parquet.write_table(table.cast(schema), path)
