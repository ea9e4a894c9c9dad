"""Frame of all reproductions: what one consists of, how it is run, printed and written to files, and how its bounds are
judged: by the side of a bound on which the interval of a figure is.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from experiments.stats.comparison import Interval, typical

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
    def findings(self) -> Iterator[Table | Text | str]:
        """Tables and statements, in order; none if nothing was measured, and then there is no figure."""

    @abstractmethod
    def verdicts(self) -> Iterator[BoundVerdict]:
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
    """Measure, print, draw into `plots`, write JSON to `file`; returns the exit code. Raises `ExperimentError`."""
    make_directory("--plots", plots)
    session, reproduction = Session(file, check), kind(quick)
    session.say(reproduction.introduction())
    session.measure(lambda folder: reproduction.measure(seed, folder, session.run_started))
    found = [Text(part) if isinstance(part, str) else part for part in reproduction.findings()]
    if found:
        found.append(Text(str(drawn(reproduction, plots))))
    about: dict[str, Any] = {"name": reproduction.name, "document": reproduction.document}
    return session.conclude([*reproduction.verdicts()], found, **about, **reproduction.content())


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


Form = Callable[[float], str]
"""Format of a figure as text."""


def judged(
    found: Interval, least: float = -math.inf, most: float = math.inf, is_busy: bool = False
) -> bool | None:
    """Whether a figure is between `least` and `most`: None unless its whole interval is, or none of it.

    Other load on a busy machine only adds time, so a missed bound of time is not judged there.
    """
    if least < found.low and found.high < most:
        return True
    is_outside = found.high < least or found.low > most
    return False if is_outside and not is_busy else None


def all_met(parts: Iterable[bool | None]) -> bool | None:
    """Verdict on a bound of several figures: False if one misses it, None if one is not judged."""
    found = set(parts)
    return False if False in found else None if None in found else True


def ratio_of(above: Sequence[float], below: Sequence[float]) -> Interval:
    """Ratio of two figures, paired by block or seed, as far as both were measured."""
    return typical([one / other for one, other in zip(above, below, strict=False)])


def written(found: Interval, form: Form) -> str:
    """Mean and interval as text; without an interval the mean alone."""
    if math.isnan(found.low):
        return form(found.ratio)
    return f"{form(found.ratio)} [{form(found.low)}, {form(found.high)}]"


def figure_verdict(
    subject: str,
    bound: str,
    found: Interval,
    shown: Form | str,
    least: float = -math.inf,
    most: float = math.inf,
) -> BoundVerdict:
    """Verdict on one figure; `shown` is its format or its text."""
    text = shown if isinstance(shown, str) else written(found, shown)
    return BoundVerdict(subject, bound, judged(found, least, most), text)


def failures_verdict(subject: str, failed: int, calls: int) -> BoundVerdict:
    return BoundVerdict(subject, "none fails", failed == 0, f"{failed} of {calls}")
