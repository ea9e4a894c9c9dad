"""`experiments reproduce els`: one of four workers ten times slower, or failing nine tenths of its requests at once."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
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
    ratio_of,
    simulated,
    written,
)
from experiments.scenario.scenario import Scenario
from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.facts import RequestFacts

SOURCE_SLOW = {"round-robin": 245, "shortest queue": 80}
SOURCE_FAILED = {"round-robin": 6, "shortest queue": 11}
SOURCE_REQUESTS = 27
"""The source's seconds with a slow machine, and its failed requests of 27 with a failing one."""

RATIO = 3.0
"""The source: round-robin took "more than 3 times longer"."""

OURS = ("least-in-flight", "peak-ewma", "latency-weighted", "steelyard")
SLOW, FAILING, LONG = "slow", "failing", "failing, 1 s"
SERVICES = {SLOW: "fixed:20ms", FAILING: "exponential:20ms", LONG: "exponential:1s"}
CLIENTS = 4
REQUESTS = 540


class ShortestQueue:
    """The source's JSQ: fewest requests in flight, ties at random, and failures do not count."""

    def __init__(self, rng: Random) -> None:
        self._random = rng.random

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick the endpoint with the fewest requests in flight. O(endpoints)."""
        return min(available, key=lambda state: (state.in_flight, self._random()))


def scenario_of(case: str) -> Scenario:
    """Four workers, of which the first is slow or fails; a closed loop, or half of all capacity offered."""
    mean = 1.0 if case == LONG else 0.02
    rate = 0.5 * 4 / mean
    queue = f"{ShortestQueue.__module__}:{ShortestQueue.__qualname__}"
    policies = {"round-robin": "round-robin", "shortest queue": queue} | {one: one for one in OURS}
    is_slow = case == SLOW
    return Scenario.model_validate(
        {
            "name": "els",
            "question": "Which policy avoids the worker in trouble?",
            "baseline": "round-robin",
            "home_region": "here",
            "timeout": 3600.0,
            "balancer": BARE,
            "load": (
                {"mode": "closed", "batch": CLIENTS, "requests": REQUESTS}
                if is_slow
                else {"mode": "open", "rate": rate, "duration": REQUESTS / rate}
            ),
            "regions": [
                {
                    "name": "here",
                    "workers": 4,
                    "rtt": 0.0,
                    "service": SERVICES[case],
                    "speed": [0.1, 1.0, 1.0, 1.0] if is_slow else [],
                }
            ],
            "events": [] if is_slow else [{"at": 0.0, "target": "here-0", "kind": "fail", "value": 0.9}],
            "entries": [{"label": label, "policy": policy} for label, policy in policies.items()],
        }
    )


class Els(SimulatedReproduction):
    """Seconds or shares of failed requests, by case and policy, each a list with a value per seed."""

    name = "els"
    document = Publication(
        "ELS: a latency-based load balancer, part 1 and 2",
        "Lukáš Poláček, Spotify Engineering, 2015",
        "https://engineering.atspotify.com/2015/12/els-part-1/",
    )
    summary = "One of four workers ten times slower, or failing 90 % of its requests at once; simulated."
    duration = "a few seconds"

    def __init__(self, is_quick: bool) -> None:
        self._seeds = 4 if is_quick else 20
        self._found: dict[str, dict[str, list[float]]] = {}

    def setup(self) -> str:
        return (
            f"Simulated: four workers, {REQUESTS} requests, {self._seeds} seeds, no retries, no ejection. Slow: "
            f"{CLIENTS} at once; failing: half of the capacity is offered.\n"
        )

    def runs(self, seed: int) -> Iterator[str]:
        for case in SERVICES:
            yield case
            scenario = scenario_of(case)
            found: dict[str, list[float]] = {entry.label: [] for entry in scenario.entries}
            for entry in scenario.entries:
                for number in range(self._seeds):
                    run = simulated(scenario, entry, seed + number)
                    found[entry.label].append(run.span if case == SLOW else float((~run.ok).mean()))
            self._found[case] = found

    def means(self, case: str) -> dict[str, Interval]:
        """Mean and interval by policy."""
        return {label: mean_of(values) for label, values in self._found.get(case, {}).items()}

    def verdicts(self) -> list[BoundVerdict]:
        if len(self._found) < len(SERVICES):
            return []
        slow, failing, long = self._found[SLOW], self._found[FAILING], self._found[LONG]
        ratio = ratio_of(ratios(slow, "round-robin", "shortest queue"))
        more = ratio_of(ratios(failing, "shortest queue", "round-robin"))
        there = SOURCE_FAILED["shortest queue"] / SOURCE_FAILED["round-robin"]
        robin, queue = self.means(FAILING)["round-robin"][0], self.means(FAILING)["shortest queue"][0]
        found = [
            BoundVerdict(
                "one worker ten times slower: round-robin takes longer than JSQ",
                "245 s and 80 s, 3.1 ×",
                ratio[1] > RATIO,
                written(ratio, lambda value: f"{value:.1f} ×"),
            ),
            BoundVerdict(
                "one worker fails 90 % at once: JSQ fails more requests than round-robin",
                f"11 and 6 of 27, 41 % and 22 %, {there:.1f} ×",
                more[1] > 1.0,
                f"{queue:.0%} and {robin:.0%}, {written(more, lambda value: f'{value:.1f} ×')}",
            ),
        ]
        for text, values in (("20 ms", failing), ("1 s", long)):
            shares = {one: ratio_of(ratios(values, one, "round-robin")) for one in ("peak-ewma", "steelyard")}
            here = ", ".join(
                f"{one} {written(share, lambda value: f'{value:.2f} ×')}" for one, share in shares.items()
            )
            found.append(
                BoundVerdict(
                    f"latency and failures weighed: fewer fail than with round-robin, service {text}",
                    "no figure",
                    all(share[2] < 1.0 for share in shares.values()),
                    here,
                )
            )
        return found

    def tables(self) -> list[Table]:
        slow, failing, long = (self.means(case) for case in (SLOW, FAILING, LONG))
        rows = [
            (
                label,
                written(slow[label], lambda value: f"{value:.2f}"),
                written(failing[label], lambda value: f"{value:.1%}"),
                written(long[label], lambda value: f"{value:.1%}"),
            )
            for label in slow
        ]
        heads = ("policy", "slow worker, s", "failed, 20 ms", "failed, 1 s")
        return [plain_table(heads, rows, title="one of four workers in trouble: mean and 95 % interval")]

    def figure(self) -> Figure | None:
        return els_figure({case: self.means(case) for case in self._found}) if self.verdicts() else None

    def results(self) -> dict[str, Any]:
        return {"seeds": self._seeds, "found": self._found}


def ratios(found: dict[str, list[float]], above: str, below: str) -> list[float]:
    """Ratio of two policies, seed by seed."""
    return [a / b for a, b in zip(found[above], found[below], strict=True)]


@mpl.rc_context(STYLE)
def els_figure(means: dict[str, dict[str, Interval]]) -> Figure:
    """Bars of time and of failed requests by policy; strokes are the source's, its time scaled to our round-robin."""
    figure, axes = canvas.blank(3.4, 1, len(means))
    for panel, (case, found) in zip(axes, means.items(), strict=True):
        labels = list(found)[::-1]
        unit = 1.0 if case == SLOW else 100.0
        for at, label in enumerate(labels):
            mean, low, high = (unit * value for value in found[label])
            expected = None
            if case == SLOW and label in SOURCE_SLOW:
                expected = SOURCE_SLOW[label] / SOURCE_SLOW["round-robin"] * found["round-robin"][0]
            elif case != SLOW and label in SOURCE_FAILED:
                expected = 100 * SOURCE_FAILED[label] / SOURCE_REQUESTS
            colour = GOOD if label in OURS else BAD
            bar(panel, at, mean, f"{mean:.1f}", colour, interval=(low, high), expected=expected)
        label_bars(panel, labels, "seconds" if case == SLOW else "% failed")
        panel.set_title(f"one worker {case}", fontweight="bold")
    return figure
