"""`experiments reproduce third-party`: effect of newer protocols, background DNS and heartbeats on tail latency."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from balancer.syntax.printable import with_digits
from experiments.platform.session import BoundVerdict
from experiments.platform.terminal import plain_table
from experiments.report import canvas
from experiments.report.canvas import STYLE
from experiments.reproduce.charts import SOURCE_MARK, draw_percentiles, label_percentiles, nines
from experiments.reproduce.client import failures
from experiments.reproduce.judging import failures_verdict
from experiments.reproduce.reproduction import Publication, ReportProgress, Reproduction
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
    RouteChange,
    ThirdPartyPlan,
    measure,
    result_of,
)

FEWER_CONNECTIONS, LESS_CONNECTING = 0.90, 0.50
P50_RATIO, P99_RATIO = 150 / 400, 300 / 600
MOST_COLD = 0.01
REPORTED_WITHIN = 60.0


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
        self._results: list[ModeResult] = []
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

    def findings(self) -> Sequence[Table | str]:
        if not self._results:
            return ()
        return [table_of(self._results), *statements(self._results, self._route_change)]

    def verdicts(self) -> list[BoundVerdict]:
        return list(verdicts(self._results, self._route_change))

    def figure(self) -> Figure:
        return third_party_figure(self._results)

    def content(self) -> dict[str, Any]:
        return {
            "plan": self._plan,
            "modes": [
                {
                    "group": one.mode.group,
                    "mode": one.mode.name,
                    "calls": len(one.answers),
                    "failed": failures(one.answers),
                    "seconds": one.seconds,
                    "connections": one.connections,
                    "cold_share": one.cold_share,
                    "latency": one.latency,
                }
                for one in in_order(self._results)
            ],
            "route_change": self._route_change,
        }


def in_order(results: Sequence[ModeResult]) -> list[ModeResult]:
    """Results in the order of the modes; they are measured in another."""
    return sorted(results, key=lambda one: MODES.index(one.mode))


def table_of(results: Sequence[ModeResult]) -> Table:
    """Table with a row for each mode."""
    heads = ("", "mode", "calls", "failed", "p50", "p95", "p99", "opened", "cold", "connecting", "heartbeats")
    rows = []
    for one in in_order(results):
        latency, counts = one.latency, one.connections
        numbers = (len(one.answers), failures(one.answers))
        times = (f"{value:.0f}" for value in (latency.p50, latency.p95, latency.p99))
        ends = (counts.opened, f"{one.cold_share:.1%}", f"{1e3 * one.connecting:.1f}", counts.heartbeats)
        rows.append([one.mode.group, one.mode.name, *map(str, (*numbers, *times, *ends))])
    return plain_table(
        heads, rows, left=("mode",), title="ms; connecting: TCP and TLS, of each call on average"
    )


def statements(results: Sequence[ModeResult], route: RouteChange | None) -> Iterator[str]:
    """Findings printed besides the bounds."""
    old, new, beats = (result_of(results, mode) for mode in (OLD_A, NEW_A, HEARTBEATS_B))
    if old and new:
        each = [1e3 * one.connections.handshakes / max(1, one.connections.opened) for one in (old, new)]
        ratio = new.latency.p95 / old.latency.p95 - 1
        yield (
            f"A: one connection takes {each[0]:.0f} ms with TLS 1.2 and {each[1]:.0f} ms with 1.3: three round trips "
            f"and two, TCP's included. p95 {ratio:+.0%} (source: −10 %)."
        )
    if beats:
        number = beats.connections.heartbeats
        yield (
            f"B: {number} heartbeats, {number / max(1, len(beats.answers)):.1f} for each call, on "
            f"{beats.mode.preconnect} connections each. One every {SOURCE_HEARTBEAT:g} s, as in the source, would be "
            f"{beats.rest / SOURCE_HEARTBEAT:.1f} for each call."
        )
    if route and route.reported_after is not None:
        yield f"The longer route was reported after {route.reported_after:.0f} s: {route.text}."


def verdicts(results: Sequence[ModeResult], route: RouteChange | None) -> Iterator[BoundVerdict]:
    """Verdicts on the bounds that were measured."""
    old, new = result_of(results, OLD_A), result_of(results, NEW_A)
    if old and new:
        fewer = 1 - new.connections.opened / max(1, old.connections.opened)
        less = 1 - new.connecting / old.connecting if old.connecting else 0.0
        yield BoundVerdict(
            "A: connections opened", "90 % fewer", fewer >= FEWER_CONNECTIONS, f"{fewer:.1%} fewer"
        )
        yield BoundVerdict(
            "A: connecting, of each call", "50 % less", less >= LESS_CONNECTING, f"{less:.1%} less"
        )
    plain, beats = result_of(results, PLAIN_B), result_of(results, HEARTBEATS_B)
    if plain and beats:
        before, after = plain.latency, beats.latency
        for name, old_ms, new_ms, bound, source in (
            ("p50", before.p50, after.p50, P50_RATIO, "400 → 150"),
            ("p99", before.p99, after.p99, P99_RATIO, "> 600 → 250–300"),
        ):
            expected = f"≤ {with_digits(bound, 3)} × (source: {source})"
            shown = f"{old_ms:.0f} → {new_ms:.0f} ms, {new_ms / old_ms:.2f} ×"
            yield BoundVerdict(f"B: {name}", expected, new_ms <= bound * old_ms, shown)
    cold, warm = result_of(results, PLAIN_FAR), result_of(results, HEARTBEATS_FAR)
    if cold and warm:
        calls, failed = len(warm.answers), failures(warm.answers)
        where, shown = f"90 ms away, a call in {warm.rest:g} s", f"{warm.cold_share:.2%} of {calls}"
        expected = f"cold < {MOST_COLD:.0%}; {cold.cold_share:.0%} without preconnects"
        yield BoundVerdict(where, expected, warm.cold_share < MOST_COLD, shown)
        yield failures_verdict("90 ms away", failed, calls)
    if route:
        after_s = route.reported_after
        when = "never" if after_s is None else f"after {after_s:.0f} s"
        is_met = after_s is not None and after_s <= REPORTED_WITHIN
        expected = f"reported within {REPORTED_WITHIN:g} s"
        yield BoundVerdict(f"a route {ROUTE_FACTOR} times as long", expected, is_met, when)


COLOURS = ("#D55E00", "#E69F00", "#0072B2", "#009E73")
TITLES = {"A": "A: bursts", "B": "B: little traffic, 4 s of keep-alive", "far": "90 ms away, a call in 4 s"}
RANKS = (0.0, 50.0, 90.0, 99.0, 99.9)
SOURCE = {PLAIN_B: {50.0: 400.0, 99.0: 600.0}, HEARTBEATS_B: {50.0: 150.0, 99.0: 300.0}}
"""The source's p50 and p99 in ms; a lower bound for the first, an upper bound for the second."""

