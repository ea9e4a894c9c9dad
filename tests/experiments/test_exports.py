"""Tables beside a report: docs/results.md describes every column, and Parquet holds the same."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from experiments.__main__ import cli
from experiments.capacity.curve_page import CSV_COLUMNS as CURVE_COLUMNS
from experiments.report.entry_tables import COLUMNS
from experiments.report.pages import write_tables
from experiments.results.directory import load_results
from experiments.sweep.matrix import Matrix
from experiments.sweep.page import data_table
from experiments.verdict.summary import summarise
from tests.support.command_line import complaint
from tests.support.documentation import paths_of, text_of
from tests.support.result_sets import write_results

PAGE = text_of("docs/results.md")


def documented(file: str) -> list[str]:
    """Columns or keys of a file, as docs/results.md lists them."""
    section = re.search(rf"^## {re.escape(file)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert section is not None
    return re.findall(r"^\| `([^`]+)` \|", section[1], re.MULTILINE)


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight blocks with failures, and their tables with Parquet files."""
    pytest.importorskip("pyarrow", reason="no pyarrow here (pip install '.[parquet]' in the checkout)")
    directory = tmp_path_factory.mktemp("exported") / "results"
    write_results(directory, blocks=8, requests=60, failures=0.02)
    results = load_results(directory)
    write_tables(results, summarise(results), directory, parquet=True)
    return directory


@pytest.mark.parametrize("name", ["summary", "shares", "comparisons"])
def test_the_columns_of_a_table_are_documented(reported: Path, name: str) -> None:
    """In their order (those of the summary are generated); Parquet has the same columns and as many rows."""
    import pyarrow.parquet

    with (reported / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        columns, *rows = csv.reader(file)
    assert columns == ([one.name for one in COLUMNS] if name == "summary" else documented(f"{name}.csv"))
    table = pyarrow.parquet.read_table(reported / f"{name}.parquet")
    assert (table.column_names, table.num_rows) == (columns, len(rows))


def test_a_column_without_a_value_has_the_type_of_numbers(tmp_path: Path) -> None:
    """As the ends of intervals of one block."""
    parquet = pytest.importorskip("pyarrow.parquet")
    write_results(tmp_path, blocks=1, requests=60, failures=0.02)
    results = load_results(tmp_path)
    write_tables(results, summarise(results), tmp_path, parquet=True)
    tables = [parquet.read_table(tmp_path / f"{name}.parquet") for name in ("summary", "comparisons")]
    schema = [(each.name, str(each.type)) for table in tables for each in table.schema]
    assert {kind for _, kind in schema} <= {"int64", "double", "string", "bool"}, schema


def test_the_columns_of_the_other_tables_are_documented() -> None:
    assert list(CURVE_COLUMNS) == documented("load.csv")
    assert list(data_table(Matrix("p99", (), (), {}, {})).columns) == documented("matrix.csv")


def test_every_request_is_in_the_parquet_file(reported: Path) -> None:
    """Eight entries and a control, eight blocks, 60 requests."""
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(reported / "requests.parquet")
    assert table.column_names == documented("requests.parquet")
    runs = len(list((reported / "runs").glob("*.npz")))
    assert table.num_rows == 60 * runs
    assert len(set(table.column("entry").to_pylist())) * 8 == runs


def test_shares_add_up_and_comparisons_name_the_deciding_measure(reported: Path) -> None:
    with (reported / "shares.csv").open(encoding="utf-8", newline="") as file:
        shares = list(csv.DictReader(file))
    for label in {row["entry"] for row in shares}:
        assert sum(float(row["share"]) for row in shares if row["entry"] == label) == pytest.approx(
            1, abs=1e-6
        )
    with (reported / "comparisons.csv").open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    assert {row["kind"] for row in found} == {"baseline", "rival", "control"}
    assert {row["measure"] for row in found if row["decides"] == "True"} == {"throughput"}


def test_every_key_of_the_summary_is_documented(reported: Path) -> None:
    """There or in summary.csv. And documented keys exist, but for lists and tables that are empty here."""
    summary = json.loads((reported / "summary.json").read_text(encoding="utf-8"))
    written = set(paths_of(summary))
    listed = documented("summary.json")
    keys = [f"entries[].{one.value}" for one in COLUMNS if isinstance(one.value, str)]
    listed += [key for key in keys if f"{key}.*" not in listed]
    patterns = [key.replace("[]", "[[]]").replace("…", "*") for key in listed]
    stems = [pattern.removesuffix(".*").removesuffix("[[]]") for pattern in patterns]
    unknown = [key for key in written if not any(fnmatchcase(key, one) for one in (*patterns, *stems))]
    assert unknown == []
    pairs = zip(patterns, stems, strict=True)
    absent = [
        one
        for one, stem in pairs
        if not any(fnmatchcase(key, one) or fnmatchcase(key, stem) for key in written)
    ]
    assert absent == ["verdict.choice"]
    row = next(line for line in PAGE.splitlines() if line.startswith("| `comparisons[].…`"))
    assert list(summary["comparisons"][0]) == re.findall(r"`(\w+)`", row)


@pytest.mark.parametrize("command", [["report", "."], ["run", "steady", "--simulated"], ["sweep"]])
def test_without_pyarrow_one_line_names_the_extra(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is run or written."""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "pyarrow" else found(name, *rest)
    )
    monkeypatch.chdir(tmp_path)
    message = "--parquet: pyarrow is not installed: pip install '.[parquet]' in the checkout"
    assert complaint(cli, "experiments", *command, "--parquet") == f"experiments: {message}\n"
    assert list(tmp_path.iterdir()) == []
