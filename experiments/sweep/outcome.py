"""Outcome of a cell: the numbers of its run, or the reason of its failure.

Runs on a worker and never raises for an error of the simulation; a failed cell is an outcome too. Latency is
deadline-mapped (a failure counts as slow as the deadline); columns `ok_…` hold that of successes alone.

The code version of a result is a digest of the source files of the rooms that a simulation imports. A changed page or
table therefore keeps all results, and a changed policy or mechanism invalidates every cell.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np

from experiments.platform.json_values import finite
from experiments.run_data import Floats, Run, write_run
from experiments.scenario.scenario import Scenario
from experiments.simulator.run import Simulate
from experiments.stats import measures
from experiments.sweep.cells import Cell
from policies import registry

Number = float | int | str | bytes | None

PERCENTS = {"p50": 50.0, "p75": 75.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p999": 99.9, "max": 100.0}


@dataclass(frozen=True, slots=True)
class CellOutcome:
    """Result of one cell: `numbers` by column, or why it failed (`message`); computing time in `seconds`."""

    numbers: dict[str, Number]
    message: str | None
    seconds: float
    host: str
    samples: bytes | None = None


def compute(cell: Cell, simulate: Simulate, keep_samples: bool) -> CellOutcome:
    """Run the cell; any exception becomes the outcome's message."""
    host = platform.node()
    began = time.perf_counter()
    try:
        here = version_of(simulate)
        if here != cell.code:  # after an edit, or on another machine
            raise RuntimeError(f"this worker runs other code ({here}, not {cell.code}): restart it with ours")
        registry.LIBRARY.give(cell.files)
        began = time.perf_counter()
        run = simulate(cell.scenario, cell.entry, 0, 0, cell.seed)
        numbers, buffer = numbers_of(run, cell.scenario), io.BytesIO()
        if keep_samples:
            write_run(run, buffer)
    except Exception as fault:
        return CellOutcome({}, one_line(fault), time.perf_counter() - began, host)
    return CellOutcome(numbers, None, time.perf_counter() - began, host, buffer.getvalue() or None)


def one_line(fault: BaseException) -> str:
    return " ".join(f"{type(fault).__name__}: {fault}".split()).removesuffix(":")


def numbers_of(run: Run, scenario: Scenario) -> dict[str, Number]:
    """Numbers that the catalogue stores of a run, by column name."""
    mapped = measures.deadline_mapped(run)
    successes = measures.success_latency([run])
    return {
        "requests": run.samples.requests,
        "ok": len(successes),
        "failures": text(measures.errors_by_kind([run])),
        "invalid": text(list(run.facts.invalid_reasons)),
        **latency(mapped, ""),
        **latency(successes, "ok_"),
        "throughput": finite(measures.throughput([run])),
        "goodput": finite(measures.goodput([run], scenario.measured_slo)),
        "shares": text(measures.share_per_worker([run])),
    }


def latency(seconds: Floats, prefix: str) -> dict[str, Number]:
    """Mean and percentiles; None where there are no samples."""
    mean = float(np.mean(seconds)) if len(seconds) else math.nan
    found = {name: measures.percentile(seconds, percent) for name, percent in PERCENTS.items()}
    return {f"{prefix}{name}": finite(value) for name, value in {"mean": mean, **found}.items()}


def text(value: object) -> str:
    """JSON with sorted keys, equal for equal content."""
    return json.dumps(value, sort_keys=True)


ROOT = Path(registry.__file__).parents[1]
ROOMS = (
    *("policies", "workers"),
    *(f"balancer/{room}" for room in ("cluster", "config", "syntax", "upstream")),
    *(
        f"experiments/{room}"
        for room in (
            "generator",
            "inference",
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
