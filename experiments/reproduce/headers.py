"""`experiments reproduce headers`: cost of removing internal fields, absolute and as a share of a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from experiments.platform.build import describe_build
from experiments.platform.cpu_time import is_known_here
from experiments.platform.terminal import plain_table
from experiments.reproduce.header_removal import (
    Cost,
    RemovalMethod,
    costs_of,
    least_cost_of_names,
    timed_methods,
)
from experiments.reproduce.header_sets import INTERNAL, SETS, fields_of
from experiments.reproduce.header_share import RequestCost, Share, measure_shares, shares_of
from experiments.reproduce.reproduction import Document, ReportProgress, Reproduction, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BOUND = 0.0034
"""The source's final share; it began at 1.71 %."""


class Headers(Reproduction):
    """Methods of removal timed alone, then two balancers under load."""

    name = "headers"
    document = Document(
        "A good day to trie-hard: saving compute 1% at a time", "Kevin Guthrie, The Cloudflare Blog, 2024"
    )
    summary = "Four ways of removing internal fields, and the share of a forwarded request's CPU time that ours takes."
    duration = "two minutes"

    def __init__(self, is_quick: bool) -> None:
        self._is_quick = is_quick
        self._timed: list[tuple[RemovalMethod, float]] = []
        self._request_costs: list[RequestCost] = []

    def introduction(self) -> str:
        sets = [fields_of(text) for text in SETS]
        internal = sum(name in INTERNAL for fields in sets for name, _ in fields)
        sizes = list(map(len, sets))
        return (
            f"{len(INTERNAL)} internal names; {len(sets)} heads of {min(sizes)} to {max(sizes)} fields, "
            f"{internal / sum(sizes):.1%} of them internal.\nOurs: {describe_build()}.\n"
        )

    async def measure(self, seed: int, folder: Path, progress: ReportProgress) -> None:
        """Time the methods in this process before other processes start; then two balancers."""
        self._timed += timed_methods(10 if self._is_quick else 200, seed)
        if is_known_here():
            progress("loading two balancers in turns")
            blocks, requests = (6, 400) if self._is_quick else (40, 1600)
            await measure_shares(blocks, requests, seed, folder, self._request_costs.append)

    @property
    def _costs(self) -> list[Cost]:
        return costs_of(self._timed)

    @property
    def _shares(self) -> list[Share]:
        return shares_of(self._request_costs)

    def findings(self) -> Sequence[Table | Text | str]:
        costs, shares = self._costs, self._shares
        found: list[Table | Text | str] = [table_of_methods(costs), table_of_shares(shares)]
        if not is_known_here():
            found.append(
                Text("No share: CPU time is read from Linux' accounting, which is not here.", "yellow")
            )
        for one in shares[:1]:
            least = least_cost_of_names(costs) / one.without
            found.append(
                f"The names make the pass over new fields longer by at least {least:.2%} of the {one.without:.1f} µs "
                "of a request."
            )
        return found

    def verdicts(self) -> list[Verdict]:
        least = least_cost_of_names(self._costs)
        return [
            Verdict(
                is_met(one, least),
                f"{client_of(one)}: internal fields take {one.share:.2%} of a request (bound: {BOUND:.2%})",
            )
            for one in self._shares
        ]

    def figure(self) -> Figure | None:
        return methods_figure(costs) if (costs := self._costs) else None

    def content(self) -> dict[str, Any]:
        costs = self._costs
        least = least_cost_of_names(costs)
        return {
            "build": describe_build(),
            "methods": [asdict(one) for one in costs],
            "shares": [asdict(one) | {"is_met": is_met(one, least)} for one in self._shares],
            "measurements": [asdict(one) for one in self._request_costs],
        }


def table_of_methods(costs: Sequence[Cost]) -> Table:
    title = "µs per request: mean [95 % interval]; the source's are of compiled code on another machine"
    rows = [
        (
            one.method,
            "{:.2f} [{:.2f}, {:.2f}]".format(one.micros, *one.interval),
            "–" if one.source is None else f"{one.source:.2f}",
        )
        for one in costs
    ]
    return plain_table(("method", "µs", "source"), rows, title=title)


def table_of_shares(shares: Sequence[Share]) -> Table:
    title = "CPU time of the proxy per forwarded request, without and with the names"
    rows = [
        (
            client_of(one),
            f"{one.without:.1f}",
            f"{one.added:+.2f}",
            "{:.2%} [{:.2%}, {:.2%}]".format(one.share, *one.interval),
            "1.71% → 0.34%",
        )
        for one in shares
    ]
    return plain_table(
        ("client", "without, µs", "added, µs", "share [95 % interval]", "source"), rows, title=title
    )


def client_of(share: Share) -> str:
    return "repeats its fields" if share.repeats else "other fields each time"


def is_met(share: Share, least: float = 0.0) -> bool | None:
    """Whether the bound is met; None unless the whole interval is on one side of it.

    Two balancers differ by a few µs for many reasons. The additional time of the pass over fields for the names,
    `least` µs, is a lower bound for a request with new fields, however noisy the difference of two balancers is.
    (Repeated heads are cached, a worker's like a client's.) Removal cannot save time: an interval below 0 shows
    that the balancers differ in something else, so it is no evidence for the bound.
    """
    low, high = share.interval
    if not share.repeats and least > BOUND * share.without:
        return False
    return True if 0 <= high <= BOUND else False if low > BOUND else None


def methods_figure(costs: Sequence[Cost]) -> Figure:
    """Cost of each method in microseconds."""
    from matplotlib import rc_context

    from experiments.report import canvas
    from experiments.reproduce.charts import GOOD, bar, label_bars

    with rc_context(canvas.STYLE):
        figure, (axes,) = canvas.blank(1.4 + 0.5 * len(costs), 1, 1)
        costs = costs[::-1]
        for at, one in enumerate(costs):
            bar(axes, at, one.micros, f"{one.micros:.2f}", GOOD, 0.6, one.interval, one.source)
        label = "µs per request: mean and its 95 % interval; stroke: the source's, of compiled code"
        label_bars(axes, [one.method for one in costs], label)
        axes.set_title("Cost of removing internal fields", fontweight="bold")
        return figure
