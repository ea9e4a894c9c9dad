"""A reproduction run as a program with `--quick`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def quick_run(name: str, folder: Path) -> Any:
    """Content of its JSON file, after a run without failure that has also drawn its figure."""
    file = folder / f"{name}.json"
    command = [sys.executable, "-m", "experiments", "reproduce", name, "--quick"]
    command += ["--plots", str(folder), "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    return json.loads(file.read_text(encoding="utf-8"))
