"""The catalogue: one SQLite file that holds the cells of all sweeps written to it.

There is one writer, the driver, and a finished cell is one transaction, so a kill at any instant loses only cells that
were being computed. Readers may open the file at any time. Every SQLite error becomes one line that names the file.

Two catalogues, for example of a resumed sweep and an undisturbed one, are compared bit for bit; worker, host, time and
duration are ignored.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from experiments.errors import BadInputError, ExperimentError
from experiments.sweep.cells import Cell
from experiments.sweep.grid import Grid
from experiments.sweep.outcome import CellOutcome

APPLICATION = 0x53544C59
"""SQLite application id `STLY`, which distinguishes a catalogue from other SQLite files."""

SCHEMA = 2
"""Version of the tables in `schema.sql`; a catalogue of another one is refused."""

PATIENCE = 5.0
"""Seconds to wait while another program holds the file's lock."""

MEANINGS = {
    "SQLITE_BUSY": "is locked by another program",
    "SQLITE_CANTOPEN": "cannot be opened: while there is content in its file -wal, reading takes a file beside it",
    "SQLITE_CORRUPT": "is damaged",
    "SQLITE_FULL": "cannot grow: the disk is full; what it holds is safe",
    "SQLITE_NOTADB": "is not a catalogue",
    "SQLITE_READONLY": "may not be written to",
}

State = Literal["missing", "done", "failed"]


class CatalogueError(ExperimentError):
    """The catalogue file failed during a sweep."""


@dataclass(frozen=True, slots=True)
class GridFacts:
    """A grid of the catalogue as of its last sweep. `seconds` is the total computing time of its cells."""

    grid: Grid
    code: str
    command: str
    machine: str
    began_at: str
    planned: int
    done: int
    failed: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CellRow:
    """A planned cell and, unless it is missing, its result: `numbers` by the columns of `results`."""

    cell: str
    scenario: str
    label: str
    policy: str
    knobs: str
    seed: int
    state: State
    numbers: dict[str, Any]


