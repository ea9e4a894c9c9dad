"""Common part of all commands of `experiments reproduce`: options, progress, files, verdicts and exit codes."""

from __future__ import annotations

import asyncio
import functools
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.status import Status
from rich.text import Text

from experiments.errors import BadInputError
from experiments.terminal import (
    BOUND_MISSED,
    STANDING,
    STOPPED,
    console_here,
    interruptible,
    print_stopped,
    print_verdict,
    require_writable,
    write_json,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = ("seed", "quick", "plots", "file", "check")


@dataclass(frozen=True, slots=True)
class Choices:
    """Options of every command. `plots` is a folder, `file` is for JSON."""

    seed: int = 1
    quick: bool = False
    plots: Path = Path()
    file: Path | None = None
    check: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """A bound as text, and whether it is met; None if it cannot be judged."""

    is_met: bool | None
    words: str


def with_choices(act: Callable[..., int]) -> Callable[..., int]:
    """Add the common options to a command; `act` gets them as one `Choices`, and its own options by name."""

    @click.option(
        "--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Of order, load and faults."
    )
    @click.option("--quick", is_flag=True, help="An impression in under a minute, and for tests.")
    @click.option(
        "--plots",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path(),
        help="The folder for figures, as PNG.  [default: here]",
    )
    @click.option(
        "--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures there."
    )
    @click.option("--check", is_flag=True, help="Exit code 1 when a bound is missed.")
    @functools.wraps(act)
    def chosen(**given: Any) -> int:
        common = {name: given.pop(name) for name in NAMES}
        return act(Choices(**common), **given)

    return chosen


class Session(ABC):
    """Base class of a reproduction: measures, then presents what it has, complete or interrupted."""

    def __init__(self) -> None:
        self.console = console_here()
        self.status = Status("starting", console=self.console, refresh_per_second=2)

    @abstractmethod
    def introduction(self) -> str:
        """Text printed before measuring."""

    @abstractmethod
    async def run_plan(self, seed: int, folder: Path) -> None:
        """Measure, with files in `folder`. Raises `ExperimentError`."""

    @abstractmethod
    def present(self) -> list[Verdict]:
        """Print tables and findings; returns the verdicts."""

    @abstractmethod
    def figures(self) -> Mapping[str, Callable[[], Figure]]:
        """Functions that draw the figures, by file name without suffix."""

    @abstractmethod
    def content(self) -> dict[str, Any]:
        """Results for JSON."""


def run_session(session: Session, choices: Choices) -> int:
    """Measure, present and write; returns the exit code. Raises `ExperimentError`."""
    require_writable("--plots", choices.plots / "any")
    require_writable("--json", choices.file)
    was_stopped = measured(session, choices.seed)
    verdicts = session.present()
    draw(session, choices.plots)
    for verdict in verdicts:
        print_verdict(session.console, verdict.is_met, f"{STANDING[verdict.is_met]}: {verdict.words}")
    if choices.file is not None:
        standing = [{"met": verdict.is_met, "words": verdict.words} for verdict in verdicts]
        write_json("--json", choices.file, session.content() | {"verdicts": standing})
    if was_stopped:
        return STOPPED
    return BOUND_MISSED if choices.check and any(one.is_met is False for one in verdicts) else 0


def measured(session: Session, seed: int) -> bool:
    """Measure; returns whether it was interrupted. Raises `ExperimentError`."""
    session.console.print(Text(session.introduction()))
    with tempfile.TemporaryDirectory(prefix="steelyard-") as name, session.status:
        try:
            asyncio.run(interruptible(session.run_plan(seed, Path(name))))
        except (asyncio.CancelledError, KeyboardInterrupt):
            print_stopped(session.console, "Nothing was left running.")
            return True
    return False


def draw(session: Session, folder: Path) -> None:
    """Write all figures as PNG. Raises `BadInputError` if a file cannot be written."""
    from experiments.report.canvas import to_png  # half a second of imports that `--help` does not need

    for name, make in session.figures().items():
        file = folder / f"{name}.png"
        try:
            file.write_bytes(to_png(make()))
        except OSError as error:
            raise BadInputError(f"--plots: {file}: {error.strerror}") from None
        session.console.print(Text(str(file)))
