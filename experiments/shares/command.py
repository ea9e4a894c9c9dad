"""`experiments shares`: who gets the requests when an endpoint is new, fails fast, is slow, or a region is lost.

Rule of this file: it decides nothing by itself. Options become a plan; one figure and one table come out.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.status import Status
from rich.text import Text

from experiments.bench.command import known_policies, names_in
from experiments.errors import BadInputError
from experiments.shares.runs import (
    NEEDS_A_REGION,
    PLACES,
    QUICK,
    TROUBLES,
    Course,
    Tempo,
    Trouble,
    carry_out,
    policies_known,
)
from experiments.shares.table import Shares, draws_no_traffic, shares_of, table_of
from experiments.terminal import (
    BOUND_MISSED,
    STANDING,
    STOPPED,
    console_here,
    interruptible,
    must_be_writable,
    tell,
    tell_stopped,
    write_json,
)

EPILOG = """\b
Examples:
  experiments shares                                     every policy, about nine minutes, writes shares.png
  experiments shares --policies random,region-aware --plot two.png
  experiments shares --troubles failing,slow --at-once 4
  experiments shares --check                             exit code 1 when who fails fast draws traffic
"""


@click.command(epilog=EPILOG)
@click.option("--policies", default="", metavar="A,B,…", help="Only these.  [default: all]")
@click.option("--troubles", default="", metavar="A,B,…", help="Of cold, failing, slow, lost.  [default: all]")
@click.option(
    "--at-once", type=click.IntRange(1, 16), default=2, show_default=True, help="Runs side by side."
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Of arrivals and demand."
)
@click.option("--quick", is_flag=True, help="A few seconds for each: an impression, and for tests.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("shares.png"),
    show_default=True,
    help="The figure, as PNG.",
)
@click.option(
    "--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write the shares there."
)
@click.option("--check", is_flag=True, help="Exit code 1 when a bound is missed.")
def shares(
    policies: str,
    troubles: str,
    at_once: int,
    seed: int,
    quick: bool,
    plot: Path,
    file: Path | None,
    check: bool,
) -> int:
    """Draw the share of traffic that each endpoint gets over time, for each policy and trouble."""
    chosen = policies_chosen(names_in(policies))
    struck = troubles_chosen(names_in(troubles))
    for option, path in (("--plot", plot), ("--json", file)):
        must_be_writable(option, path)
    sitting = Sitting(chosen, struck, QUICK if quick else Tempo(), console_here())
    was_stopped = sitting.conduct(seed, at_once)
    met = sitting.present(plot)
    if file is not None:
        sitting.write(file)
    if was_stopped:
        return STOPPED
    return BOUND_MISSED if check and False in met else 0


class Sitting:
    """The courses as they come, and what is said of them."""

    def __init__(self, policies: list[str], troubles: list[Trouble], tempo: Tempo, console: Console) -> None:
        self._policies, self._troubles = policies, troubles
        self._tempo, self._console = tempo, console
        self._total = len(policies) * len(troubles)
        self._courses: list[Course] = []

    def conduct(self, seed: int, at_once: int) -> bool:
        """Measure; returns whether it was stopped. Raises ExperimentError."""
        self._console.print(Text(introduction(self._tempo, self._total, at_once)))
        status = Status("sending", console=self._console, refresh_per_second=2)
        with tempfile.TemporaryDirectory(prefix="steelyard-") as name, status:
            folder = Path(name)
            work = carry_out(self._policies, self._troubles, self._tempo, seed, at_once, folder, self._told)
            try:
                asyncio.run(interruptible(work))
            except (asyncio.CancelledError, KeyboardInterrupt):
                tell_stopped(self._console, "Nothing was left running.")
                return True
        return False

    def _told(self, course: Course) -> None:
        self._courses.append(course)
        what = f"INVALID: {course.fault}" if course.fault else "done"
        line = f"[{len(self._courses)}/{self._total}] {course.policy}, {course.trouble.name}: {what}"
        self._console.print(Text(line, style="red" if course.fault else "dim"))

    def present(self, plot: Path) -> list[bool | None]:
        """Figure, table and bounds; returns whether each bound is met, None where it cannot be said."""
        if not self._courses:
            return []
        places = {policy: number for number, policy in enumerate(self._policies)}
        self._courses.sort(key=lambda one: (places[one.policy], self._troubles.index(one.trouble)))
        draw(self._courses, self._tempo, plot)
        self._console.print(table_of(self._shares, [trouble.name for trouble in self._troubles]))
        self._console.print(Text(str(plot)))
        found = draws_no_traffic(self._shares)
        for is_met, words in found:
            tell(self._console, is_met, f"{STANDING[is_met]}: {words}")
        return [is_met for is_met, _ in found]

    @property
    def _shares(self) -> list[Shares]:
        return [shares_of(course, self._tempo) for course in self._courses]

    def write(self, file: Path) -> None:
        """Raises BadInputError when the file cannot be written."""
        found = {"tempo": asdict(self._tempo), "shares": [asdict(one) for one in self._shares]}
        write_json("--json", file, found)


def policies_chosen(names: list[str]) -> list[str]:
    """All of the registry, or those that are named. Raises BadInputError."""
    if not names:
        return list(policies_known())
    known_policies([name for name in names if name != NEEDS_A_REGION] or ["random"])
    return list(dict.fromkeys(names))


def troubles_chosen(names: list[str]) -> list[Trouble]:
    """Raises BadInputError."""
    known = [trouble.name for trouble in TROUBLES]
    for name in names:
        if name not in known:
            raise BadInputError(f"--troubles: unknown '{name}'; known: {', '.join(known)}")
    return [trouble for trouble in TROUBLES if not names or trouble.name in names]


def introduction(tempo: Tempo, total: int, at_once: int) -> str:
    seconds = total * (tempo.over + 4) / at_once
    return (
        f"{len(PLACES)} workers in three regions, {tempo.rate:g} requests per second, open loop, for "
        f"{tempo.over:g} s each; trouble from {tempo.begins:g} s to {tempo.ends:g} s.\n"
        f"{total} runs, {at_once} side by side, about {seconds:.0f} s.\n"
    )


def draw(courses: list[Course], tempo: Tempo, plot: Path) -> None:
    """Raises BadInputError when the file cannot be written."""
    from experiments.report.canvas import to_png  # half a second of imports that `--help` does not need
    from experiments.shares.figure import shares_figure

    try:
        plot.write_bytes(to_png(shares_figure(courses, tempo)))
    except OSError as error:
        raise BadInputError(f"--plot: {plot}: {error.strerror}") from None
