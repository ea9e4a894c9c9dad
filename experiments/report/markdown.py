"""Render a document as Markdown, for a pull request. Figures are linked as PNG files beside it."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.platform.printable import printable
from experiments.report.document import Document, Picture, Section
from experiments.report.tables import Cell, Table


def to_markdown(document: Document) -> str:
    """The complete Markdown text."""
    parts = [f"# {document.title}", document.eyebrow, document.headline and f"**{document.headline}**"]
    if hero := document.hero:
        parts += [*picture_parts(hero)]
    parts += [" ".join(document.sentences), "\n".join(f"- {line}" for line in document.details)]
    parts += [f"> **{box.title}**: {line}" for box in document.warnings for line in box.lines]
    parts += [part for section in document.sections if section.has_content for part in section_parts(section)]
    return printable("\n\n".join(part for part in parts if part) + "\n")


def picture_parts(picture: Picture) -> Iterator[str]:
    """Link to a figure, and its caption."""
    yield f"![{picture.title}](figures/{picture.name}.png)"
    yield picture.caption


def section_parts(section: Section) -> Iterator[str]:
    """Paragraphs of a section."""
    yield f"## {section.title}"
    if picture := section.picture:
        yield from picture_parts(picture)
    yield "\n".join(f"- {line}" for line in section.lines)
    if section.table:
        yield section.table.note
        yield markdown_table(section.table)


def markdown_table(table: Table) -> str:
    """Rows of a Markdown table; few samples in italics, bad cells in bold."""
    align = [":--"] + ["--:" if not table.prose else ":--"] * (len(table.columns) - 1)
    lines = [table.columns, align, *([markdown_cell(cell) for cell in row] for row in table.rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markdown_cell(cell: Cell) -> str:
    """Cell with emphasis by mark; a pipe is escaped because it would end the cell."""
    text = cell.text.replace("|", "\\|")
    return {"few": f"*{text}*", "bad": f"**{text}**"}.get(cell.mark, text)