class Catalogue(AbstractContextManager["Catalogue"]):
    """An open catalogue, usable as a context manager."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self.connection = connection

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    # --- writing

    def plan(self, grid: Grid, code: str, command: str, cells: Sequence[Cell]) -> None:
        """Store the plan of a grid. It replaces an earlier plan of the same name; results stay."""
        machine = f"{os.cpu_count()} processors, {platform.system()} {platform.machine()}"
        facts = (grid.name, grid.model_dump_json(), code, command, machine, now())
        with self.transaction():
            self.connection.execute("DELETE FROM grids WHERE name = ?", (grid.name,))
            self.connection.execute("INSERT INTO grids VALUES (?, ?, ?, ?, ?, ?)", facts)
            for cell in cells:
                self._describe(cell)
            self.connection.executemany(
                "INSERT INTO planned VALUES (?, ?, ?)",
                ((grid.name, place, cell.identity) for place, cell in enumerate(cells)),
            )

    def _describe(self, cell: Cell) -> None:
        content = cell.scenario.model_copy(update={"seed": 0}).model_dump_json()
        digest = hashlib.sha256(content.encode()).hexdigest()[:32]
        self.connection.execute("INSERT OR IGNORE INTO contents VALUES (?, ?)", (digest, content))
        entry = cell.entry
        policy = json.dumps(entry.policy.model_dump(mode="json"), sort_keys=True)
        asked = (cell.identity, cell.scenario.name, entry.label, policy, json.dumps(dict(cell.setting)))
        self.connection.execute(
            "INSERT OR IGNORE INTO cells VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (*asked, cell.seed, cell.code, digest),
        )

    def finished(self, keep_samples: bool) -> set[str]:
        """Identities of the finished cells; with `keep_samples`, only of those whose samples are stored."""
        text = "SELECT cell FROM results WHERE state = 'done'"
        if keep_samples:
            text += " AND cell IN (SELECT cell FROM samples)"
        return {cell for (cell,) in self._read(text)}

    def record(self, cell: Cell, outcome: CellOutcome) -> None:
        """Store one finished cell in one transaction. Raises `CatalogueError`."""
        state = "failed" if outcome.message is not None else "done"
        columns = {"cell": cell.identity, "state": state, "message": outcome.message, **outcome.numbers}
        names, marks = ", ".join(columns), ", ".join("?" * len(columns))
        with self.transaction():
            self.connection.execute(
                f"INSERT OR REPLACE INTO results ({names}) VALUES ({marks})", tuple(columns.values())
            )
            self.connection.execute(
                "INSERT INTO computations VALUES (?, ?, ?, ?, 1) ON CONFLICT (cell) DO UPDATE SET seconds ="
                " excluded.seconds, host = excluded.host, finished_at = excluded.finished_at, tries = tries + 1",
                (cell.identity, outcome.seconds, outcome.host, now()),
            )
            if outcome.samples is not None:
                kept = (cell.identity, outcome.samples)
                self.connection.execute("INSERT OR REPLACE INTO samples VALUES (?, ?)", kept)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """SQLite transaction, rolled back on an exception. Raises `CatalogueError`."""
        with one_line_errors(self.path, CatalogueError), self.connection:
            self.connection.execute("BEGIN IMMEDIATE")
            yield

    # --- reading

    def grids(self) -> list[GridFacts]:
        """Grids of the catalogue, the last swept first."""
        return [GridFacts(Grid.model_validate_json(content), *facts) for content, *facts in self._read(GRIDS)]

    def rows(self, grid: str) -> list[CellRow]:
        """Every planned cell of a grid, in the order of the plan."""
        return [
            CellRow(*(*row[:7], {name: row[name] for name in row.keys()[NUMBERS:]}))
            for row in self._read(ROWS, grid)
        ]

    def samples(self, cell: str) -> bytes | None:
        """Run file of a cell as bytes, or None if it was not kept."""
        return next(
            (bytes(run) for (run,) in self._read("SELECT run FROM samples WHERE cell = ?", cell)), None
        )

    def _read(self, statement: str, *parameters: str) -> list[sqlite3.Row]:
        """Rows that a statement finds. Raises `BadInputError`."""
        with one_line_errors(self.path):
            return self.connection.execute(statement, parameters).fetchall()


GRIDS = """
SELECT content, code, command, machine, began_at, count(*), coalesce(sum(results.state = 'done'), 0),
       coalesce(sum(results.state = 'failed'), 0), coalesce(sum(computations.seconds), 0)
FROM grids JOIN planned ON planned.grid = grids.name
LEFT JOIN results USING (cell) LEFT JOIN computations USING (cell)
GROUP BY grids.name ORDER BY began_at DESC, grids.rowid DESC
"""
"""In the order of `GridFacts`."""

ROWS = """
SELECT cells.id, cells.scenario, cells.label, cells.policy, cells.knobs, cells.seed,
       coalesce(results.state, 'missing'), results.*
FROM planned JOIN cells ON cells.id = planned.cell LEFT JOIN results ON results.cell = cells.id
WHERE planned.grid = ? ORDER BY planned.place
"""
"""In the order of `CellRow`."""

NUMBERS = 9
"""Columns of `ROWS` before the numbers: those of a `CellRow`, and `cell` and `state` of the results."""


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


# --- opening


def to_write(path: Path) -> Catalogue:
    """Open or create a catalogue for writing. Raises `BadInputError` when that fails or the file is not a catalogue."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInputError(f"{path}: {error.strerror}") from None
    if path.is_dir():
        raise BadInputError(f"{path}: is a directory")
    return opened(path, "rwc")


def to_read(path: Path) -> Catalogue:
    """Open a catalogue read-only. Raises `BadInputError` when the file does not exist or is not a catalogue."""
    if not path.is_file():
        raise BadInputError(f"{path}: no such file; `experiments sweep` makes one")
    try:
        return opened(path, "ro")
    except BadInputError:
        wal = path.with_name(f"{path.name}-wal")
        if wal.exists() and wal.stat().st_size:
            raise
        return opened(path, "ro&immutable=1")  # SQLite writes beside it otherwise, also to read


