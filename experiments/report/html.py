"""Render a document as one self-contained HTML file, with the Jinja2 templates in `templates`.

The page has no script, and its Content-Security-Policy forbids scripts and external resources. It never scrolls
sideways; tables and wide figures scroll in a frame. It follows the reader's light or dark setting, and so do the
figures (`svg.py`).
"""

from __future__ import annotations

from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from experiments.platform.printable import printable
from experiments.report.document import Document

UNCHANGED = " !$()*+,-./:;=?@[]^_{|}~"
"""Characters that need no encoding in a data URI inside an attribute in double quotes."""


def to_html(document: Document) -> str:
    """The complete HTML page."""
    return TEMPLATES.get_template("page.html").render(document=document)


def shown(value: object) -> object:
    """Text with control characters made visible, before it is escaped; the output of a macro is kept."""
    return value if hasattr(value, "__html__") else printable(str(value))


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
TEMPLATES.filters["data_uri"] = data_uri
