"""`experiments reproduce third-party`: effect of newer protocols, background DNS and heartbeats on tail latency."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.table import Table

from balancer.syntax.printable import with_digits
from experiments.platform.session import BoundVerdict
from experiments.platform.terminal import plain_table
from experiments.report import canvas
from experiments.reproduce.charts import SOURCE_MARK, draw_percentiles, label_percentiles, nines
from experiments.reproduce.reproduction import Publication, ReportProgress, Reproduction, failures_verdict
from experiments.reproduce.third_party_runs import (
    HEARTBEATS_B,
    HEARTBEATS_FAR,
    KEEP_ALIVE,
    LOOKUP,
    MODES,
    NEW_A,
    OLD_A,
    PLAIN_B,
    PLAIN_FAR,
    QUICK,
    ROUND_TRIP,
    ROUTE_FACTOR,
    SOURCE_HEARTBEAT,
    ModeResult,
    Results,
    RouteChange,
    ThirdPartyPlan,
    measure,
)

FEWER_CONNECTIONS, LESS_CONNECTING = 0.90, 0.50
P50_RATIO, P99_RATIO = 150 / 400, 300 / 600
MOST_COLD = 0.01
REPORTED_WITHIN = 60.0


COLOURS = ("#D55E00", "#E69F00", "#0072B2", "#009E73")
TITLES = {"A": "A: bursts", "B": "B: little traffic, 4 s of keep-alive", "far": "90 ms away, a call in 4 s"}
RANKS = (0.0, 50.0, 90.0, 99.0, 99.9)
SOURCE = {PLAIN_B: {50.0: 400.0, 99.0: 600.0}, HEARTBEATS_B: {50.0: 150.0, 99.0: 300.0}}
"""The source's p50 and p99 in ms; a lower bound for the first, an upper bound for the second."""

SOURCE_P95_RATIO = 0.90
SOURCE_LABELS = {"A": "source: p95 −10 %", "B": "source: p50 and p99"}
"""The source's p95 of A as a multiple of that before; labels of the marks by group."""

COLUMNS: dict[str, Callable[[ModeResult], object]] = {
    "": lambda one: one.mode.group,
    "mode": lambda one: one.mode.name,
    "calls": lambda one: len(one.calls.answers),
    "failed": lambda one: one.calls.failed,
    "p50": lambda one: f"{one.calls.latency().p50:.0f}",
    "p95": lambda one: f"{one.calls.latency().p95:.0f}",
    "p99": lambda one: f"{one.calls.latency().p99:.0f}",
    "opened": lambda one: one.calls.connections["opened"],
    "cold": lambda one: f"{one.cold_share:.1%}",
    "connecting": lambda one: f"{1e3 * one.connecting:.1f}",
    "heartbeats": lambda one: one.calls.connections["heartbeats"],
}
"""Columns of the table of modes."""


