"""Render a document as one self-contained HTML file, with the Jinja2 templates in `templates`.

The page's Content-Security-Policy forbids external resources and all scripts but its own, known by its digest, which
a page with interactive charts has: uPlot and `charts.js`. Without scripts, and in print, the static figures are shown.
The page never scrolls sideways; tables and wide figures scroll in a frame. It follows the reader's light or dark
setting, and so do the figures (`canvas.py`).
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from balancer.control.admin.page.document import digest, text_of
from experiments.platform.json_values import json_value
from experiments.platform.printable import printable
from experiments.report.document import Chart, Document

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
    autoescape=True,
    undefined=StrictUndefined,
    finalize=shown,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
TEMPLATES.filters |= {"data_uri": data_uri, "digest": digest, "thinly": thinly}
TEMPLATES.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
