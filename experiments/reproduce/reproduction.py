"""Frame of all reproductions: what one consists of, and how it is run, printed and written to files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import matplotlib as mpl
from matplotlib.figure import Figure
from rich.table import Table
from rich.text import Text

from experiments.errors import BadInputError
from experiments.platform.session import BoundVerdict, Session
from experiments.platform.terminal import make_directory
from experiments.report.canvas import STYLE, to_png

ReportProgress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Publication:
    """The published document that a reproduction repeats. `publisher` also has authors and year, where known."""

    title: str
    publisher: str
    link: str = ""


class Reproduction(ABC):
    """One reproduction. It presents what has been measured, complete or interrupted.

    `summary` is the text of `--help`, `duration` how long it takes without `--quick`.
    """

    name: ClassVar[str]
    document: ClassVar[Publication]
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
        """Tables and statements, in order; empty if nothing was measured, and then there is no figure."""

    @abstractmethod
    def verdicts(self) -> list[BoundVerdict]:
        """Verdicts on the bounds that were measured."""

    @abstractmethod
    def figure(self) -> Figure:
        """The figure, with the source's values. Called with `STYLE` in effect."""

    @abstractmethod
    def content(self) -> dict[str, Any]:
        """Results for JSON."""


def run_reproduction(
    kind: type[Reproduction],
    seed: int = 1,
    quick: bool = False,
    plots: Path = Path(),
    file: Path | None = None,
    check: bool = False,
) -> int:
    """Measure, print, draw in the folder `plots`, write JSON to `file`; returns the exit code.

    Raises `ExperimentError`.
    """
    make_directory("--plots", plots)
    session, reproduction = Session(file, check), kind(quick)
    session.say(reproduction.introduction())
    session.measure(lambda folder: reproduction.measure(seed, folder, session.run_started))
    found = [Text(part) if isinstance(part, str) else part for part in reproduction.findings()]
    if found:
        found.append(Text(str(drawn(reproduction, plots))))
    about: dict[str, Any] = {"name": reproduction.name, "document": reproduction.document}
    return session.conclude(reproduction.verdicts(), found, **about, **reproduction.content())


def drawn(reproduction: Reproduction, folder: Path) -> Path:
    """Write the figure as PNG. Raises `BadInputError` if the file cannot be written."""
    file = folder / f"{reproduction.name}.png"
    with mpl.rc_context(STYLE):
        figure = reproduction.figure()
    try:
        file.write_bytes(to_png(figure))
    except OSError as error:
        raise BadInputError(f"--plots: {file}: {error.strerror}") from None
    return file
