"""Page of two result sets: the forest plot of second / first, interactive charts of both, and the table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from experiments.compare.contrast import Contrast
from experiments.compare.sides import Side, common_labels
from experiments.errors import BadInputError
from experiments.report import canvas, figures
from experiments.report.document import Document, Section, to_html
from experiments.report.drawings import Drawing, charted_drawings, save_drawing
from experiments.report.pages import hero_of, write
from experiments.report.palette import Competitor, colours_of, competitors
from experiments.report.tables import Table
from experiments.stats.comparison import Comparison

Sides = tuple[Side, Side]

SETS = ("first", "second")
"""Names of the two sets; lines of the second are dashed."""


def write_page(
    file: Path,
    sides: Sides,
    found: Sequence[Contrast],
    headline: str,
    table: Table,
    warnings: Sequence[Section],
) -> None:
    """Write the page of a comparison; `found` begins with the measure that decides. Raises `BadInputError`."""
    scenario = sides[0].scenario
    field = drawn_field(sides)
    drawings = [*forest_drawing(sides, found), *charted_drawings(field, field, scenario)]
    pictures = [save_drawing(drawing, None) for drawing in drawings]
    hero = hero_of(pictures)
    sections = [Section(picture.title, picture) for picture in pictures if picture is not hero]
    names = " and ".join(f"{name} {side.name}" for name, side in zip(SETS, sides, strict=True))
    title = f"{scenario.name}: the second result set against the first"
    page = Document(
        title=title,
        heading=title,
        sections=[*sections, Section(table.title, table=table)],
        eyebrow="Steelyard comparison",
        headline=headline,
        sentences=[f"Compared: {names}."],
        has_verdict=any(item.standing != "no verdict" for item in found),
        warnings=warnings,
        hero=hero,
    )
    try:
        write(file, to_html(page))
    except OSError as error:
        raise BadInputError(f"--html: {file}: {error.strerror}") from None


def drawn_field(sides: Sides) -> list[Competitor]:
    """Each entry that both ran, in the first set and then in the second, in one colour."""
    colours = colours_of(sides[0].results)
    by_label = [{one.label: one for one in competitors(side.results, colours)} for side in sides]
    return [
        replace(of_set[label], label=f"{label}, {name}", turn=turn)
        for label in common_labels(*sides)
        for turn, (name, of_set) in enumerate(zip(SETS, by_label, strict=True))
    ]


def forest_drawing(sides: Sides, found: Sequence[Contrast]) -> list[Drawing]:
    """Forest plot of second / first in the measure that decides, if there are intervals."""
    decides = found[0].measure
    shown = [
        Comparison(item.label, SETS[0], item.measure, item.interval, item.p_value, item.standing)
        for item in found
        if item.measure == item.judged_by == decides and not math.isnan(item.interval.low)
    ]
    caption = (
        f"Each entry of the second set over the same of the first by {decides}, with its 95 % interval. A filled point "
        "is better or worse; an interval inside the grey band is practically equal."
    )
    field = competitors(sides[1].results, colours_of(sides[0].results))
    draw = partial(figures.forest, field, shown, {}, canvas.NARROW)
    return [Drawing("verdict", "The verdict", caption, draw)] if shown else []
