"""Build that is installed: the hot path as Python source, or as the compiled extension that `setup.py` makes."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

REASON = Path(__file__).with_name("pure_because.txt")
"""Written by `setup.py` into the installed package; empty in a compiled build, absent in a checkout."""


def build() -> str:
    """Return `pure` or `compiled`."""
    spec = find_spec("balancer.exchange.exchange")
    return "pure" if spec is None or (spec.origin or "").endswith(".py") else "compiled"


@cache
def http2_library() -> str:
    """Return the package that carries libnghttp2, and its version: the library in it cannot be asked for its own."""
    return f"ngh2 {version('ngh2')}"


def version_line(program: str) -> str:
    """Return the line of `--version`: version, build with the reason if it is pure, interpreter, HTTP/2 library."""
    reason = REASON.read_text(encoding="utf-8").strip() if build() == "pure" and REASON.is_file() else ""
    interpreter = f"{platform.python_implementation()} {platform.python_version()}"
    because = f" ({reason})" if reason else ""
    return f"{program} {version('steelyard')}, {build()} build{because}, {interpreter}, {http2_library()}"
