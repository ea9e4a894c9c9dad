"""Frame of benchmarks and reproductions: measure until the end or an interruption, print, write `--json`, exit code.

However it ends, no process is left running, and what was measured so far is presented.
"""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.status import Status
from rich.table import Table
from rich.text import Text

from experiments.errors import STOPPED
from experiments.platform.build import describe_build, interpreter_in_words, versions
from experiments.platform.terminal import (
    BOUND_MISSED,
    STANDING,
    STYLES,
    clock,
    console_here,
    interruptible,
    print_stopped,
    require_writable,
    signals_interrupt,
    write_json,
)

STOPPED_WORDS = "Nothing was left running; what had been measured is shown above."


@dataclass(frozen=True, slots=True)
class BoundVerdict:
    """Verdict on the `bound` of a `subject`, with the figure in words; `is_met`: None: it cannot be judged."""

    subject: str
    bound: str
    is_met: bool | None
    found: str

    @property
    def word(self) -> str:
        return STANDING[self.is_met]

    def __str__(self) -> str:
        return f"{self.word}: {self.subject}: {self.bound} ({self.found})"


class Session:
    """One session of a command that measures. `file` is for JSON; with `is_checked`, a missed bound is exit code 1."""

    def __init__(self, file: Path | None = None, is_checked: bool = False) -> None:
        """Raises `BadInputError` if `file` cannot be written."""
        require_writable("--json", file)
        self.console = console_here()
        self.was_stopped = False
        self._file, self._is_checked = file, is_checked
        # Redrawn rarely, because drawing uses CPU time that belongs to the measurement.
        self._status = Status("starting", console=self.console, refresh_per_second=2)
        self._began_at = 0.0
        self._done = self._total = 0

    def say(self, text: str, style: str = "") -> None:
        """Print text as it is; nothing if it is empty."""
        if text:
            self.console.print(Text(text, style=style))

    def introduce(self, text: str) -> None:
        """Print what will be measured, followed by the build under test."""
        self.say(f"{text}\nOurs: {describe_build()}.\n")

    def measure(self, work: Callable[[Path], Awaitable[None]], runs: int = 0) -> None:
        """Run `work` with a temporary folder; `runs` is the number of its `run_ended`. Raises `ExperimentError`."""
        with (
            self.interruptible(runs),
            tempfile.TemporaryDirectory(prefix="steelyard-") as folder,
            self._status,
        ):
            asyncio.run(interruptible(work(Path(folder))))

    @contextmanager
    def interruptible(self, runs: int = 0) -> Iterator[None]:
        """Run the body until its end, or until Ctrl-C or SIGTERM, which `was_stopped` then shows."""
        self._total, self._began_at = runs, time.monotonic()
        try:
            with signals_interrupt():
                yield
        except (asyncio.CancelledError, KeyboardInterrupt):
            self.was_stopped = True

    def run_started(self, text: str) -> None:
        """Show on the status line what is measured now."""
        self._status.update(text)

    def run_ended(self, name: str, figures: str, fault: str = "") -> None:
        """Print one line for a run and the time left; an invalid run has its `fault` instead of figures."""
        self._done += 1
        seconds = (time.monotonic() - self._began_at) / self._done * (self._total - self._done)
        progress = f"[{self._done}/{self._total}, left {clock(seconds)}]"
        figures = f"INVALID: {fault}" if fault else figures
        self.say(f"{progress} {name}: {figures}", "red" if fault else "dim")

    def conclude(
        self,
        verdicts: Sequence[BoundVerdict],
        tables: Sequence[RenderableType] = (),
        doubt: str = "",
        **results: Any,
    ) -> int:
        """Print tables, a warning and the verdicts, write `results` as JSON; returns the exit code."""
        for table in tables:
            self.console.print(table)
        self.say(doubt, "yellow")
        if verdicts:
            self.console.print(table_of_verdicts(verdicts))
        if self._file is not None:
            frame = {**circumstances(), "was_stopped": self.was_stopped, "bounds": list(verdicts)}
            write_json(self._file, frame | results)
        if self.was_stopped:
            print_stopped(self.console, STOPPED_WORDS)
            return STOPPED
        is_missed = any(verdict.is_met is False for verdict in verdicts)
        return BOUND_MISSED if self._is_checked and is_missed else 0


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


def table_of_verdicts(verdicts: Iterable[BoundVerdict]) -> Table:
    made = Table("", "expected", "found", "verdict", box=SIMPLE_HEAD, header_style="dim", pad_edge=False)
    for verdict in verdicts:
        word = Text(verdict.word, style=STYLES[verdict.is_met])
        made.add_row(verdict.subject, verdict.bound, verdict.found, word)
    return made
