"""`experiments reproduce els`: one of four workers ten times slower, or failing nine tenths of its requests at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random

from matplotlib.axes import Axes

from experiments.platform.session import BoundVerdict
from experiments.reproduce.charts import SOURCE_STROKE, interval_bars
from experiments.reproduce.reproduction import Publication, all_met, figure_verdict, judged, ratio_of, written
from experiments.reproduce.simulated import SimulatedReproduction, scenario_with, simulated
from experiments.scenario.scenario import Scenario
from experiments.stats.comparison import Interval
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
    question, service = "Which policy avoids the worker in trouble?", SERVICES[case]
    region: dict[str, object] = {"name": "here", "workers": 4, "rtt": 0.0, "service": service}
    if case == SLOW:
        load = {"mode": "closed", "batch": CLIENTS, "requests": REQUESTS}
        return scenario_with("els", question, load, [region | {"speed": [0.1, 1.0, 1.0, 1.0]}], policies)
    failing = {"at": 0.0, "target": "here-0", "kind": "fail", "value": 0.9}
    load = {"mode": "open", "rate": rate, "duration": REQUESTS / rate}
    return scenario_with("els", question, load, [region], policies, events=[failing])


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
    height = 3.4
    title = "one of four workers in trouble: mean and 95 % interval"
    heads = ("slow worker, s", "failed, 20 ms", "failed, 1 s")
    forms = ("{:.2f}".format, "{:.1%}".format, "{:.1%}".format)
    cases = tuple(SERVICES)
    full, quick = (20, 0.0), (4, 0.0)

    def setup(self) -> str:
        return (
            f"Simulated: four workers, {REQUESTS} requests, {self._seeds} seeds, no retries, no ejection. Slow: "
            f"{CLIENTS} at once; failing: half of the capacity is offered.\n"
        )

    def simulate(self, case: str, seed: int) -> dict[str, float]:
        scenario = scenario_of(case)
        runs = {entry.label: simulated(scenario, entry, seed) for entry in scenario.entries}
        return {label: run.span if case == SLOW else float((~run.ok).mean()) for label, run in runs.items()}

    def verdicts(self) -> Iterator[BoundVerdict]:
        if len(self._found) < len(SERVICES):
            return
        slow, failing, long = (self._found[case] for case in (SLOW, FAILING, LONG))
        ratio = ratio_of(slow["round-robin"], slow["shortest queue"])
        more = ratio_of(failing["shortest queue"], failing["round-robin"])
        there = SOURCE_FAILED["shortest queue"] / SOURCE_FAILED["round-robin"]
        shares = self.means(FAILING)
        robin, queue = shares["round-robin"].ratio, shares["shortest queue"].ratio
        yield figure_verdict(
            "one worker ten times slower: round-robin takes longer than JSQ",
            "245 s and 80 s, 3.1 ×",
            ratio,
            "{:.1f} ×".format,
            least=RATIO,
        )
        yield figure_verdict(
            "one worker fails 90 % at once: JSQ fails more requests than round-robin",
            f"11 and 6 of 27, 41 % and 22 %, {there:.1f} ×",
            more,
            f"{queue:.0%} and {robin:.0%}, {written(more, '{:.1f} ×'.format)}",
            least=1.0,
        )
        for text, values in (("20 ms", failing), ("1 s", long)):
            robin_s = values["round-robin"]
            weighed = {one: ratio_of(values[one], robin_s) for one in ("peak-ewma", "steelyard")}
            yield BoundVerdict(
                f"latency and failures weighed: fewer fail than with round-robin, service {text}",
                "no figure",
                all_met(judged(share, most=1.0) for share in weighed.values()),
                ", ".join(f"{one} {written(share, '{:.2f} ×'.format)}" for one, share in weighed.items()),
            )

    def draw(self, axes: Axes, case: str, found: Mapping[str, Interval]) -> None:
        """Strokes are the source's, its time scaled to our round-robin."""
        unit, label = (
            (1.0, f"seconds; {SOURCE_STROKE}") if case == SLOW else (100.0, f"% failed; {SOURCE_STROKE}")
        )
        own = found["round-robin"].ratio / SOURCE_SLOW["round-robin"]
        source, scale = (SOURCE_SLOW, own) if case == SLOW else (SOURCE_FAILED, 100 / SOURCE_REQUESTS)
        expected = {policy: scale * value for policy, value in source.items()}
        interval_bars(axes, found, label, "{:.1f}".format, SOURCE_SLOW, expected, unit)
        axes.set_title(f"one worker {case}", fontweight="bold")
