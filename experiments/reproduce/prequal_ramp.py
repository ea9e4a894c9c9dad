"""`experiments reproduce prequal`: a ramp of load on workers whose machines other jobs share now and then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from experiments.platform.session import BoundVerdict
from experiments.platform.terminal import plain_table
from experiments.report import canvas
from experiments.reproduce.charts import BAD, GOOD
from experiments.reproduce.reproduction import Publication, figure_verdict, written
from experiments.reproduce.simulated import SimulatedReproduction, scenario_with, simulated
from experiments.scenario.scenario import Scenario
from experiments.stats.comparison import Interval, average, typical

WEIGHTED, PREQUAL = "reported-load", "prequal"
OTHERS = ("least-in-flight", "steelyard")
COLOURS = {WEIGHTED: BAD, PREQUAL: GOOD, "least-in-flight": "#E69F00", "steelyard": "#009E73"}

STEPS = tuple(0.75 * (10 / 9) ** step for step in range(9))
"""Load as a multiple of the workers' allocation: 0.75 to 1.74, as far as known the paper's."""

WORKERS, BALANCERS = 20, 10
MEAN = 0.08
"""Mean service time at the allocation, in seconds."""

FREE = 2.4
"""Speed, as a multiple of the allocation, of a worker whose machine no other job uses."""

ALONE, SHARED = 8.0, 4.0
"""Mean seconds, exponential, without and with other jobs on a machine."""

SETTLING = 5.0
DEADLINE = 5.0
"""Seconds after which a response counts as an error."""


class Tail(NamedTuple):
    """Latencies of one run in seconds, and the share of requests beyond the deadline."""

    p50: float
    p99: float
    p999: float
    late: float


def antagonists(seed: int, duration: float) -> list[dict[str, Any]]:
    """Spells in which other jobs leave a worker only its allocation."""
    rng, events = Random(f"{seed}:antagonists"), list[dict[str, Any]]()
    for worker in range(WORKERS):
        at = rng.expovariate(1 / ALONE)
        while at < duration:
            lasts = max(0.01, rng.expovariate(1 / SHARED))
            events.append(
                {"at": at, "lasts": lasts, "target": f"here-{worker}", "kind": "slow", "value": FREE}
            )
            at += lasts + rng.expovariate(1 / ALONE)
    return events


def scenario_of(step: float, seed: int, duration: float) -> Scenario:
    """One step of the ramp. Nothing is given up, so that late requests keep their latency."""
    region = {
        "name": "here",
        "workers": WORKERS,
        "rtt": 0.001,
        "service": f"exponential:{1e3 * MEAN:g}ms",
        "discipline": "sharing",
        "speed": WORKERS * [FREE],
        "queue": 1_000_000,
    }
    return scenario_with(
        "prequal",
        "What does a ramp of load do to the tail?",
        {"mode": "open", "rate": step * WORKERS / MEAN, "duration": duration},
        [region],
        {WEIGHTED: {"name": WEIGHTED, "blackout": 1.0}} | {one: one for one in (PREQUAL, *OTHERS)},
        balancers=BALANCERS,
        events=antagonists(seed, duration),
    )


class PrequalRamp(SimulatedReproduction):
    """Tails by step and policy, a list with one per seed."""

    name = "prequal"
    document = Publication(
        "Load is not what you should balance: Introducing Prequal",
        "Bartek Wydrowski, Robert Kleinberg, Stephen M. Rumble, Aaron Archer, NSDI 2024",
        "https://arxiv.org/abs/2312.10172",
    )
    summary = "Ramp of load on shared machines: weighted round-robin by utilisation, and Prequal; simulated."
    duration = "a minute"

    cases = STEPS
    full, quick = (5, 25.0), (3, 8.0)

    def setup(self) -> str:
        return (
            f"Simulated: {BALANCERS} balancers, {WORKERS} workers with a processor each. A machine without other "
            f"jobs gives a worker {FREE:g} times its allocation; a third of the time there are some, and it gets only "
            "that.\n"
        )

    def simulate(self, case: float, seed: int) -> dict[str, Tail]:
        scenario, found = scenario_of(case, seed, self._duration), dict[str, Tail]()
        for entry in scenario.entries:
            latency = simulated(scenario, entry, seed, SETTLING).latency
            p50, p99, p999 = (float(one) for one in np.percentile(latency, [50, 99, 99.9]))
            found[entry.label] = Tail(p50, p99, p999, float((latency > DEADLINE).mean()))
        return found

    def verdicts(self) -> Iterator[BoundVerdict]:
        above = [step for step in self._found if step > 1]
        if not above:
            return
        pairs = {
            step: list(zip(self._found[step][WEIGHTED], self._found[step][PREQUAL], strict=True))
            for step in above
        }
        first, last = above[0], above[-1]
        shorter = typical(
            [median(a.p99 / b.p99 for a, b in of_seed) for of_seed in zip(*pairs.values(), strict=True)]
        )
        weighted, prequal = (fmean(tail.late for tail in tails) for tails in zip(*pairs[last], strict=True))
        less = average([a.late - b.late for a, b in pairs[last]])
        ends = zip(pairs[first], pairs[last], strict=True)
        room = typical([of_last[1].p99 / of_first[0].p99 for of_first, of_last in ends])
        yield figure_verdict(
            "above the allocation the tail is shorter with Prequal: p99 of WRR over Prequal, median of the steps",
            "dramatically decreased tail latency",
            shorter,
            "{:.1f} ×".format,
            least=1.0,
        )
        yield figure_verdict(
            f"at {last:.2f} times the allocation fewer requests miss a deadline of {DEADLINE:g} s",
            "dramatically decreased error rates",
            less,
            f"{weighted:.2%} with WRR, {prequal:.2%} with Prequal, less by {written(less, '{:.2%}'.format)}",
            least=0.0,
        )
        yield figure_verdict(
            f"p99 of Prequal at {last:.2f} times the allocation is below that of WRR at {first:.2f}",
            "much higher utilization",
            room,
            "{:.2f} ×".format,
            most=1.0,
        )

    def tables(self) -> Iterator[Table]:
        heads = ("load", *next(iter(self._found.values())))
        for field in ("p99", "p999"):
            rows = [
                (f"{step:.2f}", *(written(millis(tails, field), "{:.0f}".format) for tails in found.values()))
                for step, found in self._found.items()
            ]
            yield plain_table(heads, rows, title=f"{field} in ms, mean of {self._seeds} seeds")

    def figure(self) -> Figure:
        """p50 and p99 by load, a line for each policy and a band, the mean over the seeds and its 95 % interval."""
        (figure, panels), steps = canvas.blank(3.6, 1, 2), list(self._found)
        for panel, field in zip(panels, ("p50", "p99"), strict=True):
            for policy, colour in COLOURS.items():
                means = [millis(found[policy], field) for found in self._found.values()]
                low, high = ([getattr(mean, end) for mean in means] for end in ("low", "high"))
                panel.plot(steps, [mean.ratio for mean in means], color=colour, marker="o", label=policy)
                panel.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
            panel.axvline(1.0, color="grey", linewidth=0.8, linestyle="--")
            every = [tail for step in self._found.values() for tails in step.values() for tail in tails]
            canvas.milliseconds(panel.yaxis, [1e3 * getattr(tail, field) for tail in every])
            panel.set_xlabel("load, multiple of the allocation")
            panel.set_title(f"{field}, ms", fontweight="bold")
        panels[0].legend(loc="upper left")
        return figure

    def content(self) -> dict[str, Any]:
        found = [
            {"load": step, "policy": policy, "runs": [tail._asdict() for tail in tails]}
            for step, policies in self._found.items()
            for policy, tails in policies.items()
        ]
        return {"seeds": self._seeds, "duration": self._duration, "found": found}


def millis(tails: Sequence[Tail], field: str) -> Interval:
    """Geometric mean of a percentile over the seeds, in milliseconds."""
    return typical([1e3 * getattr(tail, field) for tail in tails])
