"""The catalogue: one SQLite file that holds the cells of all sweeps written to it.

There is one writer, the driver, and a finished cell is one transaction, so a kill at any instant loses only cells that
were being computed. Readers may open the file at any time. Every SQLite error becomes one line that names the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from experiments.errors import BadInputError, ExperimentError
from experiments.sweep.cells import Cell
from experiments.sweep.grid import Grid
from experiments.sweep.outcome import CellOutcome
from experiments.sweep.schema import APPLICATION, SCHEMA, TABLES

PATIENCE = 5.0
"""Seconds to wait while another program holds the file's lock."""

MEANINGS = {
    "SQLITE_BUSY": "is locked by another program",
    "SQLITE_CANTOPEN": "cannot be opened",
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


class Catalogue:
    """An open catalogue, usable as a context manager."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self.connection = connection
        connection.row_factory = sqlite3.Row

    def __enter__(self) -> Catalogue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
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
        asked = (*described(cell), digest)
        self.connection.execute("INSERT OR IGNORE INTO cells VALUES (?, ?, ?, ?, ?, ?, ?, ?)", asked)

    def finished(self, keep_samples: bool) -> set[str]:
        """Identities of the finished cells; with `keep_samples`, only of those whose samples are stored."""
        text = "SELECT cell FROM results WHERE state = 'done'"
        if keep_samples:
            text += " AND cell IN (SELECT cell FROM samples)"
        with one_line_errors(self.path):
            return {row["cell"] for row in self.connection.execute(text)}

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
        with one_line_errors(self.path, CatalogueError):
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise

    # --- reading

    def grids(self) -> list[GridFacts]:
        """Grids of the catalogue, the last swept first."""
        with one_line_errors(self.path):
            return [facts_of(row) for row in self.connection.execute(GRIDS)]

    def rows(self, grid: str) -> list[CellRow]:
        """Every planned cell of a grid, in the order of the plan."""
        with one_line_errors(self.path):
            return [cell_row(row) for row in self.connection.execute(ROWS, (grid,))]

    def samples(self, cell: str) -> bytes | None:
        """Run file of a cell as bytes, or None if it was not kept."""
        with one_line_errors(self.path):
            found = self.connection.execute("SELECT run FROM samples WHERE cell = ?", (cell,)).fetchone()
        return None if found is None else bytes(found["run"])

    def content(self, cell: str) -> str:
        """Scenario of a cell with its only entry and without a seed, as JSON."""
        text = "SELECT scenario FROM contents WHERE id = (SELECT content FROM cells WHERE id = ?)"
        with one_line_errors(self.path):
            return str(self.connection.execute(text, (cell,)).fetchone()[0])


GRIDS = """
SELECT grids.*, count(*) AS planned, count(results.cell) AS answered,
       coalesce(sum(results.state = 'failed'), 0) AS failed, coalesce(sum(computations.seconds), 0) AS seconds
FROM grids JOIN planned ON planned.grid = grids.name
LEFT JOIN results USING (cell) LEFT JOIN computations USING (cell)
GROUP BY grids.name ORDER BY began_at DESC, grids.rowid DESC
"""
ROWS = """
SELECT cells.id, cells.scenario, cells.label, cells.policy, cells.knobs, cells.seed, results.*
FROM planned JOIN cells ON cells.id = planned.cell LEFT JOIN results ON results.cell = cells.id
WHERE planned.grid = ? ORDER BY planned.place
"""
NO_RESULT = ("id", "scenario", "label", "policy", "knobs", "seed", "cell", "state")
"""Columns that are not results."""


def facts_of(row: sqlite3.Row) -> GridFacts:
    """Convert a row of the query `GRIDS`."""
    return GridFacts(
        grid=Grid.model_validate_json(row["content"]),
        code=row["code"],
        command=row["command"],
        machine=row["machine"],
        began_at=row["began_at"],
        planned=row["planned"],
        done=row["answered"] - row["failed"],
        failed=row["failed"],
        seconds=row["seconds"],
    )


def cell_row(row: sqlite3.Row) -> CellRow:
    """Convert a row of the query `ROWS`."""
    numbers = {name: row[name] for name in row.keys() if name not in NO_RESULT}  # noqa: SIM118 (not a dict)
    asked = (row["id"], row["scenario"], row["label"], row["policy"], row["knobs"], row["seed"])
    return CellRow(*asked, state=row["state"] or "missing", numbers=numbers)


def described(cell: Cell) -> tuple[object, ...]:
    """A row of the table `cells`, without its content."""
    return (
        cell.identity,
        cell.scenario.name,
        cell.entry.label,
        json.dumps(cell.entry.policy.model_dump(mode="json"), sort_keys=True),
        json.dumps(dict(cell.setting)),
        cell.seed,
        cell.code,
    )


def now() -> str:
    """Current UTC time in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


# --- opening


def to_write(path: Path) -> Catalogue:
    """Open or create a catalogue for writing. Raises `BadInputError` when that fails or the file is not a catalogue."""
    with one_line_errors(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInputError(f"{path}: {error.strerror}") from None
        catalogue = Catalogue(path, sqlite3.connect(path, timeout=PATIENCE, isolation_level=None))
        with closed_on_error(catalogue):
            if is_empty(catalogue.connection):
                create(catalogue.connection)
            require_ours(catalogue)
            catalogue.connection.execute("PRAGMA foreign_keys = ON")
            catalogue.connection.execute("PRAGMA synchronous = NORMAL")  # a power cut may lose the last cells
    return catalogue


def to_read(path: Path) -> Catalogue:
    """Open a catalogue read-only. Raises `BadInputError` when the file does not exist or is not a catalogue."""
    if not path.is_file():
        raise BadInputError(f"{path}: no such file; `experiments sweep` makes one")
    with one_line_errors(path):
        address = f"file:{quote(str(path))}?mode=ro"
        catalogue = Catalogue(
            path, sqlite3.connect(address, uri=True, timeout=PATIENCE, isolation_level=None)
        )
        with closed_on_error(catalogue):
            require_ours(catalogue)
    return catalogue


@contextmanager
def closed_on_error(catalogue: Catalogue) -> Iterator[None]:
    """Close the catalogue if the block raises."""
    try:
        yield
    except BaseException:
        catalogue.close()
        raise


def is_empty(connection: sqlite3.Connection) -> bool:
    """Whether the file has no tables yet, as after a driver was killed before it created them."""
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    return int(tables) == 0 and mark_of(connection) == 0


def create(connection: sqlite3.Connection) -> None:
    """Create all tables in one transaction."""
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(
        f"BEGIN IMMEDIATE;\n{TABLES}\nPRAGMA application_id = {APPLICATION};\n"
        f"PRAGMA user_version = {SCHEMA};\nCOMMIT;"
    )


def mark_of(connection: sqlite3.Connection) -> int:
    """SQLite application id of the file."""
    return int(connection.execute("PRAGMA application_id").fetchone()[0])


def require_ours(catalogue: Catalogue) -> None:
    """Raise `BadInputError` if the file is not a catalogue or has another schema version."""
    if mark_of(catalogue.connection) != APPLICATION:
        raise BadInputError(f"{catalogue.path}: is not a catalogue")
    version = int(catalogue.connection.execute("PRAGMA user_version").fetchone()[0])
    if version != SCHEMA:
        raise BadInputError(
            f"{catalogue.path}: is a catalogue of schema {version}; this release reads schema {SCHEMA}"
        )


@contextmanager
def one_line_errors(path: Path, kind: type[ExperimentError] = BadInputError) -> Iterator[None]:
    """Convert SQLite errors to one-line errors of `kind`."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        meaning = next((words for key, words in MEANINGS.items() if name.startswith(key)), str(error))
        raise kind(f"{path}: {meaning}") from None
