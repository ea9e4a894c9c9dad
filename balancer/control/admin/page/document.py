"""The live page as one HTML document: styles, scripts and the chart library are inlined, nothing is loaded.

uPlot 1.6.32 is vendored as published on npm; its licence (static/uPlot.LICENSE) is part of the document.
"""

from __future__ import annotations

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files

BREAKS = re.compile(r"([{;,(\[])\n")
"""Line breaks that a script does not need."""

SCRIPTS = (
    *("elements.js", "stream.js", "charts.js", "endpoints.js", "policy.js", "overview.js", "start.js"),
)
"""Files of static/ in their order in the document, after uPlot."""


@cache
def page() -> tuple[bytes, dict[str, str]]:
    """Return the document and its header fields."""
    style = compact(lean_text_of("page.css"))
    licence = f"/*\n{text_of('uPlot.LICENSE')}\n*/"
    own = BREAKS.sub(r"\1", "\n".join(map(lean_text_of, SCRIPTS)))
    script = "\n".join((licence, text_of("uPlot.min.js"), own))
    html = lean_text_of("page.html").replace("{style}", style).replace("{script}", script)
    return html.encode(), {
        "Content-Security-Policy": policy_for(style, script),
        "Cache-Control": "no-store",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
    }


def policy_for(style: str, script: str) -> str:
    """Return a Content-Security-Policy that admits this style and this script, and requests to the same origin."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src '{digest(script)}'",
            f"style-src '{digest(style)}'",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


def digest(text: str) -> str:
    """Return the source expression for inline content (CSP § 6.7.3.3)."""
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def lean_text_of(name: str) -> str:
    """Return a file of static/ without indentation and comments."""
    lines = (line.strip().partition("; // ") for line in text_of(name).splitlines())
    return "\n".join(code + end[:1] for code, end, _ in lines if code and not code.startswith("//"))


def compact(style: str) -> str:
    """Return a style sheet without the spaces around braces and behind commas, values and the names of properties."""
    style = style.replace("\n", " ").replace(" {", "{").replace(" }", "}").replace(" > ", ">")
    for mark in ":{};,":
        style = style.replace(f"{mark} ", mark)
    return style.replace(";}", "}")


def text_of(name: str) -> str:
    """Return a file of static/."""
    return files("balancer.control.admin.page").joinpath("static", name).read_text(encoding="utf-8").strip()
