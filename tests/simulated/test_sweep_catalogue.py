"""The catalogue of a sweep: results are kept whole, and SQLite's errors are one line."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from experiments.errors import BadInputError, ExperimentError
from experiments.sweep import catalogue as catalogues
from experiments.sweep.catalogue import Catalogue, CatalogueError, chosen_grid, differences
from experiments.sweep.cells import Cell, cells_of
from experiments.sweep.driver import only_driver
from experiments.sweep.grid import Grid
from experiments.sweep.outcome import CellOutcome, compute, version_of
from experiments.sweep.tables import changes
from tests.simulated.fake_simulator import simulate
from tests.simulated.sweeping import small_grid, swept

CODE = version_of(simulate)


def small(seeds: int = 2) -> Grid:
    return small_grid(seeds)


def filled(path: Path, seeds: int = 2, keep: bool = False, faster: float = 1.0) -> Path:
    return swept(path, small(seeds), keep, faster)


def altered(path: Path, statement: str) -> Path:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(statement)
    return path


def differences_of(first: Path, second: Path) -> list[str]:
    with catalogues.to_read(first) as ours, catalogues.to_read(second) as theirs:
        return list(differences(ours, theirs, None))


def test_result_is_read_as_written(tmp_path: Path) -> None:
    (cell, *_), path = cells_of(small(), CODE), filled(tmp_path / "a.sqlite", keep=True)
    run = simulate(cell.scenario, cell.entry, 0, 0, cell.seed)
    with catalogues.to_read(path) as catalogue:
        row, kept = catalogue.rows("small")[0], catalogue.samples(cell.identity)
    assert (row.cell, row.label, row.seed, row.state) == (cell.identity, "random", 1, "done")
    assert (row.numbers["requests"], row.numbers["ok"], row.numbers["failures"]) == (400, 399, '{"reset": 1}')
    assert row.numbers["max"] == cell.scenario.timeout  # a failure is as slow as the deadline
    assert row.numbers["ok_max"] == run.samples.latency[run.samples.ok].max()
    assert kept is not None


def test_catalogue_is_read_where_nothing_can_be_written_beside_it(tmp_path: Path) -> None:
    """Which is so for any user where SQLite's file of shared memory leads nowhere."""
    path = filled(tmp_path / "a.sqlite")
    (tmp_path / "a.sqlite-shm").symlink_to("/nonexistent/shm")
    with catalogues.to_read(path) as catalogue:
        assert len(catalogue.rows("small")) == 4
    (tmp_path / "a.sqlite-wal").write_bytes(bytes(64))
    with pytest.raises(BadInputError, match="cannot be opened: while there is content in its file -wal"):
        catalogues.to_read(path)


def test_a_directory_is_no_catalogue(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="is a directory"):
        catalogues.to_write(tmp_path)


def test_catalogues_are_equal_whichever_host_computed_them(tmp_path: Path) -> None:
    one, two = filled(tmp_path / "a.sqlite"), filled(tmp_path / "b.sqlite")
    altered(two, "UPDATE computations SET seconds = 99, host = 'elsewhere', tries = 3")
    assert differences_of(one, two) == []


def test_every_difference_is_listed(tmp_path: Path) -> None:
    one, two = filled(tmp_path / "a.sqlite"), filled(tmp_path / "b.sqlite", seeds=3)
    altered(two, "UPDATE results SET p99 = p99 * 1.0000001 WHERE rowid = 1")
    altered(two, "UPDATE results SET state = 'failed' WHERE rowid = 2")
    assert differences_of(one, two) == [
        "steady, random, seed 1: unequal in p99",
        f"steady, round-robin, seed 1: done in {one}, failed in {two}",
        f"steady, random, seed 3: is not planned in {one}",
        f"steady, round-robin, seed 3: is not planned in {one}",
    ]


def test_only_failed_cells_are_computed_again(tmp_path: Path) -> None:
    first, second, *_ = cells = cells_of(small(), CODE)
    with catalogues.to_write(tmp_path / "a.sqlite") as catalogue:
        catalogue.plan(small(), CODE, "test", cells)
        catalogue.record(first, CellOutcome({}, "no", 0.1, "here"))
        catalogue.record(second, compute(second, simulate, keep_samples=False))
        assert catalogue.finished(keep_samples=False) == {second.identity}
        assert catalogue.finished(keep_samples=True) == set()
        catalogue.record(first, compute(first, simulate, keep_samples=True))
        assert catalogue.finished(keep_samples=True) == {first.identity}
        (facts,) = catalogue.grids()
        assert (facts.planned, facts.done, facts.failed) == (4, 2, 0)
        tries = catalogue.connection.execute("SELECT tries FROM computations ORDER BY tries").fetchall()
    assert [*map(tuple, tries)] == [(1,), (2,)]


