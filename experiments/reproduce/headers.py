"""`experiments reproduce headers`: what it takes to remove internal fields, and which part of a request that is.

Rule of this file: it decides nothing by itself. Turns become two tables, a figure and a verdict.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from experiments.bench.build import unit_in_words
from experiments.bench.cpu_time import is_known_here
from experiments.errors import BadInputError
from experiments.reproduce.header_sets import INTERNAL, SETS, fields_of
from experiments.reproduce.header_share import Share, Turn, carry_out, shares_of
from experiments.reproduce.removal import Cost, Way, costs_of, least_of, turns
from experiments.terminal import (
    BOUND_MISSED,
    STANDING,
    STOPPED,
    console_here,
    interruptible,
    must_be_writable,
    tell,
    write_json,
)

BOUND = 0.0034
"""The source's share in the end; it began at 1.71 %."""

EPILOG = """\b
Examples:
  experiments reproduce headers                    two minutes, writes headers.png
  experiments reproduce headers --quick --check    half a minute
"""


@click.command(epilog=EPILOG)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Of the order.")
@click.option("--quick", is_flag=True, help="Few turns: an impression, and for tests.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("headers.png"),
    show_default=True,
    help="The figure, as PNG.",
)
@click.option(
    "--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures there."
)
@click.option("--check", is_flag=True, help="Exit code 1 when the bound is missed.")
def headers(seed: int, quick: bool, plot: Path, file: Path | None, check: bool) -> int:
    """Four ways of removing internal fields, and the share of a forwarded request that ours takes."""
    for option, path in (("--plot", plot), ("--json", file)):
        must_be_writable(option, path)
    sitting = Sitting(console_here())
    sitting.compare_ways(10 if quick else 200, seed)
    was_stopped = sitting.measure_share(6 if quick else 40, 400 if quick else 1600, seed)
    met = sitting.present(plot)
    if file is not None:
        sitting.write(file)
    if was_stopped:
        return STOPPED
    return BOUND_MISSED if check and False in met else 0


class Sitting:
    """What has been measured, and what is said of it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._ways: list[tuple[Way, float]] = []
        self._turns: list[Turn] = []

    def compare_ways(self, count: int, seed: int) -> None:
        """The four ways, in this process."""
        self._console.print(Text(introduction()))
        for found in turns(count, seed):
            self._ways.append(found)

    def measure_share(self, blocks: int, requests: int, seed: int) -> bool:
        """Two units; returns whether it was stopped. Raises ExperimentError."""
        if not is_known_here():
            self._console.print("[yellow]No share: processor time is read as Linux accounts for it.[/]")
            return False
        status = Status("asking two units in turns", console=self._console, refresh_per_second=2)
        with tempfile.TemporaryDirectory(prefix="steelyard-") as name, status:
            try:
                work = carry_out(blocks, requests, seed, Path(name), self._turns.append)
                asyncio.run(interruptible(work))
            except (asyncio.CancelledError, KeyboardInterrupt):
                self._console.print("[yellow]Stopped.[/] Nothing was left running.")
                return True
        return False

    def present(self, plot: Path) -> list[bool | None]:
        """Tables, figure and verdict; returns whether the bound is met."""
        costs, shares = costs_of(self._ways), shares_of(self._turns)
        self._console.print(table_of_ways(costs))
        self._console.print(table_of_shares(shares))
        draw(costs, plot)
        self._console.print(Text(str(plot)))
        for one in shares[:1]:
            part = f"{least_of(costs) / one.without:.2%} of the {one.without:.1f} µs of a request"
            self._console.print(
                Text(f"The names make the pass over fields that are new longer by at least {part}.")
            )
        met = [standing(one, least_of(costs)) for one in shares]
        for one, is_met in zip(shares, met, strict=True):
            tell(self._console, is_met, f"{STANDING[is_met]}: {sentence(one)}")
        return list(met)

    def write(self, file: Path) -> None:
        """Raises BadInputError when the file cannot be written."""
        least = least_of(costs_of(self._ways))
        found = {
            "build": unit_in_words(),
            "ways": [asdict(one) for one in costs_of(self._ways)],
            "shares": [asdict(one) | {"met": standing(one, least)} for one in shares_of(self._turns)],
            "turns": [asdict(one) for one in self._turns],
        }
        write_json("--json", file, found)


def introduction() -> str:
    sets = [fields_of(text) for text in SETS]
    internal = sum(name in INTERNAL for fields in sets for name, _ in fields)
    total = sum(map(len, sets))
    return (
        f"{len(INTERNAL)} internal names; {len(sets)} heads of {min(map(len, sets))} to {max(map(len, sets))} fields, "
        f"{internal / total:.1%} of them internal.\nOurs: {unit_in_words()}.\n"
    )


def table_of_ways(costs: list[Cost]) -> Table:
    table = Table(
        title="µs per request: median [95 % interval]; the source's are of compiled code on another machine"
    )
    for name in ("way", "µs", "source"):
        table.add_column(name, justify="left" if name == "way" else "right", no_wrap=True)
    for one in costs:
        low, high = one.interval
        theirs = "–" if one.theirs is None else f"{one.theirs:.2f}"
        table.add_row(one.way, f"{one.micros:.2f} [{low:.2f}, {high:.2f}]", theirs)
    return table


def table_of_shares(shares: list[Share]) -> Table:
    table = Table(title="processor time of the unit per forwarded request, without and with the names")
    for name in ("client", "without, µs", "added, µs", "share [95 % interval]", "source"):
        table.add_column(name, justify="left" if name == "client" else "right", no_wrap=True)
    for one in shares:
        low, high = one.interval
        share = f"{one.share:.2%} [{low:.2%}, {high:.2%}]"
        table.add_row(client_of(one), f"{one.without:.1f}", f"{one.added:+.2f}", share, "1.71% → 0.34%")
    return table


def client_of(share: Share) -> str:
    return "repeats its fields" if share.repeats else "other fields each time"


def standing(share: Share, least: float = 0.0) -> bool | None:
    """Met or missed where all of the interval is on one side of the bound; else it cannot be said.

    Two units differ by a few µs for many reasons. What the pass over its fields takes longer for the names, `least` µs,
    is a part of a request whose fields are new, whatever the difference of two units is lost in. (What repeats is
    remembered, a worker's head like a client's.)
    """
    low, high = share.interval
    if not share.repeats and least > BOUND * share.without:
        return False
    return True if high <= BOUND else False if low > BOUND else None


def sentence(share: Share) -> str:
    return f"{client_of(share)}: internal fields take {share.share:.2%} of a request (bound: {BOUND:.2%})"


def draw(costs: list[Cost], plot: Path) -> None:
    """Raises BadInputError when the file cannot be written."""
    from experiments.report.canvas import to_png  # half a second of imports that `--help` does not need
    from experiments.reproduce.figure import ways_figure

    try:
        plot.write_bytes(to_png(ways_figure(costs)))
    except OSError as error:
        raise BadInputError(f"--plot: {plot}: {error.strerror}") from None
