"""Colours and marks: an entry has one colour in every figure of a report, and most policies have it in every report.

The most used policies have the colours of Okabe and Ito, which the common kinds of colour blindness keep apart. Entries
of one policy differ by dash and hatch, too; an invalid entry is grey.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from colorsys import hls_to_rgb, rgb_to_hls
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from matplotlib.colors import to_rgb
from matplotlib.patches import Patch

from experiments.results.directory import Results, believable
from experiments.run_data import Place, Run

WHITE = "#ffffff"
INK = "#222222"
GREY = "#8a8a8a"
GRID = "#e3e3e3"
INVALID = "#a8a8a8"

POLICY_COLOURS = {
    "random": "#0072b2",
    "round-robin": "#56b4e9",
    "smooth-round-robin": "#3f7f93",
    "edf-round-robin": "#8ca6db",
    "region-round-robin": "#cc79a7",
    "single-region": "#e69f00",
    "region-aware": "#d55e00",
    "steelyard": "#b2182b",
    "latency-weighted": "#009e73",
    "peak-ewma": "#66a61e",
    "least-time": "#1b5e20",
    "least-in-flight": "#101010",
    "join-idle-queue": "#6e6e6e",
    "aperture": "#a6761d",
    "prequal": "#882255",
    "c3": "#aa66cc",
    "reported-load": "#8d8300",
    "ring-hash": "#332288",
    "maglev": "#5c6bc0",
    "rendezvous": "#7f5539",
    "pending-tokens": "#00868b",
    "llm-d": "#b03060",
    "lmetric": "#556b2f",
    "cache-aware": "#a0522d",
    "dynamo": "#4682b4",
    "prefix-chunks": "#9932cc",
}
"""Colours of the policies that have one of their own, in every figure of every report."""

SPARE_COLOURS = ("#b8a600", "#6a3d9a", "#e7298a", "#4d4d4d")
"""Colours of all other policies, and of further entries of a policy, in the order of their appearance in a report."""

SHADE = "#f6ddb0"
NOISE = "#f0e442"
ON_DARK, ON_LIGHT = "#fefefe", "#212121"
"""Text on coloured areas, which stay as they are in dark figures."""

REGION_COLOURS = (
    ("#0073B2", "#56B5E9"),
    ("#D65E00", "#F2A65A"),
    ("#019E73", "#7FCFB4"),
    ("#8F4A7C", "#CD79A7"),
)
"""Dark and light shade of each region's workers: none is a policy's colour, so dark figures leave them as they are."""

DASHES: tuple[Any, ...] = ("solid", (0, (4, 1.6)), (0, (1.2, 1.4)))
HATCHES = ("", "////", "\\\\\\\\")

MAX_NAMED = 12
"""Maximum number of workers that a legend lists one by one."""

MAX_DRAWN = 64
"""Maximum number of workers drawn one by one; beyond it regions are drawn, as hundreds of shades look alike."""


@dataclass(frozen=True, slots=True, eq=False)
class Competitor:
    """An entry as drawn. `turn` is its dash and hatch, counted among the entries of its policy."""

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


def competitors(results: Results, colours: Mapping[str, str] | None = None) -> list[Competitor]:
    """Every entry that has runs, in the scenario's order, with its valid runs, or all if none is valid.

    `colours` by label are those of these results if not given.
    """
    found: list[Competitor] = []
    turns: Counter[str] = Counter()
    colours = colours or colours_of(results)
    for entry in results.entries():
        runs = tuple(believable(results, entry.label))
        is_valid = any(run.facts.is_valid for run in runs)
        shown = colours.get(entry.label, INVALID) if is_valid else INVALID
        found.append(Competitor(entry.label, shown, turns[entry.policy.name], runs, is_valid))
        turns[entry.policy.name] += 1
    return found


def colours_of(results: Results) -> dict[str, str]:
    """Colour of each entry of the scenario by its label."""
    entries = results.scenario.entries
    colours = entry_colours([entry.policy.name for entry in entries])
    return {entry.label: colour for entry, colour in zip(entries, colours, strict=True)}


def entry_colours(policies: Sequence[str]) -> list[str]:
    """Colours of entries with these policies: the first of a policy has the policy's own, the others one that is free,
    as long as there are any."""
    own = {name: POLICY_COLOURS[name] for name in policies if name in POLICY_COLOURS}
    every = (*SPARE_COLOURS, *POLICY_COLOURS.values())
    free = cycle([colour for colour in every if colour not in own.values()] or every)
    own |= {name: next(free) for name in dict.fromkeys(policies) if name not in own}
    return [own.pop(name, "") or next(free) for name in policies]


def place_handles(places: Sequence[Place]) -> list[Patch]:
    """Legend of workers, or of regions if there are many workers."""
    if len(places) <= MAX_NAMED:
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
    ends = zip(bytes.fromhex(dark[1:]), bytes.fromhex(light[1:]), strict=True)
    return "#" + "".join(f"{round(a + part * (b - a)):02X}" for a, b in ends)


def lighter(colour: str) -> str:
    """The colour in its hue, lighter until it stands out from a dark page (relative luminance of 0.2)."""
    hue, light, vivid = rgb_to_hls(*to_rgb(colour))
    mixed = colour
    while luminance(mixed) < 0.2:
        light += 0.01
        mixed = "#" + "".join(f"{round(255 * part):02x}" for part in hls_to_rgb(hue, light, vivid))
    return mixed


def luminance(colour: Any) -> float:
    """Relative luminance (WCAG 2.2, with a plain exponent)."""
    weights = (0.2126, 0.7152, 0.0722)
    return sum(weight * math.pow(part, 2.2) for weight, part in zip(weights, to_rgb(colour), strict=True))


DARK = {
    WHITE: "#1d2024",
    INK: "#e8eaec",
    GREY: "#a5abb1",
    GRID: "#3a3f45",
    SHADE: "#4d3d17",
    NOISE: "#8f8500",
    **{colour: lighter(colour) for colour in (*POLICY_COLOURS.values(), *SPARE_COLOURS)},
    "#101010": "#f4f4f4",  # greys of three policies stay apart
    "#6e6e6e": "#b9b9b9",
}
"""Colour in a dark figure by that in a light one."""