SOURCE_P95_RATIO = 0.90
SOURCE_LABELS = {"A": "source: p95 −10 %", "B": "source: p50 and p99"}
"""The source's p95 of A as a multiple of that before; labels of the marks by group."""


@mpl.rc_context(STYLE)
def third_party_figure(results: Sequence[ModeResult]) -> Figure:
    """Figure with a panel for each group that was measured."""
    results = in_order(results)
    groups = {group: own for group in TITLES if (own := [one for one in results if one.mode.group == group])}
    figure, panels = canvas.blank(4.4, 1, len(groups))
    for axes, (group, own) in zip(panels, groups.items(), strict=True):
        axes.set_title(TITLES[group], fontweight="bold")
        draw_group(axes, own)
    panels[0].set_ylabel("ms")
    return figure


def draw_group(axes: Axes, results: Sequence[ModeResult]) -> None:
    """Latency percentiles of one group in milliseconds."""
    colours = COLOURS if len(results) > 2 else COLOURS[::2]
    old = result_of(results, OLD_A)
    for one, colour in zip(results, colours, strict=False):
        draw_percentiles(axes, [answer.took for answer in one.answers], colour, one.mode.name)
        source = SOURCE.get(one.mode, {})
        if one.mode is NEW_A and old is not None:
            source = {95.0: SOURCE_P95_RATIO * old.latency.p95}
        circles: Any = SOURCE_MARK | {"markeredgecolor": colour}
        axes.plot(nines(list(source)), list(source.values()), **circles)
    if label := SOURCE_LABELS.get(results[0].mode.group):
        axes.plot([], [], **SOURCE_MARK, label=label)
    label_percentiles(axes, RANKS)
    axes.set_ylim(0, 1.35 * axes.get_ylim()[1])  # room for the legend
    axes.legend(fontsize=8, loc="upper left")
