"""Content of a report page, and its rendering as Markdown, for a pull request, or as one HTML file: `templates/page.*`.

The page's Content-Security-Policy forbids external resources and all scripts but its own, known by its digest, which
a page with interactive charts has: uPlot and `charts.js`. Without scripts, and in print, the static figures are shown.
The page never scrolls sideways; tables and wide figures scroll in a frame. It follows the reader's light or dark
setting, and so do the figures (`canvas.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from balancer.control.admin.page.document import digest, text_of
from experiments.platform.json_values import json_value
from experiments.platform.printable import printable
from experiments.report.tables import Cell, Table


@dataclass(frozen=True, slots=True)
class Line:
    """Line of an entry in a chart: colours on a light and a dark page, dashes in pixels, values at its places."""

    label: str
    light: str
    dark: str
    dash: Sequence[float]
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Chart:
    """Data of an interactive chart: lines over common places. `templates/charts.js` draws it.

    A place of kind `percentile` is 1 / (1 - part). An event is begin, end and name.
    """

    title: str
    x: Literal["seconds", "percentile", "ms"]
    y: Literal["rate", "percent", "ms"]
    places: Sequence[float]
    lines: Sequence[Line]
    events: Sequence[tuple[float, float, str]] = ()


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawn figure as SVG bytes. `name` is its file name without suffix.

    A browser that runs scripts shows its `charts` in its place. A `narrow` one fits a telephone.
    """

    name: str
    title: str
    caption: str
    svg: bytes
    charts: Sequence[Chart] = ()
    narrow: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """Title with a figure, list items and a table, in this order; omitted from the page if it has none of them.

    The content of a `folded` section is shown on demand.
    """

    title: str
    picture: Picture | None = None
    lines: Sequence[str] = ()
    table: Table | None = None
    folded: bool = False

    @property
    def anchor(self) -> str:
        """Name of the section in an address: its title in small letters, digits and hyphens."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-") or "section"

    @property
    def has_content(self) -> bool:
        return bool(self.picture or self.lines or self.table)


@dataclass(frozen=True, slots=True)
class Document:
    """Page with a heading, an optional verdict, warnings and sections.

    `title` is that of the browser's tab, `hero` the picture of the first screen; `details` are shown on demand.
    """

    title: str
    heading: str
    sections: Sequence[Section]
    eyebrow: str = ""
    headline: str = ""
    sentences: Sequence[str] = ()
    details: Sequence[str] = ()
    has_verdict: bool = True
    warnings: Sequence[Section] = ()
    hero: Picture | None = None

    @property
    def has_charts(self) -> bool:
        return any(section.picture and section.picture.charts for section in self.sections)


def sections_of(
    tables: Sequence[Table], pictures: Sequence[Picture], method: Sequence[str] = (), first: int = 1
) -> list[Section]:
    """Sections in the order of a report: the `first` tables, all figures, the other tables, the method."""
    framed = [Section(table.title, table=table) for table in tables]
    drawn = [Section(picture.title, picture) for picture in pictures]
    return [*framed[:first], *drawn, *framed[first:], Section("Method", lines=method)]


def to_markdown(document: Document) -> str:
    """The complete Markdown text; figures are linked as PNG files beside it."""
    text = MARKDOWN.get_template("page.md").render(document=document)
    return BLANK_LINES.sub("\n\n", text).strip() + "\n"


def marked(cell: Cell) -> str:
    """Cell of a Markdown table, few samples in italics and bad cells in bold; a pipe would end the cell."""
    text = str(in_markdown(cell.text)).replace("|", "\\|")
    return Markup({"few": f"*{text}*", "bad": f"**{text}**"}.get(cell.mark, text))


def in_markdown(value: object) -> object:
    """Text without Markdown's marks for emphasis, code, links and HTML, for names that contain such characters."""
    return value if hasattr(value, "__html__") else Markup(MARKS.sub(r"\\\g<0>", printable(str(value))))


MARKS = re.compile(r"[*`]|(?<!\w)_|_(?!\w)|<(?=[A-Za-z/!?])|\](?=\()|\\(?=[!-/:-@\[-`{-~])")
BLANK_LINES = re.compile(r"\n{3,}")

UNCHANGED = " !$()*+,-./:;=?@[]^_{|}~"
"""Characters that need no encoding in a data URI inside an attribute in double quotes."""


def to_html(document: Document) -> str:
    script = chart_script() if document.has_charts else None
    return TEMPLATES.get_template("page.html").render(document=document, script=script)


@cache
def chart_script() -> Markup:
    """The chart library with its licence, and the script that draws a page's charts with it."""
    licence = f"/*\n{text_of('uPlot.LICENSE')}\n*/"
    own = files("experiments.report").joinpath("templates", "charts.js").read_text(encoding="utf-8")
    return Markup("\n".join((licence, text_of("uPlot.min.js"), own)))


def shown(value: object) -> object:
    """Text with control characters made visible, before it is escaped; the output of a macro is kept."""
    return value if hasattr(value, "__html__") else printable(str(value))


def thinly(chart: Chart) -> Any:
    """The chart as plain JSON values, with as many digits as a screen shows."""
    return json_value(chart, digits=5)


def data_uri(svg: bytes) -> str:
    """Encode SVG as a data URI, percent-encoded: a fifth smaller than base64."""
    return f"data:image/svg+xml,{quote(svg, safe=UNCHANGED)}"


TEMPLATES = Environment(
    loader=PackageLoader("experiments.report"),
    autoescape=select_autoescape(["html"]),
    undefined=StrictUndefined,
    finalize=shown,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
TEMPLATES.filters |= {"data_uri": data_uri, "digest": digest, "marked": marked, "thinly": thinly}
MARKDOWN = TEMPLATES.overlay(autoescape=True, finalize=in_markdown)
TEMPLATES.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
