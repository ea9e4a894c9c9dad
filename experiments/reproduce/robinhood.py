"""`experiments reproduce robinhood`: mixed hardware, balanced by the utilisation that workers report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from rich.table import Table

from experiments.platform.session import BoundVerdict
from experiments.platform.terminal import plain_table
from experiments.report import canvas
from experiments.report.canvas import STYLE
from experiments.reproduce.charts import BAD, GOOD, bar, label_bars
from experiments.reproduce.reproduction import Publication
from experiments.reproduce.simulated import (
    BARE,
    Interval,
    SimulatedReproduction,
    mean_of,
    simulated,
    written,
)
from experiments.scenario.scenario import Scenario

SOURCE = {"Envoy cluster": (1.26, 1.01), "database frontend": (1.4, 1.05)}
"""Ratio of the largest to the mean utilisation before and after, by cluster, as a summary of the article has it."""

ROUNDING = 0.005
"""Half a unit of the last digit that the source gives: 1.01 is any ratio up to 1.015."""

BEFORE, AFTER = "round-robin", "reported-load"
OTHERS = ("least-in-flight", "peak-ewma", "steelyard")
WORKERS = 12
SLOTS = 4
LOAD = 0.6
"""Mean utilisation that is offered."""

MEAN = 0.02
"""Service time of the slower hardware in seconds."""

SETTLING = 10.0
"""Seconds that are left out at the beginning, while reports arrive."""

FORM = "{:.3f}".format


def faster(ratio: float) -> float:
    """Speed of the faster half for which an even split has this ratio of largest to mean utilisation."""
    return ratio / (2 - ratio)


def scenario_of(cluster: str, duration: float) -> Scenario:
    """Half of the workers as slow as 1, the others as fast as an even split needs for the source's ratio before."""
    speed = faster(SOURCE[cluster][0])
    half = WORKERS // 2
    rate = LOAD * 2 * SLOTS * WORKERS / (MEAN * (1 + 1 / speed))
    return Scenario.model_validate(
        {
            "name": "robinhood",
            "question": "How evenly are workers of mixed hardware used?",
            "baseline": BEFORE,
            "home_region": "here",
            "balancer": BARE,
            "load": {"mode": "open", "rate": rate, "duration": duration},
            "regions": [
                {
                    "name": "here",
                    "workers": WORKERS,
                    "rtt": 0.001,
                    "service": "19-21ms",
                    "slots": SLOTS,
                    "speed": half * [1.0] + half * [speed],
                }
            ],
            "entries": [
                {"label": BEFORE, "policy": BEFORE},
                {"label": AFTER, "policy": {"name": AFTER, "blackout": 1.0}},
                *({"label": one, "policy": one} for one in OTHERS),
            ],
        }
    )


class Robinhood(SimulatedReproduction):
    """Ratios of the largest to the mean utilisation, by cluster and policy, each a list with a value per seed."""

    name = "robinhood"
    document = Publication(
        "What's new with Robinhood, our in-house load balancing service",
        "Yi-Shu Tai, dropbox.tech, 2024",
        "https://dropbox.tech/infrastructure/robinhood-in-house-load-balancing-service",
    )
    summary = "Workers of mixed hardware: largest to mean utilisation by turns and by reports; simulated."
    duration = "a minute"

    def __init__(self, is_quick: bool) -> None:
        self._seeds, self._duration = (3, 5.0) if is_quick else (5, 20.0)
        self._found: dict[str, dict[str, list[float]]] = {}

    def setup(self) -> str:
        speeds = " and ".join(f"{faster(before):.2f}" for before, _ in SOURCE.values())
        return (
            f"Simulated: {WORKERS} workers with {SLOTS} slots, half of them {speeds} times as fast, chosen so that "
            f"round-robin starts from the source's ratios; {LOAD:.0%} of the capacity under an even split.\n"
        )

    def runs(self, seed: int) -> Iterator[str]:
        for cluster in SOURCE:
            scenario = scenario_of(cluster, SETTLING + self._duration)
            found: dict[str, list[float]] = {}
            for entry in scenario.entries:
                yield f"{cluster}: {entry.label}"
                used = [
                    simulated(scenario, entry, seed + number, SETTLING).utilisation
                    for number in range(self._seeds)
                ]
                found[entry.label] = [float(one.max() / one.mean()) for one in used]
            self._found[cluster] = found

    def means(self, cluster: str) -> dict[str, Interval]:
        """Mean and interval by policy."""
        return {label: mean_of(values) for label, values in self._found[cluster].items()}

    def verdicts(self) -> list[BoundVerdict]:
        found = []
        for cluster in self._found:
            before, after = SOURCE[cluster]
            means = self.means(cluster)
            mean, low, high = means[AFTER]
            found.append(
                BoundVerdict(
                    f"{cluster}: by reported utilisation the largest is nearer to the mean",
                    f"{before} to {after}",
                    (high - 1) < (means[BEFORE][1] - 1) / 2,
                    f"{FORM(means[BEFORE][0])} to {written((mean, low, high), FORM)}",
                )
            )
            found.append(
                BoundVerdict(
                    f"{cluster}: as near to the mean as the source's",
                    str(after),
                    None if low <= after + ROUNDING < high else high <= after + ROUNDING,
                    written(means[AFTER], FORM),
                )
            )
        return found

    def tables(self) -> list[Table]:
        clusters = list(self._found)
        means = {cluster: self.means(cluster) for cluster in clusters}
        rows = [
            (label, *(written(means[cluster][label], FORM) for cluster in clusters))
            for label in means[clusters[0]]
        ]
        return [plain_table(("policy", *clusters), rows, title="largest to mean utilisation, 95 % interval")]

    def figure(self) -> Figure | None:
        return robinhood_figure({one: self.means(one) for one in self._found}) if self._found else None

    def results(self) -> dict[str, Any]:
        return {"seeds": self._seeds, "duration": self._duration, "found": self._found}


@mpl.rc_context(STYLE)
def robinhood_figure(means: dict[str, dict[str, Interval]]) -> Figure:
    """Largest to mean utilisation by policy, a panel for each cluster; strokes are the source's figures."""
    figure, axes = canvas.blank(3.0, 1, len(means))
    for panel, (cluster, found) in zip(axes, means.items(), strict=True):
        labels = list(found)[::-1]
        expected = dict(zip((BEFORE, AFTER), SOURCE[cluster], strict=True))
        for at, label in enumerate(labels):
            mean, low, high = found[label]
            colour = BAD if label == BEFORE else GOOD
            bar(panel, at, mean, FORM(mean), colour, interval=(low, high), expected=expected.get(label))
        label_bars(panel, labels, "largest to mean utilisation")
        panel.set_xlim(left=0.95)
        panel.set_title(cluster, fontweight="bold")
    return figure
