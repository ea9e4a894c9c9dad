"""The report as one HTML file that needs nothing else: no font, script, style or picture from elsewhere.

Rule of this file: the page never scrolls sideways, its tables do, inside their own frame. It follows the
reader's light or dark setting; figures keep white paper, because colours chosen for white must stay on it.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from experiments.campaign.summary import Summary
from experiments.report.style import STYLE
from experiments.report.tables import Cell, Table, tables_of
from experiments.report.text import invalid_lines


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawn figure: SVG bytes for wide screens and for phones."""

    name: str
    title: str
    caption: str
    wide: bytes
    narrow: bytes


def to_html(summary: Summary, pictures: Sequence[Picture], method: Sequence[str]) -> str:
    """The whole page."""
    first, *rest = tables_of(summary)
    name = escape(summary.scenario.name)
    body = [
        header(summary),
        section(first.title, table_html(first)),
        *(picture_html(picture) for picture in pictures),
        *(section(table.title, table_html(table)) for table in rest),
        section("Method", f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in method)}</ul>"),
    ]
    return page(f"{name}: {escape(summary.scenario.question)}", body)


def page(title: str, body: Sequence[str]) -> str:
    """A document of these parts; `title` is HTML."""
    content = "\n".join(body)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title>\n<style>\n{STYLE}</style></head>\n"
        f"<body><main>\n{content}\n</main></body></html>\n"
    )


def header(summary: Summary) -> str:
    """Question, verdict, and everything that warns."""
    kind = "verdict" if summary.verdict.has_verdict else "verdict none"
    sentences = "".join(f"<p>{escape(sentence)}</p>" for sentence in summary.verdict.sentences)
    return (
        f'<header><p class="eyebrow">Steelyard {kind_of(summary)} · {escape(summary.scenario.name)}</p>'
        f"<h1>{escape(summary.scenario.question)}</h1></header>\n"
        f'<div class="{kind}"><strong>{escape(summary.verdict.headline)}</strong>{sentences}</div>'
        f"{warnings(summary)}"
    )


def kind_of(summary: Summary) -> str:
    """What the page is about."""
    return "experiment" if summary.world == "measured" else "simulation: simulated, not measured"


def warnings(summary: Summary) -> str:
    """Invalid runs, failed thresholds and a time scale, each in a box of its own."""
    missing = [f"{summary.missing_runs} planned runs are missing: the campaign was stopped or failed."]
    scale = summary.scenario.time_scale
    failed = [f"{j.label}: {j.threshold} — {j.message}" for j in summary.failed_thresholds]
    boxes = [
        box("Invalid runs: do not believe their figures", invalid_lines(summary)),
        box("Incomplete campaign", missing if summary.missing_runs else []),
        box("Thresholds failed", failed),
        box("Compressed time", [f"1 s of the scenario took {scale:g} s."] if scale != 1 else []),
    ]
    return "".join(boxes)


def box(title: str, lines: Sequence[str]) -> str:
    """A warning, or nothing without lines."""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<div class="warning"><strong>{escape(title)}</strong><ul>{items}</ul></div>' if lines else ""


def section(title: str, inner: str) -> str:
    """A part of the page under a heading."""
    return f"<section><h2>{escape(title)}</h2>\n{inner}</section>"


def table_html(table: Table) -> str:
    """A table in a frame that scrolls by itself, and can be reached by keyboard."""
    heads = "".join(f'<th scope="col">{escape(column)}</th>' for column in table.columns)
    rows = "".join(f"<tr>{''.join(map(cell_html, row))}</tr>\n" for row in table.rows)
    kind = ' class="prose"' if table.prose else ""
    return (
        f'<p class="note">{escape(table.note)}</p><div class="scroll" tabindex="0">'
        f"<table{kind}><thead><tr>{heads}</tr></thead><tbody>\n{rows}</tbody></table></div>"
    )


def cell_html(cell: Cell) -> str:
    """A cell with its mark as a class."""
    kind = f' class="{cell.mark}"' if cell.mark else ""
    return f"<td{kind}>{escape(cell.text)}</td>"


def picture_html(picture: Picture) -> str:
    """A figure that shows its narrow drawing on narrow screens."""
    alt = escape(f"{picture.title}. {picture.caption}")
    return section(
        picture.title,
        f'<figure><picture><source media="(max-width: 640px)" srcset="{data_uri(picture.narrow)}">'
        f'<img src="{data_uri(picture.wide)}" alt="{alt}"></picture>'
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>",
    )


def data_uri(svg: bytes) -> str:
    """SVG inside the page itself."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode('ascii')}"
