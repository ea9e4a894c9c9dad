"""`experiments reproduce third-party`: effect of newer protocols, background DNS and heartbeats on tail latency.

Only runs the measurements and prints tables, a figure and verdicts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table
from rich.text import Text

from experiments.reproduce.provider import (
    BEATS,
    COLD_FAR,
    DETOUR,
    KEEP_ALIVE,
    LOOKUP,
    MODES,
    NEW_A,
    OLD_A,
    QUICK,
    THEIR_BEAT,
    TRIP,
    WARM_FAR,
    WITHOUT,
    ModeResult,
    RouteChange,
    Setup,
    stay_of,
)
from experiments.reproduce.session import Choices, Session, Verdict, run_session, with_choices
from experiments.reproduce.third_party_runs import run_plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEWER, LESS = 0.90, 0.50
HALF, TAIL = 150 / 400, 300 / 600
MOST_COLD = 0.01

EPILOG = """\b
Examples:
  experiments reproduce third-party                    three minutes, writes third-party.png
  experiments reproduce third-party --quick            under a minute
  experiments reproduce third-party --check --json third-party.json
"""


@click.command(name="third-party", epilog=EPILOG)
@with_choices
def third_party(choices: Choices) -> int:
    """Calls to providers: HTTP/2 and TLS 1.3, names in the background, heartbeats, and a route that is watched."""
    return run_session(ThirdPartyReproduction(QUICK if choices.quick else Setup()), choices)


class ThirdPartyReproduction(Session):
    """Session: collects the results of all modes and prints them."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self._setup = setup
        self._stays: list[ModeResult] = []
        self._detour: RouteChange | None = None

    def introduction(self) -> str:
        return introduction(self._setup)

    async def run_plan(self, seed: int, folder: Path) -> None:
        self._detour = await run_plan(self._setup, seed, folder, self.status.update, self._stays)

    def present(self) -> list[Verdict]:
        if not self._stays:
            return []
        self.console.print(table_of(self._stays))
        for words in findings(self._stays, self._detour):
            self.console.print(Text(words))
        return verdicts(self._stays, self._detour)

    def figures(self) -> Mapping[str, Callable[[], Figure]]:
        from experiments.reproduce.third_party_figure import third_party_figure

        return {"third-party": partial(third_party_figure, self._stays)} if self._stays else {}

    def content(self) -> dict[str, Any]:
        return {
            "setup": asdict(self._setup),
            "stays": [summary(stay) for stay in self._stays],
            "detour": asdict(self._detour) if self._detour else None,
        }


def summary(stay: ModeResult) -> dict[str, Any]:
    """Summary of a mode for JSON, without single calls."""
    return {
        "group": stay.mode.group,
        "mode": stay.mode.name,
        "calls": len(stay.made),
        "failed": stay.failed,
        "seconds": stay.seconds,
        "account": asdict(stay.account),
        "cold_share": stay.cold_share,
        "quantities": asdict(stay.quantities),
    }


def introduction(setup: Setup) -> str:
    return (
        f"Providers {1e3 * TRIP:g} ms away; A is called in bursts, B by {setup.instances} instances of an application, "
        f"each once in {setup.rests['B']:g} s.\nB closes idle connections after {KEEP_ALIVE:g} s, knows TLS 1.2 and "
        f"HTTP/1.1 only, and its name takes {1e3 * LOOKUP:g} ms to look up.\nModes of a group run at the same time for "
        f"{setup.seconds:g} s, none of it compressed; no session is resumed.\n"
    )


