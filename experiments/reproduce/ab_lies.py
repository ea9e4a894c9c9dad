"""`experiments reproduce ab-lies`: a split by request over shared workers, beside the effect on all requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes

from experiments.platform.session import BoundVerdict
from experiments.reproduce.charts import interval_bars
from experiments.reproduce.reproduction import Publication, all_met, figure_verdict, judged, written
from experiments.reproduce.simulated import SimulatedReproduction, SimulatedRun, scenario_with, simulated
from experiments.scenario.scenario import Scenario
from experiments.stats.comparison import Interval, average
from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.facts import Outcome, RequestFacts
from policies.policy import Policy, PolicyMaker


class Split:
    """Control or treatment for each request, drawn with probability `share` of treatment.

    With `every` > 0 a switchback instead: one of both for `every` seconds, each once in two intervals, in random order.
    Both learn from all responses, as they would behind one balancer. `arms` has an item per pick, true for treatment.
    """

    def __init__(
        self,
        rng: Random,
        *,
        control: PolicyMaker,
        treatment: PolicyMaker,
        share: float = 0.5,
        every: float = 0.0,
    ) -> None:
        self._policies: tuple[Policy, Policy] = (control(rng), treatment(rng))
        self._rng = rng
        self._share = share
        self._every = every
        self._firsts: list[bool] = []
        self.arms: list[bool] = []

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick by the treated or the control policy."""
        is_treated = self._arm(now)
        self.arms.append(is_treated)
        return self._policies[is_treated].pick(facts, available, now)

    def observe(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        self._tell("observe", state, outcome, now)

    def members_changed(self, states: list[EndpointState], now: float) -> None:
        self._tell("members_changed", states, now)

    def tick(self, now: float) -> None:
        self._tell("tick", now)

    def _arm(self, now: float) -> bool:
        if not self._every:
            return self._rng.random() < self._share
        interval = int(now / self._every)
        while len(self._firsts) <= interval // 2:
            self._firsts.append(self._rng.random() < 0.5)
        return self._firsts[interval // 2] != bool(interval % 2)

    def _tell(self, hook: str, *facts: object) -> None:
        for policy in self._policies:
            if hasattr(policy, hook):
                getattr(policy, hook)(*facts)


TRUTH, FEW, HALF, SWITCHBACK = "all of each", "split 10 %", "split 50 %", "switchback"
SPLIT = f"{Split.__module__}:{Split.__qualname__}"
INTERVAL, CARRY_OVER = 10.0, 3.0
"""Seconds of a switchback's intervals, and those at the beginning of each that are left out."""

SETTLING = 5.0
SERVICE = "exponential:20ms"
PERCENT = "{:+.0%}".format


@dataclass(frozen=True, slots=True)
class AbCase:
    """A treatment and its control, in regions by round trip in seconds, four workers each."""

    name: str
    control: Any
    treatment: Any
    rtts: dict[str, float]
    rate: float


NEAREST = AbCase(
    "nearest region only",
    {"name": "region-round-robin"},
    {"name": "single-region", "region": "near", "inner": "round-robin"},
    {"near": 0.005, "far": 0.06},
    175.0,
)
SHORTEST = AbCase(
    "least in flight", "random", {"name": "least-in-flight", "choices": 0}, {"one": 0.0, "two": 0.0}, 340.0
)
CASES = {case.name: case for case in (NEAREST, SHORTEST)}


def scenario_of(case: AbCase, duration: float) -> Scenario:
    """Control and treatment alone, both split by request, and both in turns."""
    pair = {"name": SPLIT, "control": case.control, "treatment": case.treatment}
    policies = {
        "control": case.control,
        "treatment": case.treatment,
        FEW: pair | {"share": 0.1},
        HALF: pair | {"share": 0.5},
        SWITCHBACK: pair | {"every": INTERVAL},
    }
    regions = [
        {"name": name, "workers": 4, "rtt": rtt, "service": SERVICE, "queue": 1_000_000}
        for name, rtt in case.rtts.items()
    ]
    load = {"mode": "open", "rate": case.rate, "duration": duration}
    question = "Which experiment measures the effect of a policy?"
    return scenario_with("ab-lies", question, load, regions, policies)


class AbLies(SimulatedReproduction):
    """Relative effects on the mean latency by case and design, each a list with a value per seed."""

    name = "ab-lies"
    document = Publication(
        "Unbiased Experiments in Congested Networks",
        "Bruce Spang, Veronica Hannan, Shravya Kunamalla, Te-Yuan Huang, Nick McKeown, Ramesh Johari, IMC 2021",
        "https://doi.org/10.1145/3487552.3487851",
    )
    summary = (
        "An A/B test by request over shared workers, beside the true effect and a switchback; simulated."
    )
    duration = "a minute"
    height = 2.8
    what, title = "design", "change of the mean latency, 95 % interval"
    forms = (PERCENT, PERCENT)
    cases = tuple(CASES)
    full, quick = (10, 120.0), (4, 80.0)

    def setup(self) -> str:
        return (
            f"Simulated: eight workers with one slot, {self._seeds} seeds, {self._duration:g} s. Effect of a treatment "
            "on the mean latency: in a run of each (the truth), in splits by request, in a switchback of "
            f"{INTERVAL:g} s.\n"
        )

    def simulate(self, case: str, seed: int) -> dict[str, float]:
        scenario = scenario_of(CASES[case], SETTLING + self._duration)
        runs = {entry.label: simulated(scenario, entry, seed, SETTLING) for entry in scenario.entries}
        return {
            TRUTH: float(runs["treatment"].latency.mean() / runs["control"].latency.mean() - 1),
            FEW: effect(runs[FEW]),
            HALF: effect(runs[HALF]),
            SWITCHBACK: effect(runs[SWITCHBACK], INTERVAL),
        }

    def verdicts(self) -> Iterator[BoundVerdict]:
        if len(self._found) < len(CASES):
            return
        sign, size = self.means(NEAREST.name), self.means(SHORTEST.name)
        nearest, shortest = self._found[NEAREST.name], self._found[SHORTEST.name]
        less = average([few - half for few, half in zip(nearest[FEW], nearest[HALF], strict=True)])
        ratio = average([half / truth for half, truth in zip(shortest[HALF], shortest[TRUTH], strict=True)])
        yield BoundVerdict(
            f"{NEAREST.name}: a split of 10 % mistakes the direction of the change",
            "lab: few flows 150 % higher throughput, all flows none",
            all_met([judged(sign[FEW], most=0.0), judged(sign[TRUTH], least=0.0)]),
            f"{written(sign[FEW], PERCENT)} latency, truth {written(sign[TRUTH], PERCENT)}",
        )
        yield figure_verdict(
            f"{NEAREST.name}: the result of a split depends on the share that is treated",
            "lab: few flows +150 %, most flows −75 %",
            less,
            f"{PERCENT(sign[FEW].ratio)} at 10 %, {PERCENT(sign[HALF].ratio)} at 50 %",
            most=0.0,
        )
        yield figure_verdict(
            f"{SHORTEST.name}: a split of 50 % overestimates the size of the effect",
            "Netflix: sizes are overestimated",
            ratio,
            f"{written(size[HALF], PERCENT)}, truth {written(size[TRUTH], PERCENT)}, ratio "
            f"{written(ratio, '{:.2f}'.format)}",
            least=1.0,
        )
        yield from map(self._switchback_claim, CASES)

    def _switchback_claim(self, case: str) -> BoundVerdict:
        found, truth = self._found[case], self._found[case][TRUTH]
        errors = {one: np.subtract(found[one], truth) for one in (HALF, SWITCHBACK)}
        nearer = average(list(abs(errors[HALF]) / 2 - abs(errors[SWITCHBACK])))
        error = written(average(list(errors[SWITCHBACK])), PERCENT)
        return figure_verdict(
            f"{case}: a switchback is nearer to the truth than a split of 50 %",
            "proposed; no figure",
            nearer,
            f"{written(self.means(case)[SWITCHBACK], PERCENT)}, error {error}",
            least=0.0,
        )

    def draw(self, axes: Axes, case: str, found: Mapping[str, Interval]) -> None:
        """Strokes are the truth; the source gives no figure of latency."""
        expected = dict.fromkeys(found, 100 * found[TRUTH].ratio)
        label = "change of the mean latency, %; stroke: the truth"
        interval_bars(axes, found, label, "{:+.0f} %".format, (FEW, HALF), expected, 100.0)
        axes.axvline(0, color="grey", linewidth=0.8)


def effect(run: SimulatedRun, every: float = 0.0) -> float:
    """Relative difference in mean latency of treated and other requests, without the beginning of each interval."""
    arms = np.array(cast(Split, run.policy).arms[-len(run.latency) :])
    counts = run.due % every >= CARRY_OVER if every else np.ones(len(arms), dtype=bool)
    return float(run.latency[arms & counts].mean() / run.latency[~arms & counts].mean() - 1)
