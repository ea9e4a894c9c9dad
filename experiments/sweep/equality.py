"""Equality of two catalogues, for example of a resumed sweep and an undisturbed one.

Results are compared bit for bit; worker, host, time and duration are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator

from experiments.errors import BadInputError
from experiments.sweep.catalogue import Catalogue, CellRow, GridFacts


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
    """Yield one sentence if the two results of a cell differ."""
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
