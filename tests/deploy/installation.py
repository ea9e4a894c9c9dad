"""Install the package from the tracked files into a new virtual environment, as a user does."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from tests.support.root import ROOT

CONSTRAINTS = ROOT / "constraints.txt"
OURS = ("STEELYARD_", "BALANCER_", "PYTHONPATH", "VIRTUAL_ENV", "CC", "CFLAGS", "PORT")
"""Prefixes of variables that would change a build or a program."""

NO_BYTECODE = {"PIP_NO_COMPILE": "no"}
"""For pip: most modules are never imported. Of an option that begins with `no`, it expects the value without it."""


def clean_environment(**changed: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(OURS)} | changed


def skip_without_index(where: Path) -> None:
    """Skip the test if no packages can be downloaded."""
    asked = f"-m pip download --quiet --no-deps --retries 1 --timeout 10 --dest {where} idna".split()
    if subprocess.run([sys.executable, *asked], capture_output=True, check=False).returncode:
        pytest.skip("no package index can be reached from here")


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def quick_compiler(path: Path, factory: pytest.TempPathFactory) -> str:
    """A compiler that does not optimise, in a fifth of the time; the part `compiled` of the tests does.

    An object is compiled once for all builds of a run of tests: it is known by the arguments without paths, the source,
    and all headers of the directories of `-I`.
    """
    shared = factory.getbasetemp().parent if "PYTEST_XDIST_WORKER" in os.environ else factory.getbasetemp()
    objects = shared / "objects"
    objects.mkdir(exist_ok=True)
    return script(path, QUICK_COMPILER.replace("OBJECTS", str(objects)))


QUICK_COMPILER = r"""
kept= headers= source= object= before=
for word; do
  shift
  case "$word" in
    -O?) continue ;;
    -I*) headers="$headers ${word#-I}/*.h" ;;
    *.c) source=$word ;;
    *) [ "$before" = -o ] && object=$word || kept="$kept $word" ;;
  esac
  before=$word
  set -- "$@" "$word"
done
case " $kept " in *" -c "*) ;; *) exec cc -O0 "$@" ;; esac
found=OBJECTS/$({ echo "$kept"; cat $headers "$source" 2>/dev/null; } | git hash-object --stdin) || exit
if [ ! -e "$found" ]; then
  cc -O0 "$@" || exit
  cp "$object" "$found.$$" && mv "$found.$$" "$found"
else
  cp "$found" "$object"
fi"""


def shorten_hot_path(sources: Path, *modules: str) -> None:
    """Let setup.py in a copy of the sources compile these modules only."""
    path = sources / "setup.py"
    text, times = re.subn(
        r"^HOT = \[.*?^\]", f"HOT = {[*modules]}", path.read_text(encoding="utf-8"), flags=re.M | re.S
    )
    assert times == 1
    path.write_text(text, encoding="utf-8")


def copy_tracked_files(target: Path) -> None:
    """Copy the files that git tracks, with their changes, and nothing that builds or tests left behind."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout
    if not listed:
        pytest.skip("this is not a git checkout")
    for name in listed.rstrip("\0").split("\0"):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)


@dataclass(frozen=True)
class Environment:
    """A virtual environment at `place`, without pip of its own; the pip of the tests installs into it."""

    place: Path

    @classmethod
    def create(cls, place: Path) -> Environment:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
        return cls(place)

    def pip_install(
        self, *words: str, cwd: Path, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run `pip install` with the tested versions; both outputs are in `stdout`."""
        command = [
            *(sys.executable, "-m", "pip", "--python", str(self.place / "bin" / "python"), "install"),
            *("--constraint", str(CONSTRAINTS), *words),
        ]
        return subprocess.run(
            command,
            cwd=cwd,
            env=clean_environment(**NO_BYTECODE, **(variables or {})),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def program(self, name: str) -> str:
        return str(self.place / "bin" / name)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment outside the checkout."""
        return subprocess.run(
            [self.program(words[0]), *words[1:]],
            cwd=self.place,
            env=clean_environment(COLUMNS="80"),
            capture_output=True,
            text=True,
            check=False,
        )

    @cached_property
    def version_line(self) -> str:
        return self.run("balancer", "--version").stdout.strip()

    def packages(self) -> set[str]:
        """Names of all installed packages, as PyPI compares them."""
        code = "import json, importlib.metadata as m; print(json.dumps([d.name for d in m.distributions()]))"
        names: Sequence[str] = json.loads(self.run("python", "-c", code).stdout)
        return {name.lower().replace("_", "-") for name in names}