def table_of(stays: Sequence[ModeResult]) -> Table:
    """Table with a row for each mode."""
    table = Table(title="ms; connecting: TCP and TLS, of each call on average")
    heads = ("", "mode", "calls", "failed", "p50", "p95", "p99", "opened", "cold", "connecting", "heartbeats")
    for name in heads:
        table.add_column(name, justify="left" if name in ("", "mode") else "right", no_wrap=True)
    for stay in sorted(stays, key=lambda one: MODES.index(one.mode)):
        row, account = stay.quantities, stay.account
        numbers = (len(stay.made), stay.failed, *(f"{one:.0f}" for one in (row.p50, row.p95, row.p99)))
        ends = (account.opened, f"{stay.cold_share:.1%}", f"{1e3 * stay.waited:.1f}", account.heartbeats)
        table.add_row(stay.mode.group, stay.mode.name, *map(str, (*numbers, *ends)))
    return table


def findings(stays: Sequence[ModeResult], detour: RouteChange | None) -> list[str]:
    """Findings printed besides the bounds."""
    found = []
    old, new, beats = (stay_of(stays, mode) for mode in (OLD_A, NEW_A, BEATS))
    if old and new:
        each = [1e3 * stay.account.handshakes / max(1, stay.account.opened) for stay in (old, new)]
        ratio = new.quantities.p95 / old.quantities.p95 - 1
        found.append(
            f"A: one connection takes {each[0]:.0f} ms with TLS 1.2 and {each[1]:.0f} ms with 1.3: three round trips "
            f"and two, TCP's included. p95 {ratio:+.0%} (source: −10 %)."
        )
    if beats:
        found.append(cost_of(beats))
    if detour and detour.noticed is not None:
        found.append(f"The watch said after {detour.noticed:.0f} s: {detour.text}.")
    return found


def cost_of(beats: ModeResult) -> str:
    """Cost of heartbeats in requests."""
    number = beats.account.heartbeats
    return (
        f"B: {number} heartbeats, {number / max(1, len(beats.made)):.1f} for each call, on {beats.mode.warm} "
        f"connections each. One every {THEIR_BEAT:g} s, as in the source, would be {beats.rest / THEIR_BEAT:.1f} for "
        "each call."
    )


def verdicts(stays: Sequence[ModeResult], detour: RouteChange | None) -> list[Verdict]:
    """Verdicts on the bounds, as far as they were measured."""
    found = []
    old, new = stay_of(stays, OLD_A), stay_of(stays, NEW_A)
    if old and new:
        fewer = 1 - new.account.opened / max(1, old.account.opened)
        less = 1 - new.waited / old.waited if old.waited else 0.0
        found.append(Verdict(fewer >= FEWER, f"A: {fewer:.1%} fewer connections opened (source: 90 %)"))
        found.append(Verdict(less >= LESS, f"A: {less:.1%} less connecting for each call (source: 50 %)"))
    without, beats = stay_of(stays, WITHOUT), stay_of(stays, BEATS)
    if without and beats:
        before, after = without.quantities, beats.quantities
        for name, old_ms, new_ms, bound, theirs in (
            ("p50", before.p50, after.p50, HALF, "400 → 150"),
            ("p99", before.p99, after.p99, TAIL, "> 600 → 250–300"),
        ):
            ours = f"B: {name} {old_ms:.0f} → {new_ms:.0f} ms, {new_ms / old_ms:.2f} ×"
            words = f"{ours} (source: {theirs}, {bound:.3g} ×)"
            found.append(Verdict(new_ms <= bound * old_ms, words))
    cold, warm = stay_of(stays, COLD_FAR), stay_of(stays, WARM_FAR)
    if cold and warm:
        words = f"{warm.cold_share:.2%} of {len(warm.made)} cold, {cold.cold_share:.0%} without warmth"
        found.append(Verdict(warm.cold_share < MOST_COLD, f"90 ms away, a call in {warm.rest:g} s: {words}"))
        found.append(Verdict(warm.failed == 0, f"90 ms away: {warm.failed} of {len(warm.made)} failed"))
    if detour:
        when = "never" if detour.noticed is None else f"after {detour.noticed:.0f} s"
        is_met = detour.noticed is not None and detour.noticed <= 60
        found.append(Verdict(is_met, f"a way {DETOUR} times as long is noticed {when}, bound 60 s"))
    return found
