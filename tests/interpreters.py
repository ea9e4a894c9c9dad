"""The interpreters that the first tier runs on beside that of .venv: the oldest and the newest that are claimed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.root import ROOT

DEBIAN = (3, 11, 2)
"""Debian 12's. Before 3.11.4, `raise` within `except*` leaves its exception in a group."""

ASKED = "import ensurepip, sys; assert sys.implementation.name == 'cpython'; print(*sys.version_info[:4])"
"""Prints the version of a CPython that can make a virtual environment."""

Version = tuple[int, int, int]


@dataclass(frozen=True)
class Choice:
    """Interpreters to test on, by version, and what is claimed and absent."""

    found: Mapping[Version, str] = field(default_factory=dict)
    absent: tuple[str, ...] = ()

    def __str__(self) -> str:
        shown = ", ".join(f"{name_of(version)} ({path})" for version, path in self.found.items())
        return f"Other interpreters: {shown or 'none'}. Absent: {', '.join(self.absent) or 'none'}."


def name_of(version: Iterable[int]) -> str:
    return ".".join(map(str, version))


def claimed() -> list[tuple[int, int]]:
    """Minor versions in the classifiers of pyproject.toml, ascending."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = (re.fullmatch(r"Programming Language :: Python :: (3)\.(\d+)", c) for c in project["classifiers"])
    return sorted((int(one[1]), int(one[2])) for one in found if one)


def choose(installed: dict[Version, str], minors: list[tuple[int, int]], present: Version) -> Choice:
    """The oldest of the oldest minor version and the newest of all, without the one that runs the tests anyway."""
    able = {version: path for version, path in (installed | {present: ""}).items() if version[:2] in minors}
    oldest = min((version for version in able if version[:2] == minors[0]), default=present)
    newest = max(able, default=present)
    absent = [] if oldest[:2] == minors[0] and oldest <= DEBIAN else [name_of(DEBIAN)]
    absent += [] if newest[:2] == minors[-1] else [name_of(minors[-1])]
    found = {version: able[version] for version in (oldest, newest) if version != present}
    return Choice(found, tuple(absent))


def installed() -> dict[Version, str]:
    """Interpreters of the system, of the PATH and of pyenv; of equal ones the first."""
    named = [shutil.which(f"python{name_of(minor)}") for minor in claimed()]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    paths = [
        "/usr/bin/python3",
        *(name for name in named if name),
        *map(str, sorted(pyenv.glob("*/bin/python"))),
    ]
    found: dict[Version, str] = {}
    for path in paths:
        if (version := version_of(path)) is not None:
            found.setdefault(version, path)
    return found


def version_of(path: str) -> Version | None:
    """The version of a released CPython; None for all else, such as a shim of pyenv that leads nowhere."""
    try:
        ran = subprocess.run(
            [path, "-I", "-c", ASKED], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = ran.stdout.split()
    if ran.returncode != 0 or len(words) != 4 or words[3] != "final":
        return None
    return int(words[0]), int(words[1]), int(words[2])


def chosen() -> Choice:
    return choose(installed(), claimed(), sys.version_info[:3])
