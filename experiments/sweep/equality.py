"""Whether two catalogues say the same: that of a sweep which was stopped and resumed, and that of an undisturbed one.

Rule of this file: results are equal to the last bit or they differ; who computed them, where, when and for how long is
not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator

from experiments.errors import BadInputError
from experiments.sweep.catalogue import Catalogue, GridFacts, Row

SHOWN = 10
"""Differences that are told one by one."""


def chosen_grid(catalogue: Catalogue, name: str | None) -> GridFacts:
    """The grid of that name, or the one that was swept last. Raises BadInputError."""
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
    """One sentence for each planned cell in which they differ."""
    name = chosen_grid(ours, name).grid.name
    chosen_grid(theirs, name)
    mine, others = ({row.cell: row for row in one.rows(name)} for one in (ours, theirs))
    for cell, row in mine.items():
        if cell not in others:
            yield f"{in_words(row)}: is not planned in {theirs.path}"
        else:
            yield from of_cell(row, others[cell], ours, theirs)
    yield from (
        f"{in_words(row)}: is not planned in {ours.path}" for cell, row in others.items() if cell not in mine
    )


def of_cell(row: Row, other: Row, ours: Catalogue, theirs: Catalogue) -> Iterator[str]:
    """Everything in which two results of one cell differ, in one sentence."""
    if row.state != other.state:
        yield f"{in_words(row)}: {row.state} in {ours.path}, {other.state} in {theirs.path}"
        return
    unequal = [name for name, value in row.numbers.items() if value != other.numbers[name]]
    if ours.samples(row.cell) != theirs.samples(row.cell):
        unequal.append("samples")
    if unequal:
        yield f"{in_words(row)}: unequal in {', '.join(unequal)}"


def in_words(row: Row) -> str:
    """`steady, random, seed 3`."""
    knobs = "" if row.knobs == "{}" else f", {row.knobs}"
    return f"{row.scenario}, {row.label}{knobs}, seed {row.seed}"
