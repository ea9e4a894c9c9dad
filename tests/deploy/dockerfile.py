"""Parse a Dockerfile as the builder does, and run its instructions in a directory that represents the file system.

Only the instructions and forms of this project's Dockerfile are supported; others are rejected.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.deploy.installation import NO_BYTECODE

KNOWN = {"FROM", "ARG", "ENV", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
PLACES = ("/build", "/opt/steelyard")
"""Absolute paths in instructions; each is mapped below the directory that represents the root."""


@dataclass(frozen=True)
class Instruction:
    """One instruction: its name, and the rest of its logical line."""

    name: str
    text: str

    def words(self) -> list[str]:
        """The JSON array of the exec form, otherwise split as by a shell."""
        found = json.loads(self.text) if self.text.startswith("[") else shlex.split(self.text)
        assert isinstance(found, list)
        return [str(word) for word in found]


def instructions(text: str) -> list[Instruction]:
    """All instructions in order, without comments, continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    logical = "\n".join(lines).replace("\\\n", " ").splitlines()
    found = [Instruction(*line.strip().split(None, 1)) for line in logical if line.strip()]
    strange = [i.name for i in found if i.name not in KNOWN]
    assert not strange, f"teach tests/deploy/dockerfile.py what these do: {strange}"
    return found


def stages(text: str) -> list[list[Instruction]]:
    found: list[list[Instruction]] = []
    for instruction in instructions(text):
        if instruction.name == "FROM":
            found.append([])
        found[-1].append(instruction)
    return found


def one(stage: list[Instruction], name: str) -> Instruction:
    (found,) = [i for i in stage if i.name == name]
    return found


def context(root: Path, ignore: str) -> list[Path]:
    """The files that the builder sees, relative to `root`. The last matching pattern decides."""
    patterns = [line.strip() for line in ignore.splitlines() if line.strip() and not line.startswith("#")]
    return [
        path.relative_to(root)
        for top in root.iterdir()
        if not is_ignored(top.relative_to(root), patterns)
        for path in ([top] if top.is_file() else sorted(top.rglob("*")))
        if path.is_file() and not is_ignored(path.relative_to(root), patterns)
    ]


def is_ignored(path: Path, patterns: list[str]) -> bool:
    """Whether `path` or a directory above it is left out."""
    names = [str(path), *(str(parent) for parent in path.parents if parent.name)]
    answer = False
    for pattern in patterns:
        wanted = pattern.removeprefix("!").removeprefix("**/")
        anywhere = "**/" in pattern
        if any(fnmatch.fnmatch(Path(name).name if anywhere else name, wanted) for name in names):
            answer = not pattern.startswith("!")
    return answer


@dataclass
class LocalBuild:
    """Runs the instructions of a stage: `root` represents /, `source` is the build context.

    The image's Python is a virtual environment of the one that runs the tests.
    """

    root: Path
    source: Path
    arguments: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.root.mkdir()
        subprocess.run([sys.executable, "-m", "venv", self.root / "python"], check=True)
        self._at = self.root
        kept = {name: os.environ[name] for name in os.environ if name.lower().endswith(("_proxy", "_cert"))}
        pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        path = f"{self.root / 'python' / 'bin'}:/usr/bin:/bin"
        self.environment = kept | pip | NO_BYTECODE | {"PATH": path, "HOME": str(self.root)}

    def run(self, stage: list[Instruction]) -> None:
        """Run the instructions; the first that fails raises an error with its output."""
        for instruction in stage:
            step = getattr(self, f"_{instruction.name.lower()}", None)
            if step is not None:
                step(instruction)

    def here(self, text: str) -> str:
        """`text` with the image's absolute paths mapped below `root`."""
        for place in PLACES:
            text = re.sub(rf"(?<![\w.-]){place}\b", str(self.root) + place, text)
        return text

    def _arg(self, instruction: Instruction) -> None:
        name, _, default = instruction.text.partition("=")
        self.environment[name] = self.arguments.get(name, default)

    def _env(self, instruction: Instruction) -> None:
        for word in instruction.words():
            name, _, value = word.partition("=")
            self.environment[name] = self.here(value).replace("$PATH", self.environment["PATH"])

    def _workdir(self, instruction: Instruction) -> None:
        self._at = Path(self.here(instruction.text))
        self._at.mkdir(parents=True, exist_ok=True)

    def _copy(self, instruction: Instruction) -> None:
        *sources, target = instruction.words()
        if sources[0].startswith("--from="):
            return  # from another stage: here all share one root
        for source in sources:
            there = self._at / target / ("" if (self.source / source).is_dir() else source)
            if (self.source / source).is_dir():
                shutil.copytree(self.source / source, there, dirs_exist_ok=True)
            else:
                shutil.copy(self.source / source, there)

    def _run(self, instruction: Instruction) -> None:
        ran = subprocess.run(
            ["/bin/sh", "-c", self.here(instruction.text)],
            check=False,
            cwd=self._at,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, f"RUN {instruction.text}\n{ran.stdout}\n{ran.stderr}"
