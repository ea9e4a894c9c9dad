"""Contest of a campaign, of a load or of a live evaluation: which labels compete, and by what measure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from experiments.run_data import WorldName
from experiments.scenario.scenario import Measure, Scenario, may_win
from experiments.scenario.service import LiveScenario, ServiceScenario
from experiments.stats.estimates import Method, anytime_student, paired_student
from experiments.stats.measures import LEAST_BEYOND, has_few_beyond
from experiments.stats.run_summary import RunSummary, counted
from experiments.verdict.phrases import SUBJECTS, TOKEN_SUBJECTS, units_of

MEASURES: tuple[Measure, ...] = ("throughput", "p99", "mean")
LIVE_MEASURES = ("p99", "p50", "mean")
"""Measures of a live evaluation: clients decide how many requests there are."""

Kind = Literal["measured", "simulated", "service", "live"]


@dataclass(frozen=True, slots=True)
class Contest:
    """`measure` decides; `wanted` is the one asked for. `labels` ran or should have; those in `able` may win.

    `control` is the A/A pair (original, repetition). `deadline` in seconds is what a failed request counts as, None
    where latencies are those of successes only. `is_open` if the load is an open loop, `has_tail` if all runs have the
    requests that a p99 takes. `method` gives the intervals. `is_inference`: latencies are times to the first token.
    `planned` is the number of blocks of the plan.
    """

    kind: Kind
    measure: Measure
    wanted: Measure
    baseline: str
    labels: tuple[str, ...]
    able: tuple[str, ...]
    control: tuple[str, str] | None = None
    deadline: float | None = None
    is_open: bool = True
    has_tail: bool = True
    method: Method = paired_student
    is_inference: bool = False
    planned: int = 0

    def unit(self, measure: str) -> str:
        """Name of a measure in a sentence."""
        return units_of(self.is_inference)[measure]

    def subject(self, measure: str) -> str:
        """Beginning of a sentence about a measure that `difference` continues."""
        return (SUBJECTS | TOKEN_SUBJECTS if self.is_inference else SUBJECTS)[measure]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """(label, baseline) of every entry that is compared: not of the repetition of the A/A pair."""
        alone = (self.baseline, *(self.control[1:] if self.control else ()))
        return [(label, self.baseline) for label in self.labels if label not in alone]

    @property
    def is_virtual(self) -> bool:
        """Whether the runs are in virtual time, which knows no bias of a machine."""
        return self.kind == "simulated"

    @property
    def measures(self) -> tuple[str, ...]:
        """Measures that are compared."""
        return measures_of(self.kind == "live", self.has_tail)


def measures_of(is_live: bool, has_tail: bool) -> tuple[str, ...]:
    """Measures that are compared: no p99 where runs have too few requests for it."""
    known = LIVE_MEASURES if is_live else MEASURES
    return tuple(one for one in known if one != "p99" or has_tail)


def supports_tail(runs: Sequence[RunSummary]) -> bool:
    """Whether every run that counts has the requests that a p99 takes (`LEAST_BEYOND` beyond it), as in every table."""
    return not any(has_few_beyond(run.requests, 99, LEAST_BEYOND) for run in counted(runs))


def deciding(wanted: Measure, has_tail: bool) -> Measure:
    """The measure that decides: the one asked for, or the mean where there are too few requests for a p99."""
    return "mean" if wanted == "p99" and not has_tail else wanted


def contest_of(scenario: Scenario, world: WorldName, runs: Sequence[RunSummary]) -> Contest:
    measured = {run.label for run in runs}
    is_live = isinstance(scenario, LiveScenario)
    load, has_tail = scenario.load_of(scenario.entry(scenario.baseline)), supports_tail(runs)
    return Contest(
        kind="live" if is_live else "service" if isinstance(scenario, ServiceScenario) else world,
        measure=deciding(scenario.measure, has_tail),
        wanted=scenario.measure,
        baseline=scenario.baseline,
        labels=tuple(entry.label for entry in scenario.entries if entry.label in measured),
        able=tuple(
            entry.label for entry in scenario.entries if may_win(entry) and scenario.load_of(entry) == load
        ),
        control=scenario.control_pair,
        deadline=scenario.timeout * scenario.time_scale,
        is_open=scenario.load.mode == "open",
        has_tail=has_tail,
        method=anytime_student if is_live else paired_student,
        is_inference=scenario.inference is not None,
        planned=scenario.blocks,
    )
