"""`experiments reproduce robinhood`: mixed hardware, balanced by the utilisation that workers report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from matplotlib.axes import Axes

from experiments.platform.session import BoundVerdict
from experiments.reproduce.charts import SOURCE_STROKE, interval_bars
from experiments.reproduce.reproduction import Publication, figure_verdict, written
from experiments.reproduce.simulated import SimulatedReproduction, scenario_with, simulated
from experiments.scenario.scenario import Scenario
from experiments.stats.comparison import Interval, average

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
    region = {
        "name": "here",
        "workers": WORKERS,
        "rtt": 0.001,
        "service": "19-21ms",
        "slots": SLOTS,
        "speed": half * [1.0] + half * [speed],
    }
    return scenario_with(
        "robinhood",
        "How evenly are workers of mixed hardware used?",
        {"mode": "open", "rate": rate, "duration": duration},
        [region],
        {BEFORE: BEFORE, AFTER: {"name": AFTER, "blackout": 1.0}} | {one: one for one in OTHERS},
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
    height = 3.0
    title = "largest to mean utilisation, 95 % interval"
    forms = (FORM, FORM)
    cases = tuple(SOURCE)
    full, quick = (5, 20.0), (3, 5.0)

    def setup(self) -> str:
        speeds = " and ".join(f"{faster(before):.2f}" for before, _ in SOURCE.values())
        return (
            f"Simulated: {WORKERS} workers with {SLOTS} slots, half of them {speeds} times as fast, chosen so that "
            f"round-robin starts from the source's ratios; {LOAD:.0%} of the capacity under an even split.\n"
        )

    def simulate(self, case: str, seed: int) -> dict[str, float]:
        scenario = scenario_of(case, SETTLING + self._duration)
        runs = {one.label: simulated(scenario, one, seed, SETTLING).utilisation for one in scenario.entries}
        return {label: float(used.max() / used.mean()) for label, used in runs.items()}

    def verdicts(self) -> Iterator[BoundVerdict]:
        for cluster, values in self._found.items():
            before, after = SOURCE[cluster]
            means = self.means(cluster)
            pairs = zip(values[BEFORE], values[AFTER], strict=True)
            halved = average([(one - 1) - (other - 1) / 2 for other, one in pairs])
            yield figure_verdict(
                f"{cluster}: by reported utilisation the largest is nearer to the mean",
                f"{before} to {after}",
                halved,
                f"{FORM(means[BEFORE].ratio)} to {written(means[AFTER], FORM)}",
                most=0.0,
            )
            yield figure_verdict(
                f"{cluster}: as near to the mean as the source's",
                f"{after}, rounded: at most {FORM(after + ROUNDING)}",
                means[AFTER],
                FORM,
                most=after + ROUNDING,
            )

    def draw(self, axes: Axes, case: str, found: Mapping[str, Interval]) -> None:
        """Strokes are the source's figures."""
        expected = dict(zip((BEFORE, AFTER), SOURCE[case], strict=True))
        label = f"largest to mean utilisation; {SOURCE_STROKE}"
        interval_bars(axes, found, label, FORM, (BEFORE,), expected)
        axes.set_xlim(left=0.95)
