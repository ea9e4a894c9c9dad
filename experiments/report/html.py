"""The report as one self-contained HTML file: no external font, script, style or image.

The page never scrolls sideways; tables scroll inside their own frame. It follows the reader's light or dark setting;
figures keep a white background, for which their colours were chosen.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.report.markup import BREAK, Html, element, joined, listing, opened
from experiments.report.style import STYLE
from experiments.report.tables import Cell, Table, tables_of
from experiments.report.text import invalid_lines
from experiments.results.summary import Summary


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawn figure as SVG bytes."""

    name: str
    title: str
    caption: str
    svg: bytes


POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""Content-Security-Policy of every page: no script and no external resource."""


def to_html(summary: Summary, pictures: Sequence[Picture], method: Sequence[str]) -> str:
    """The complete report page: verdict, tables, figures, method."""
    first, *rest = tables_of(summary)
    body = [
        header(summary),
        section(first.title, table_html(first)),
        *(picture_html(picture) for picture in pictures),
        *(section(table.title, table_html(table)) for table in rest),
        section("Method", listing(method)),
    ]
    return page(f"{summary.scenario.name}: {summary.scenario.question}", body)


def page(title: str, body: Sequence[Html]) -> Html:
    """HTML document with a title and body parts."""
    head = [
        opened("meta", charset="utf-8"),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        opened("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        Html(f"\n<style>\n{STYLE}</style>"),
    ]
    content = joined(node for part in body for node in (BREAK, part))
    main = element("body", element("main", content, BREAK))
    document = [opened("html", lang="en"), element("head", *head), BREAK, main]
    return Html(f"<!doctype html>\n{joined(document)}</html>\n")


def header(summary: Summary) -> Html:
    """Page header with question, verdict, and all warnings."""
    verdict = summary.verdict
    sentences = (element("p", sentence) for sentence in verdict.sentences)
    return joined(
        [
            heading(f"Steelyard {kind_of(summary)} · {summary.scenario.name}", summary.scenario.question),
            BREAK,
            verdict_box(verdict.headline, *sentences, has_verdict=verdict.has_verdict),
            warnings(summary),
        ]
    )


def heading(eyebrow: str, title: str) -> Html:
    """Page heading with an eyebrow line."""
    return element("header", element("p", eyebrow, class_="eyebrow"), element("h1", title))


def verdict_box(headline: str, *rest: Html, has_verdict: bool = True) -> Html:
    """Box with the headline of the verdict."""
    kind = "verdict" if has_verdict else "verdict none"
    return element("div", element("strong", headline), *rest, class_=kind)


def kind_of(summary: Summary) -> str:
    """Kind of the page: experiment or simulation."""
    return "experiment" if summary.world == "measured" else "simulation: simulated, not measured"


def warnings(summary: Summary) -> Html:
    """Invalid runs, failed thresholds, missing runs and a time scale, each in its own box."""
    missing = [f"{summary.missing_runs} planned runs are missing: the campaign was stopped or failed."]
    scale = summary.scenario.time_scale
    failed = [f"{j.label}: {j.threshold} — {j.message}" for j in summary.failed_thresholds]
    boxes = [
        box("Invalid runs: do not believe their figures", invalid_lines(summary)),
        box("Incomplete campaign", missing if summary.missing_runs else []),
        box("Thresholds failed", failed),
        box("Compressed time", [f"1 s of the scenario took {scale:g} s."] if scale != 1 else []),
    ]
    return joined(boxes)


def box(title: str, lines: Sequence[str]) -> Html:
    """Warning box with a list; empty without lines."""
    return element("div", element("strong", title), listing(lines), class_="warning") if lines else Html()


def section(title: str, inner: Html) -> Html:
    """Section of the page with a heading."""
    return element("section", element("h2", title), BREAK, inner)


def table_html(table: Table) -> Html:
    """Table in a frame that scrolls by itself and is reachable by keyboard."""
    heads = (element("th", column, scope="col") for column in table.columns)
    rows = (joined([element("tr", *map(cell_html, row)), BREAK]) for row in table.rows)
    parts = [element("thead", element("tr", *heads)), element("tbody", BREAK, *rows)]
    inner = element("table", *parts, class_="prose" if table.prose else "")
    note = element("p", table.note, class_="note")
    return joined([note, element("div", inner, class_="scroll", tabindex="0")])


def cell_html(cell: Cell) -> Html:
    """Table cell with its mark as a class."""
    return element("td", cell.text, class_=cell.mark)


def picture_html(picture: Picture) -> Html:
    """Figure in a frame that scrolls on narrow screens."""
    image = opened("img", src=data_uri(picture.svg), alt=f"{picture.title}. {picture.caption}")
    frame = element("div", image, class_="scroll", tabindex="0")
    return section(picture.title, element("figure", frame, element("figcaption", picture.caption)))


def data_uri(svg: bytes) -> str:
    """Encode SVG as a base64 data URI."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode('ascii')}"