class ThirdParty(Reproduction):
    """All modes of calling third parties, and a route that becomes longer."""

    name = "third-party"
    document = Publication(
        "Enhancing P99 Latency: Strategies for Doubling/Tripling Performance in Third-Party APIs",
        "Cristian Velazquez, Uber, P99 CONF 2024",
    )
    summary = (
        "Calls to providers: HTTP/2 and TLS 1.3, names in the background, heartbeats, and a watched route."
    )
    duration = "three minutes"

    def __init__(self, is_quick: bool) -> None:
        self._plan = QUICK if is_quick else ThirdPartyPlan()
        self._results: Results = {}
        self._route_change: RouteChange | None = None

    def introduction(self) -> str:
        plan = self._plan
        return (
            f"Providers {1e3 * ROUND_TRIP:g} ms away; A is called in bursts, B by {plan.instances} instances of an "
            f"application, each once in {plan.rests['B']:g} s.\nB closes idle connections after {KEEP_ALIVE:g} s, has "
            f"TLS 1.2 and HTTP/1.1 only, and its name takes {1e3 * LOOKUP:g} ms to look up.\nModes of a group run at "
            f"the same time for {plan.seconds:g} s, none of it compressed; no session is resumed.\n"
        )

    async def measure(self, seed: int, folder: Path, progress: ReportProgress) -> None:
        self._route_change = await measure(self._plan, seed, folder, progress, self._results)

    @property
    def _in_order(self) -> list[ModeResult]:
        """Results in the order of the modes; they are measured in another."""
        return [self._results[mode] for mode in MODES if mode in self._results]

    def findings(self) -> Iterator[Table | str]:
        if not self._results:
            return
        rows = [[str(cell(one)) for cell in COLUMNS.values()] for one in self._in_order]
        title = "ms; connecting: TCP and TLS, of each call on average"
        yield plain_table([*COLUMNS], rows, left=("mode",), title=title)
        results, route = self._results, self._route_change
        if {OLD_A, NEW_A} <= results.keys():
            calls = [results[mode].calls for mode in (OLD_A, NEW_A)]
            each = [1e3 * one.connections["handshakes"] / max(1, one.connections["opened"]) for one in calls]
            ratio = calls[1].latency().p95 / calls[0].latency().p95 - 1
            yield (
                f"A: one connection takes {each[0]:.0f} ms with TLS 1.2 and {each[1]:.0f} ms with 1.3: three round "
                f"trips and two, TCP's included. p95 {ratio:+.0%} (source: −10 %)."
            )
        if beats := results.get(HEARTBEATS_B):
            number = beats.calls.connections["heartbeats"]
            yield (
                f"B: {number} heartbeats, {number / max(1, len(beats.calls.answers)):.1f} for each call, on "
                f"{beats.mode.preconnect} connections each. One every {SOURCE_HEARTBEAT:g} s, as in the source, would "
                f"be {beats.rest / SOURCE_HEARTBEAT:.1f} for each call."
            )
        if route and route.reported_after is not None:
            yield f"The longer route was reported after {route.reported_after:.0f} s: {route.text}."

    def verdicts(self) -> Iterator[BoundVerdict]:
        results, route = self._results, self._route_change
        if {OLD_A, NEW_A} <= results.keys():
            old, new = results[OLD_A], results[NEW_A]
            opened = [one.calls.connections["opened"] for one in (old, new)]
            fewer = 1 - opened[1] / max(1, opened[0])
            less = 1 - new.connecting / old.connecting if old.connecting else 0.0
            for name, bound, share, least, word in (
                ("connections opened", "90 % fewer", fewer, FEWER_CONNECTIONS, "fewer"),
                ("connecting, of each call", "50 % less", less, LESS_CONNECTING, "less"),
            ):
                yield BoundVerdict(f"A: {name}", bound, share >= least, f"{share:.1%} {word}")
        if {PLAIN_B, HEARTBEATS_B} <= results.keys():
            before, after = (results[mode].calls.latency() for mode in (PLAIN_B, HEARTBEATS_B))
            for name, old_ms, new_ms, ratio, source in (
                ("p50", before.p50, after.p50, P50_RATIO, "400 → 150"),
                ("p99", before.p99, after.p99, P99_RATIO, "> 600 → 250–300"),
            ):
                expected = f"≤ {with_digits(ratio, 3)} × (source: {source})"
                shown = f"{old_ms:.0f} → {new_ms:.0f} ms, {new_ms / old_ms:.2f} ×"
                yield BoundVerdict(f"B: {name}", expected, new_ms <= ratio * old_ms, shown)
        if {PLAIN_FAR, HEARTBEATS_FAR} <= results.keys():
            cold, warm = results[PLAIN_FAR], results[HEARTBEATS_FAR]
            calls = len(warm.calls.answers)
            where, shown = f"90 ms away, a call in {warm.rest:g} s", f"{warm.cold_share:.2%} of {calls}"
            expected = f"cold < {MOST_COLD:.0%}; {cold.cold_share:.0%} without preconnects"
            yield BoundVerdict(where, expected, warm.cold_share < MOST_COLD, shown)
            yield failures_verdict("90 ms away", warm.calls.failed, calls)
        if route:
            after_s = route.reported_after
            when = "never" if after_s is None else f"after {after_s:.0f} s"
            is_met = after_s is not None and after_s <= REPORTED_WITHIN
            expected = f"reported within {REPORTED_WITHIN:g} s"
            yield BoundVerdict(f"a route {ROUTE_FACTOR} times as long", expected, is_met, when)

    def figure(self) -> Figure:
        """Latency percentiles in milliseconds, a panel for each group that was measured."""
        results = self._in_order
        groups = {
            group: own for group in TITLES if (own := [one for one in results if one.mode.group == group])
        }
        figure, panels = canvas.blank(4.4, 1, len(groups))
        for axes, (group, own) in zip(panels, groups.items(), strict=True):
            axes.set_title(TITLES[group], fontweight="bold")
            colours = COLOURS if len(own) > 2 else COLOURS[::2]
            for one, colour in zip(own, colours, strict=False):
                draw_percentiles(axes, [answer.took for answer in one.calls.answers], colour, one.mode.name)
                source = SOURCE.get(one.mode, {})
                if one.mode is NEW_A and OLD_A in self._results:
                    source = {95.0: SOURCE_P95_RATIO * self._results[OLD_A].calls.latency().p95}
                circles: Any = SOURCE_MARK | {"markeredgecolor": colour}
                axes.plot(nines(list(source)), list(source.values()), **circles)
            if label := SOURCE_LABELS.get(group):
                axes.plot([], [], **SOURCE_MARK, label=label)
            label_percentiles(axes, RANKS)
            axes.set_ylim(0, 1.35 * axes.get_ylim()[1])  # room for the legend
            axes.legend(fontsize=8, loc="upper left")
        panels[0].set_ylabel("ms")
        return figure

    def content(self) -> dict[str, Any]:
        return {
            "plan": self._plan,
            "modes": [
                {
                    "group": one.mode.group,
                    "mode": one.mode.name,
                    "calls": len(one.calls.answers),
                    "failed": one.calls.failed,
                    "seconds": one.calls.span,
                    "connections": one.calls.connections,
                    "cold_share": one.cold_share,
                    "latency": one.calls.latency(),
                }
                for one in self._in_order
            ],
            "route_change": self._route_change,
        }
