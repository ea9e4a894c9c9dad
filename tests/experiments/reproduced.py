"""Reproductions as programs, in their quick form."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def reproduce(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command and wait for its end."""
    command = [sys.executable, "-m", "experiments", "reproduce", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)


def quick_sitting(name: str, folder: Path) -> Any:
    """What it has written to JSON when it has ended well; figures are in `folder`."""
    file = folder / f"{name}.json"
    done = reproduce(name, "--quick", "--plots", str(folder), "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(file.read_text(encoding="utf-8"))
