"""Code version of a result: a digest of the source files of the rooms that a simulation imports.

A changed page or table therefore keeps all results, and a changed policy or mechanism invalidates every cell.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np

from policies import registry

ROOT = Path(registry.__file__).parents[1]
ROOMS = (
    *("policies", "workers"),
    *(f"balancer/{room}" for room in ("cluster", "config", "syntax", "upstream")),
    *(
        f"experiments/{room}"
        for room in (
            "generator",
            "platform",
            "recorded",
            "results",
            "scenario",
            "scenarios",
            "simulator",
            "stats",
        )
    ),
)
"""Folders below `ROOT`; the modules beside them, such as `experiments/run_data.py`, belong to them."""

DIGEST_CHARACTERS = 12
"""Number of characters of a displayed digest."""


def version_of(function: Callable[..., Any]) -> str:
    """Digest of the code that `function` can reach, in the current interpreter."""
    return digest_with(function.__module__)


@cache
def digest_with(module: str) -> str:
    """Digest of names and bytes of all files, and of the versions of Python, NumPy and policy plug-ins."""
    found = hashlib.sha256()
    for name, path in [*sources().items(), (module, Path(sys.modules[module].__file__ or ""))]:
        found.update(f"{name}\0".encode())
        found.update(path.read_bytes())
    found.update("\n".join(surroundings()).encode())
    return found.hexdigest()[:DIGEST_CHARACTERS]


def sources() -> dict[str, Path]:
    """Source files by their path below `ROOT`, in order."""
    files = {path for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    files |= {path for room in ROOMS for path in (ROOT / room).parent.glob("*.py") if "/" in room}
    return {path.relative_to(ROOT).as_posix(): path for path in sorted(files)}


def surroundings() -> list[str]:
    """Versions outside the project that influence results."""
    python = ".".join(platform.python_version_tuple()[:2])
    plugins = sorted(
        f"{plugin.name} {plugin.dist.name} {plugin.dist.version}"
        for plugin in entry_points(group=registry.GROUP)
        if plugin.dist is not None
    )
    return [f"python {python}", f"numpy {np.__version__}", *plugins]
