"""Run a benchmark as a program, and read what it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple


class Measured(NamedTuple):
    """What a benchmark has printed, and its JSON."""

    printed: str
    results: Any


def measured(folder: Path, *words: str, path: str | None = None, patience: float = 110.0) -> Measured:
    """Run `python -m benchmarks` with `--json` added, which must exit with 0; `path` replaces the PATH."""
    file = folder / "results.json"
    command = [sys.executable, "-m", "benchmarks", *words, "--json", str(file)]
    environment = os.environ | ({} if path is None else {"PATH": path})
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=patience, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Measured(done.stdout, json.loads(file.read_text(encoding="utf-8")))