def opened(path: Path, mode: Literal["ro", "ro&immutable=1", "rwc"]) -> Catalogue:
    """Open a file as SQLite does in this mode. Raises `BadInputError` when it is not a catalogue."""
    with one_line_errors(path):
        address = f"file:{quote(str(path))}?mode={mode}"
        connection = sqlite3.connect(address, uri=True, timeout=PATIENCE, isolation_level=None)
        connection.row_factory = sqlite3.Row
        try:
            if mode == "rwc" and is_empty(connection):
                create(connection)
            if pragma(connection, "application_id") != APPLICATION:
                raise BadInputError(f"{path}: is not a catalogue")
            if (schema := pragma(connection, "user_version")) != SCHEMA:
                raise BadInputError(
                    f"{path}: is a catalogue of schema {schema}; this release reads schema {SCHEMA}"
                )
            if mode == "rwc":
                connection.execute("PRAGMA foreign_keys = ON")
                connection.execute("PRAGMA synchronous = NORMAL")  # a power cut may lose the last cells
        except BaseException:
            connection.close()
            raise
    return Catalogue(path, connection)


def is_empty(connection: sqlite3.Connection) -> bool:
    """Whether the file has no tables yet, as after a driver was killed before it created them."""
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    return int(tables) == 0 and pragma(connection, "application_id") == 0


def create(connection: sqlite3.Connection) -> None:
    """Create all tables in one transaction."""
    tables = resources.files(__package__).joinpath("schema.sql").read_text("utf-8")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(
        f"BEGIN IMMEDIATE;\n{tables}\nPRAGMA application_id = {APPLICATION};\n"
        f"PRAGMA user_version = {SCHEMA};\nCOMMIT;"
    )


def pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


@contextmanager
def one_line_errors(path: Path, kind: type[ExperimentError] = BadInputError) -> Iterator[None]:
    """Convert SQLite errors to one-line errors of `kind`."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        meaning = next((words for key, words in MEANINGS.items() if name.startswith(key)), str(error))
        raise kind(f"{path}: {meaning}") from None


def chosen_grid(catalogue: Catalogue, name: str | None) -> GridFacts:
    """The grid with that name, or the last swept one. Raises `BadInputError`."""
    grids = catalogue.grids()
    if not grids:
        raise BadInputError(f"{catalogue.path}: holds no grid yet")
    if name is None:
        return grids[0]
    found = next((facts for facts in grids if facts.grid.name == name), None)
    if found is None:
        known = ", ".join(facts.grid.name for facts in grids)
        raise BadInputError(f"--grid: {catalogue.path} has no {name!r}; known: {known}")
    return found


def differences(ours: Catalogue, theirs: Catalogue, name: str | None) -> Iterator[str]:
    """Yield one sentence for each planned cell that differs."""
    name = chosen_grid(ours, name).grid.name
    chosen_grid(theirs, name)
    mine, others = ({row.cell: row for row in one.rows(name)} for one in (ours, theirs))
    for cell, row in mine.items():
        if cell not in others:
            yield f"{cell_text(row)}: is not planned in {theirs.path}"
        else:
            yield from of_cell(row, others[cell], ours, theirs)
    yield from (
        f"{cell_text(row)}: is not planned in {ours.path}" for cell, row in others.items() if cell not in mine
    )


def of_cell(row: CellRow, other: CellRow, ours: Catalogue, theirs: Catalogue) -> Iterator[str]:
    if row.state != other.state:
        yield f"{cell_text(row)}: {row.state} in {ours.path}, {other.state} in {theirs.path}"
        return
    unequal = [name for name, value in row.numbers.items() if value != other.numbers[name]]
    if ours.samples(row.cell) != theirs.samples(row.cell):
        unequal.append("samples")
    if unequal:
        yield f"{cell_text(row)}: unequal in {', '.join(unequal)}"


def cell_text(row: CellRow) -> str:
    """Describe a cell as `steady, random, seed 3`."""
    knobs = "" if row.knobs == "{}" else f", {row.knobs}"
    return f"{row.scenario}, {row.label}{knobs}, seed {row.seed}"
