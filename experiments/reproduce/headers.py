"""`experiments reproduce headers`: cost of removing internal fields, absolute and as a share of a request.

Only runs the measurements and prints two tables, a figure and a verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table
from rich.text import Text

from experiments.build import describe_build
from experiments.cpu_time import is_known_here
from experiments.reproduce.header_sets import INTERNAL, SETS, fields_of
from experiments.reproduce.header_share import Share, Turn, run_plan, shares_of
from experiments.reproduce.removal import Cost, RemovalMethod, costs_of, least_of, turns
from experiments.reproduce.session import Choices, Session, Verdict, run_session, with_choices

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BOUND = 0.0034
"""The source's final share; it began at 1.71 %."""

EPILOG = """\b
Examples:
  experiments reproduce headers                    two minutes, writes headers.png
  experiments reproduce headers --quick --check    half a minute
"""


@click.command(epilog=EPILOG)
@with_choices
def headers(choices: Choices) -> int:
    """Four ways of removing internal fields, and the share of a forwarded request's CPU time that ours takes."""
    return run_session(HeadersReproduction(choices.quick), choices)


class HeadersReproduction(Session):
    """Session: collects the measurements and prints the results."""

    def __init__(self, is_quick: bool) -> None:
        super().__init__()
        self._is_quick = is_quick
        self._ways: list[tuple[RemovalMethod, float]] = []
        self._turns: list[Turn] = []

    def introduction(self) -> str:
        return introduction()

    async def run_plan(self, seed: int, folder: Path) -> None:
        """Time the four ways in this process before other processes start; then two balancers."""
        self._ways += turns(10 if self._is_quick else 200, seed)
        if not is_known_here():
            words = "No share: processor time is read as Linux accounts for it."
            self.console.print(Text(words, style="yellow"))
            return
        self.status.update("asking two units in turns")
        blocks, requests = (6, 400) if self._is_quick else (40, 1600)
        await run_plan(blocks, requests, seed, folder, self._turns.append)

    def present(self) -> list[Verdict]:
        costs, shares = costs_of(self._ways), shares_of(self._turns)
        self.console.print(table_of_ways(costs))
        self.console.print(table_of_shares(shares))
        for one in shares[:1]:
            part = f"{least_of(costs) / one.without:.2%} of the {one.without:.1f} µs of a request"
            self.console.print(
                Text(f"The names make the pass over fields that are new longer by at least {part}.")
            )
        return [Verdict(standing(one, least_of(costs)), sentence(one)) for one in shares]

    def figures(self) -> Mapping[str, Callable[[], Figure]]:
        from experiments.reproduce.keepalive_figure import ways_figure

        return {"headers": partial(ways_figure, costs)} if (costs := costs_of(self._ways)) else {}

    def content(self) -> dict[str, Any]:
        costs = costs_of(self._ways)
        least = least_of(costs)
        return {
            "build": describe_build(),
            "ways": [asdict(one) for one in costs],
            "shares": [asdict(one) | {"met": standing(one, least)} for one in shares_of(self._turns)],
            "turns": [asdict(one) for one in self._turns],
        }


def introduction() -> str:
    sets = [fields_of(text) for text in SETS]
    internal = sum(name in INTERNAL for fields in sets for name, _ in fields)
    total = sum(map(len, sets))
    return (
        f"{len(INTERNAL)} internal names; {len(sets)} heads of {min(map(len, sets))} to {max(map(len, sets))} fields, "
        f"{internal / total:.1%} of them internal.\nOurs: {describe_build()}.\n"
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
    """Whether the bound is met; None unless the whole interval is on one side of it.

    Two balancers differ by a few µs for many reasons. The additional time of the pass over fields for the names,
    `least` µs, is a lower bound for a request with new fields, however noisy the difference of two balancers is.
    (Repeated heads are cached, a worker's like a client's.)
    """
    low, high = share.interval
    if not share.repeats and least > BOUND * share.without:
        return False
    return True if high <= BOUND else False if low > BOUND else None


def sentence(share: Share) -> str:
    return f"{client_of(share)}: internal fields take {share.share:.2%} of a request (bound: {BOUND:.2%})"
