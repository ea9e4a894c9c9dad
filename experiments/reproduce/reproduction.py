"""Frame of all reproductions: what one consists of, and how it is run, printed and written to files."""

from __future__ import annotations

import asyncio
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from matplotlib.figure import Figure
from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from experiments.errors import BadInputError
from experiments.platform.terminal import (
    BOUND_MISSED,
    STANDING,
    STOPPED,
    console_here,
    interruptible,
    make_directory,
    print_stopped,
    print_verdict,
    require_writable,
    write_json,
)

ReportProgress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Document:
    """The published document that a reproduction repeats. `publisher` also has authors and year, where known."""

    title: str
    publisher: str
    link: str = ""


@dataclass(frozen=True, slots=True)
class BoundVerdict:
    """A bound as text, and whether it is met; None if it cannot be judged."""

    is_met: bool | None
    text: str


@dataclass(frozen=True, slots=True)
class Options:
    """Options of every reproduction. `plots` is a folder, `file` is for JSON."""

    seed: int = 1
    quick: bool = False
    plots: Path = Path()
    file: Path | None = None
    check: bool = False


class Reproduction(ABC):
    """One reproduction. It presents what has been measured, complete or interrupted.

    `summary` is the text of `--help`, `duration` how long it takes without `--quick`.
    """

    name: ClassVar[str]
    document: ClassVar[Document]
    summary: ClassVar[str]
    duration: ClassVar[str]

    @abstractmethod
    def __init__(self, is_quick: bool) -> None: ...

    @abstractmethod
    def introduction(self) -> str:
        """What is measured, printed before it begins."""

    @abstractmethod
    async def measure(self, seed: int, folder: Path, progress: ReportProgress) -> None:
        """Run all cases, with files in `folder`. Raises `ExperimentError`."""

    @abstractmethod
    def findings(self) -> Sequence[Table | Text | str]:
        """Tables and statements, in order; empty if nothing was measured."""

    @abstractmethod
    def verdicts(self) -> list[BoundVerdict]:
        """Verdicts on the bounds that were measured."""

    @abstractmethod
    def figure(self) -> Figure | None:
        """The figure, or None if nothing was measured."""

    @abstractmethod
    def content(self) -> dict[str, Any]:
        """Results for JSON."""


def run_reproduction(kind: type[Reproduction], options: Options) -> int:
    """Measure, print and write files; returns the exit code. Raises `ExperimentError`."""
    make_directory("--plots", options.plots)
    require_writable("--json", options.file)
    console, reproduction = console_here(), kind(options.quick)
    was_stopped = measured(reproduction, options.seed, console)
    for part in reproduction.findings():
        console.print(Text(part) if isinstance(part, str) else part)
    draw(reproduction, options.plots, console)
    verdicts = reproduction.verdicts()
    for verdict in verdicts:
        print_verdict(console, verdict.is_met, f"{STANDING[verdict.is_met]}: {verdict.text}")
    if options.file is not None:
        about = {"name": reproduction.name, "document": asdict(reproduction.document)}
        stated = [{"is_met": verdict.is_met, "text": verdict.text} for verdict in verdicts]
        write_json("--json", options.file, about | reproduction.content() | {"verdicts": stated})
    if was_stopped:
        return STOPPED
    return BOUND_MISSED if options.check and any(one.is_met is False for one in verdicts) else 0


def measured(reproduction: Reproduction, seed: int, console: Console) -> bool:
    """Measure; returns whether it was interrupted. Raises `ExperimentError`."""
    console.print(Text(reproduction.introduction()))
    status = Status("starting", console=console, refresh_per_second=2)
    with tempfile.TemporaryDirectory(prefix="steelyard-") as name, status:
        try:
            asyncio.run(interruptible(reproduction.measure(seed, Path(name), status.update)))
        except (asyncio.CancelledError, KeyboardInterrupt):
            print_stopped(console, "Nothing was left running.")
            return True
    return False


def draw(reproduction: Reproduction, folder: Path, console: Console) -> None:
    """Write the figure as PNG. Raises `BadInputError` if the file cannot be written."""
    from experiments.report.canvas import to_png  # half a second of imports that `--help` does not need

    if (figure := reproduction.figure()) is None:
        return
    file = folder / f"{reproduction.name}.png"
    try:
        file.write_bytes(to_png(figure))
    except OSError as error:
        raise BadInputError(f"--plots: {file}: {error.strerror}") from None
    console.print(Text(str(file)))
