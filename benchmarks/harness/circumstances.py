"""Circumstances of a measurement, for its JSON file: time, machine, build, versions of packages and programs."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from datetime import UTC, datetime
from typing import Any

from experiments.platform.build import describe_build, interpreter_in_words
from experiments.platform.versions import versions

PROGRAMS = {"nginx": "-v", "haproxy": "-v", "envoy": "--version", "wrk": "-v", "openssl": "version"}
"""Programs that take part in measurements, with the argument that prints their version."""


def circumstances() -> dict[str, Any]:
    """Values that every JSON file of a benchmark begins with."""
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} processors, {platform.system()} {platform.release()} {platform.machine()}",
        "interpreter": interpreter_in_words(),
        "build": describe_build(),
        "versions": versions() | {name: version_of(name) for name in PROGRAMS if shutil.which(name)},
    }


def version_of(program: str) -> str:
    """First string in the program's version output that looks like a version."""
    argv = [program, PROGRAMS[program]]
    output = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=10)
    number = re.search(r"\d+\.\d+(\.\d+)?", output.stdout + output.stderr)
    return number[0] if number else "unknown"
