"""Colours and marks: the same policy looks the same in every figure of every report.

Rule of this file: Okabe and Ito's colours, which the common kinds of colour blindness keep apart, fixed by
policy name. Entries of one policy share its colour and differ by dash and hatch; an invalid entry is grey.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments.campaign.results import Results, believable
from experiments.load.samples import Place, Run

INK = "#222222"
FAINT = "#8a8a8a"
GRID = "#e3e3e3"
INVALID = "#a8a8a8"

POLICY_COLOURS = {
    "random": "#0072B2",
    "round-robin": "#56B4E9",
    "region-round-robin": "#CC79A7",
    "single-region": "#E69F00",
    "region-aware": "#D55E00",
    "latency-weighted": "#009E73",
    "least-in-flight": "#000000",
}
SPARE_COLOURS = ("#B8A600", "#6A3D9A", "#7F5539", "#4D4D4D")

REGION_COLOURS = (
    ("#0072B2", "#56B4E9"),
    ("#D55E00", "#F2A65A"),
    ("#009E73", "#7FCFB4"),
    ("#7A3B69", "#CC79A7"),
)
DASHES: tuple[Any, ...] = ("solid", (0, (4, 1.6)), (0, (1.2, 1.4)))
HATCHES = ("", "////", "....")


@dataclass(frozen=True, slots=True, eq=False)
class Competitor:
    """An entry as figures show it. `turn` counts entries of the same policy from 0."""

    label: str
    colour: str
    turn: int
    runs: tuple[Run, ...]
    is_valid: bool

    @property
    def dash(self) -> Any:
        return DASHES[self.turn % len(DASHES)]

    @property
    def hatch(self) -> str:
        return HATCHES[self.turn % len(HATCHES)]

    @property
    def name(self) -> str:
        """The label, with the mark of an invalid entry."""
        return self.label if self.is_valid else f"{self.label} (INVALID)"


def competitors(results: Results) -> list[Competitor]:
    """Every entry that has runs, in the scenario's order, with its believable runs."""
    found: list[Competitor] = []
    turns: dict[str, int] = {}
    for entry in results.entries():
        runs = tuple(believable(results.runs_of(entry.label)))
        is_valid = any(run.facts.is_valid for run in runs)
        turn = turns[entry.policy.name] = turns.get(entry.policy.name, -1) + 1
        colour = policy_colour(entry.policy.name, list(turns)) if is_valid else INVALID
        found.append(Competitor(entry.label, colour, turn, runs, is_valid))
    return found


def policy_colour(name: str, seen: Sequence[str]) -> str:
    """The fixed colour of a known policy; a foreign one takes a spare colour by order of appearance."""
    if name in POLICY_COLOURS:
        return POLICY_COLOURS[name]
    foreign = [other for other in seen if other not in POLICY_COLOURS]
    return SPARE_COLOURS[foreign.index(name) % len(SPARE_COLOURS)]


def worker_colours(places: Sequence[Place]) -> list[str]:
    """A hue per region and a shade per worker in it, in the order of `places`."""
    regions = list(dict.fromkeys(place.region for place in places))
    colours, counts = [], dict.fromkeys(regions, 0)
    for place in places:
        shades = REGION_COLOURS[regions.index(place.region) % len(REGION_COLOURS)]
        colours.append(shades[counts[place.region] % len(shades)])
        counts[place.region] += 1
    return colours
