"""Colours and marks: a policy looks the same in every figure of every report.

The colours are Okabe and Ito's, which the common kinds of colour blindness keep apart, fixed by policy name, with a
dash for related policies. Entries of one policy differ by dash and hatch; an invalid entry is grey.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.patches import Patch

from experiments.results.directory import Results, believable
from experiments.stats.samples import Place, Run

INK = "#222222"
GREY = "#8a8a8a"
GRID = "#e3e3e3"
INVALID = "#a8a8a8"

BLUE, SKY, PINK, AMBER = "#0072B2", "#56B4E9", "#CC79A7", "#E69F00"
VERMILION, GREEN, BLACK, OLIVE = "#D55E00", "#009E73", "#000000", "#B8A600"

POLICY_LOOKS = {
    "random": (BLUE, 0),
    "round-robin": (SKY, 0),
    "smooth-round-robin": (SKY, 1),
    "edf-round-robin": (SKY, 2),
    "region-round-robin": (PINK, 0),
    "single-region": (AMBER, 0),
    "region-aware": (VERMILION, 0),
    "steelyard": (VERMILION, 1),
    "latency-weighted": (GREEN, 0),
    "peak-ewma": (GREEN, 1),
    "least-time": (GREEN, 2),
    "least-in-flight": (BLACK, 0),
    "join-idle-queue": (BLACK, 1),
    "aperture": (BLACK, 2),
    "prequal": (PINK, 1),
    "c3": (PINK, 2),
    "reported-load": (AMBER, 1),
    "ring-hash": (BLUE, 1),
    "maglev": (BLUE, 2),
    "rendezvous": (AMBER, 2),
}
"""Colour and line style: related policies share a colour, and no two policies share both."""

SPARE_COLOURS = (OLIVE, "#6A3D9A", "#7F5539", "#4D4D4D")

REGION_COLOURS = (
    ("#0072B2", "#56B4E9"),
    ("#D55E00", "#F2A65A"),
    ("#009E73", "#7FCFB4"),
    ("#7A3B69", "#CC79A7"),
)
DASHES: tuple[Any, ...] = ("solid", (0, (4, 1.6)), (0, (1.2, 1.4)))
HATCHES = ("", "////", "....")

MOST_NAMED = 12
"""Maximum number of workers that a legend lists one by one."""

MOST_DRAWN = 64
"""Maximum number of workers drawn one by one; beyond it regions are drawn, as hundreds of shades look alike."""


@dataclass(frozen=True, slots=True, eq=False)
class Competitor:
    """An entry as drawn. `turn` is its dash and hatch; entries of one policy continue from the policy's own."""

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
        """The label, with a mark if the entry is invalid."""
        return in_legend(self.label if self.is_valid else f"{self.label} (INVALID)")


def in_legend(name: str) -> str:
    """The name as a legend label; matplotlib omits labels that begin with an underscore."""
    return f" {name}" if name.startswith("_") else name


def competitors(results: Results) -> list[Competitor]:
    """Every entry that has runs, in the scenario's order, with its valid runs, or all if none is valid."""
    found: list[Competitor] = []
    turns: dict[str, int] = {}
    for entry in results.entries():
        runs = tuple(believable(results.runs_of(entry.label)))
        is_valid = any(run.facts.is_valid for run in runs)
        turn = turns[entry.policy.name] = turns.get(entry.policy.name, -1) + 1
        colour, first = policy_look(entry.policy.name, list(turns))
        shown = colour if is_valid else INVALID
        found.append(Competitor(entry.label, shown, first + turn, runs, is_valid))
    return found


def policy_look(name: str, seen: Sequence[str]) -> tuple[str, int]:
    """Fixed look of a known policy; an unknown one takes a spare colour by order of appearance, then a dash."""
    if name in POLICY_LOOKS:
        return POLICY_LOOKS[name]
    turn, place = divmod(
        [other for other in seen if other not in POLICY_LOOKS].index(name), len(SPARE_COLOURS)
    )
    return SPARE_COLOURS[place], turn


def policy_colour(name: str, seen: Sequence[str]) -> str:
    """Colour of a policy in figures without dashes: of related policies among `seen`, one keeps the shared colour."""
    names = list(dict.fromkeys([*seen, name]))
    looks = {other: policy_look(other, names) for other in names}
    colours: dict[str, str] = {}
    for other in sorted(names, key=lambda other: looks[other][1]):
        used = colours.values()
        free = (spare for spare in SPARE_COLOURS if spare not in used)
        colours[other] = next(free, looks[other][0]) if looks[other][0] in used else looks[other][0]
    return colours[name]


def place_handles(places: Sequence[Place]) -> list[Patch]:
    """Legend of workers, or of regions if there are many workers."""
    if len(places) <= MOST_NAMED:
        colours = worker_colours(places)
        return [Patch(facecolor=c, label=in_legend(p.worker)) for c, p in zip(colours, places, strict=True)]
    counts = Counter(place.region for place in places)
    return [
        Patch(facecolor=colour, label=in_legend(f"{region}, {counts[region]} workers"))
        for region, colour in region_colours(places).items()
    ]


def region_colours(places: Sequence[Place]) -> dict[str, str]:
    """Colour per region, in the order of `places`: that of its first worker."""
    regions = dict.fromkeys(place.region for place in places)
    return {region: REGION_COLOURS[n % len(REGION_COLOURS)][0] for n, region in enumerate(regions)}


def worker_colours(places: Sequence[Place]) -> list[str]:
    """A hue per region and a shade per worker in it, dark to light, in the order of `places`."""
    regions = list(dict.fromkeys(place.region for place in places))
    sizes = {region: sum(place.region == region for place in places) for region in regions}
    colours, counts = [], dict.fromkeys(regions, 0)
    for place in places:
        dark, light = REGION_COLOURS[regions.index(place.region) % len(REGION_COLOURS)]
        colours.append(between(dark, light, counts[place.region] / max(1, sizes[place.region] - 1)))
        counts[place.region] += 1
    return colours


def between(dark: str, light: str, part: float) -> str:
    """Interpolated colour at `part` (0..1) from `dark` to `light`."""
    ends = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in (dark, light)]
    return "#" + "".join(f"{round(a + part * (b - a)):02X}" for a, b in zip(*ends, strict=True))