def test_another_plan_of_the_same_name_keeps_results(tmp_path: Path) -> None:
    path = filled(tmp_path / "a.sqlite", seeds=3)
    with catalogues.to_write(path) as catalogue:
        catalogue.plan(small(1), CODE, "test", cells_of(small(1), CODE))
        assert len(catalogue.rows("small")) == 2
        assert len(catalogue.finished(keep_samples=False)) == 6


def test_exception_of_a_cell_is_its_outcome(tmp_path: Path) -> None:
    def broken(*_: object) -> object:
        raise ValueError("two\nlines")

    broken.__module__ = simulate.__module__
    outcome = compute(cells_of(small(), CODE)[0], broken, keep_samples=False)  # type: ignore[arg-type]
    assert (outcome.message, outcome.numbers) == ("ValueError: two lines", {})


def test_worker_with_other_code_is_rejected() -> None:
    cell = cells_of(small(), "another")[0]
    outcome = compute(cell, simulate, keep_samples=False)
    assert f"{CODE}, not another" in str(outcome.message)


def test_comparison_of_catalogues_with_common_cells(tmp_path: Path) -> None:
    one, two = filled(tmp_path / "a.sqlite", 9), filled(tmp_path / "b.sqlite", 8, faster=2.0)
    with catalogues.to_read(one) as first, catalogues.to_read(two) as second:
        found = changes(first.rows("small"), second.rows("small"), "p99")
    assert [(change.policy, change.standing) for change in found] == [
        ("random", "ahead"),
        ("round-robin", "ahead"),
    ]
    assert [round(change.ratio.ratio, 6) for change in found] == [0.5, 0.5]
    with pytest.raises(BadInputError, match="no cell in common"):
        changes([], [], "p99")


# --- errors


def error_of(path: Path) -> str:
    with pytest.raises(BadInputError) as reading:
        catalogues.to_read(path)
    with pytest.raises(BadInputError) as writing:
        catalogues.to_write(path)
    assert str(reading.value) == str(writing.value)
    return str(reading.value)


def test_file_that_is_no_catalogue_is_unchanged(tmp_path: Path) -> None:
    text = tmp_path / "text.sqlite"
    text.write_text("not a database, but long enough to look at " * 40, encoding="utf-8")
    assert error_of(text) == f"{text}: is not a catalogue"
    foreign = altered(tmp_path / "foreign.sqlite", "CREATE TABLE mine (x)")
    before = foreign.read_bytes()
    assert error_of(foreign) == f"{foreign}: is not a catalogue"
    assert foreign.read_bytes() == before


def test_unknown_schema_is_rejected(tmp_path: Path) -> None:
    path = altered(filled(tmp_path / "a.sqlite"), "PRAGMA user_version = 9")
    assert error_of(path).startswith(f"{path}: is a catalogue of schema 9; ")


def test_missing_catalogue_or_grid_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no such file"):
        catalogues.to_read(tmp_path / "a.sqlite")
    catalogues.to_write(tmp_path / "a.sqlite").connection.close()
    with catalogues.to_read(tmp_path / "a.sqlite") as empty, pytest.raises(BadInputError, match="no grid"):
        chosen_grid(empty, None)
    with (
        catalogues.to_read(filled(tmp_path / "b.sqlite")) as full,
        pytest.raises(BadInputError, match=r"'large'.* small"),
    ):
        chosen_grid(full, "large")


def test_unwritable_path_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInputError, match=r"a: cannot be written: "), only_driver(tmp_path / "file" / "a"):
        pass


def recorded(catalogue: Catalogue, cell: Cell) -> None:
    catalogue.record(cell, compute(cell, simulate, keep_samples=True))


def test_full_disk_is_one_line_and_keeps_earlier_results(tmp_path: Path) -> None:
    first, second, *_ = cells = cells_of(small(), CODE)
    with catalogues.to_write(tmp_path / "a.sqlite") as catalogue:
        catalogue.plan(small(), CODE, "test", cells)
        recorded(catalogue, first)
        catalogue.connection.execute("PRAGMA max_page_count = 1")  # the file cannot grow
        with pytest.raises(CatalogueError, match="disk is full"):
            recorded(catalogue, second)
        assert catalogue.finished(keep_samples=True) == {first.identity}


def test_locked_catalogue_is_one_line(tmp_path: Path) -> None:
    path = filled(tmp_path / "a.sqlite")
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with catalogues.to_write(path) as catalogue:
        catalogue.connection.execute("PRAGMA busy_timeout = 0")
        with pytest.raises(ExperimentError, match="locked"):
            recorded(catalogue, cells_of(small(), CODE)[0])
        assert len(catalogue.rows("small")) == 4  # reading goes on
    holder.close()


def test_empty_file_is_a_new_catalogue(tmp_path: Path) -> None:
    """A driver may have died right after creating it."""
    (tmp_path / "a.sqlite").touch()
    assert filled(tmp_path / "a.sqlite").is_file()
