"""Summary of a campaign: every number that a report shows, computed once.

A pure function of the results, so the same files give the same bytes. Times in measured seconds, shares from 0 to 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.results.directory import PolicyFile, Results, attempt_of, believable
from experiments.run_data import Run, WorldName, load_run
from experiments.scenario.scenario import Entry, Measure, Scenario
from experiments.scenario.thresholds import SECONDS, Threshold, parse_threshold
from experiments.stats import measures
from experiments.stats.comparison import Comparison, Interval
from experiments.stats.measures import deadline_mapped, goodput, percentile, throughput
from experiments.stats.run_summary import RunSummary, counted, summarise_run
from experiments.verdict.advice import remedy
from experiments.verdict.contest import contest_of
from experiments.verdict.evidence import evidence, places_in
from experiments.verdict.phrases import grouped_digits
from experiments.verdict.verdict import Verdict, conclude


@dataclass(frozen=True, slots=True)
class EntrySummary:
    """One entry over its valid runs, or all runs if none is valid; then `valid` is false."""

    label: str
    policy: dict[str, Any]
    load: str
    runs: int
    valid_runs: int
    valid: bool
    invalid_reasons: tuple[str, ...]
    table: measures.StatisticsRow
    latency: tuple[measures.Quantile, ...]
    latency_deadline_mapped: tuple[measures.Quantile, ...]
    service_time: tuple[measures.Quantile, ...]
    mean_span: float
    goodput: float
    errors: dict[str, int]
    share_per_worker: dict[str, float]


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary of a campaign: the data of every output. `measure` decides; see `contest.deciding`."""

    world: WorldName
    scenario: Scenario
    command: str
    started_at: str
    versions: dict[str, str]
    policy_files: tuple[PolicyFile, ...]
    machine: str
    blocks: int
    missing_runs: int
    measure: Measure
    verdict: Verdict
    entries: tuple[EntrySummary, ...]
    comparisons: tuple[Comparison, ...]
    noise_floor: dict[str, Interval]
    thresholds: tuple[Judgement, ...]
    runs: tuple[RunSummary, ...]
    set_aside: tuple[RunSummary, ...]

    @property
    def has_invalid(self) -> bool:
        return any(not run.valid for run in self.runs)

    @property
    def unmet_thresholds(self) -> tuple[Judgement, ...]:
        """Thresholds that failed or could not be judged: neither may end in exit code 0."""
        return tuple(judgement for judgement in self.thresholds if not judgement.passed)


def summarise(results: Results) -> Summary:
    campaign, scenario = results.campaign, results.scenario
    slo = scenario.measured_slo
    runs = tuple(summarise_run(run, slo, is_replay=scenario.load.is_replay) for run in results.runs)
    repeated = tuple(summarise_run(load_run(file), slo, attempt_of(file)) for file in results.set_aside)
    every = (*runs, *repeated)
    contest = contest_of(scenario, campaign.world, every)
    found = evidence(contest, every)
    verdict, place = conclude(found), places_in(found.order)
    entries = [summarise_entry(results, entry) for entry in results.entries()]
    return Summary(
        world=campaign.world,
        scenario=scenario,
        command=campaign.command,
        started_at=campaign.started_at,
        versions=campaign.versions,
        policy_files=campaign.policy_files,
        machine=campaign.machine,
        blocks=len({run.block for run in counted(runs)}),
        missing_runs=results.missing,
        measure=contest.measure,
        verdict=verdict,
        entries=tuple(sorted(entries, key=lambda one: place(one.label))),
        comparisons=tuple(
            sorted(
                found.compared,
                key=lambda one: (
                    *(one.measure != contest.measure, one.measure == "throughput"),
                    *(one.measure, place(one.label)),
                ),
            )
        ),
        noise_floor=found.floors,
        thresholds=judgements(results),
        runs=runs,
        set_aside=repeated,
    )


def invalid_advice(summary: Summary) -> str:
    """Why runs are invalid and what helps; empty if all are valid."""
    reasons = list(dict.fromkeys(reason for run in summary.runs for reason in run.invalid_reasons))
    return remedy(reasons, summary.scenario.load.mode == "open") if reasons else ""


def summarise_entry(results: Results, entry: Entry) -> EntrySummary:
    """Pool the entry's valid runs, or all runs if none is valid."""
    runs = results.runs_of(entry.label)
    kept = believable(results, entry.label)
    mapped = np.concatenate([measures.deadline_mapped(run) for run in kept])
    reasons = dict.fromkeys(reason for run in runs for reason in run.facts.invalid_reasons)
    return EntrySummary(
        label=entry.label,
        policy=entry.policy.model_dump(),
        load=results.scenario.load_in_words(entry),
        runs=len(runs),
        valid_runs=sum(run.facts.is_valid for run in runs),
        valid=any(run.facts.is_valid for run in runs),
        invalid_reasons=tuple(reasons),
        table=measures.statistics_row(kept),
        latency=measures.quantiles(measures.success_latency(kept)),
        latency_deadline_mapped=measures.quantiles(mapped),
        service_time=measures.quantiles(measures.success_service_time(kept)),
        mean_span=float(np.mean([run.span for run in kept])),
        goodput=measures.goodput(kept, results.scenario.measured_slo),
        errors=measures.errors_by_kind(kept),
        share_per_worker=measures.share_per_worker(kept),
    )


def judgements(results: Results) -> tuple[Judgement, ...]:
    """Judge every threshold for every entry that it applies to.

    Errors are counted over all runs: an invalid run may report wrong times, but its failures are real.
    """
    scenario = results.scenario
    return tuple(
        judge(threshold, entry.label, judged, scenario.slo, scenario.time_scale)
        for entry in results.entries()
        for threshold in map(parse_threshold, (*scenario.thresholds, *entry.thresholds))
        for runs in [results.runs_of(entry.label)]
        for judged in [runs if threshold.measure == "errors" else believable(results, entry.label)]
    )


@dataclass(frozen=True, slots=True)
class Judgement:
    """Result of a threshold for one entry; `message` states by how much it was met or missed.

    `passed` is None where a percentile has too few requests, as reports do not show it then either.
    """

    label: str
    threshold: str
    passed: bool | None
    message: str


def judge(threshold: Threshold, label: str, runs: Sequence[Run], slo: float, time_scale: float) -> Judgement:
    """Judge a threshold on the pooled runs of one entry; `slo` in scenario seconds."""
    few = too_few(threshold.measure, measures.counts(runs)[0])
    if few:
        return Judgement(label, threshold.text, None, few)
    value = measured(threshold.measure, runs, slo * time_scale)
    stretch = {"p": time_scale, "m": time_scale, "t": 1 / time_scale}.get(threshold.measure[0], 1.0)
    bound = threshold.bound * stretch
    passed = value < bound if threshold.sign == "<" else value > bound
    message = explain(threshold, value, bound, passed)
    if stretch != 1:
        message += f"; at time scale {time_scale:g} the bound is {in_unit(bound, threshold.unit)}"
    return Judgement(label, threshold.text, passed, message)


def too_few(measure: str, requests: int) -> str:
    """Explanation such as `500 requests, a p99 takes 1 000`; empty if the measure can be judged."""
    if not measure.startswith("p"):
        return ""
    least = math.ceil(round(100 * measures.LEAST_BEYOND / (100 - float(measure[1:])), 6))
    words = f"{grouped_digits(requests)} requests, a {measure} takes {grouped_digits(least)}"
    return words if requests < least else ""


def measured(measure: str, runs: Sequence[Run], slo: float) -> float:
    """Value of a measure over pooled runs, in seconds, per second, or as a fraction."""
    if measure == "throughput":
        return throughput(runs)
    if measure == "goodput":
        return goodput(runs, slo)
    if measure == "errors":
        requests = sum(run.samples.requests for run in runs)
        return 1.0 - sum(run.samples.successes for run in runs) / requests
    latency = np.concatenate([deadline_mapped(run) for run in runs])
    if measure == "mean":
        return float(latency.mean())
    return percentile(latency, 100.0 if measure == "max" else float(measure[1:]))


def explain(threshold: Threshold, value: float, bound: float, passed: bool) -> str:
    """Explanation such as `p99 is 912 ms, missed by 112 ms`."""
    shown, gap = in_unit(value, threshold.unit), in_unit(abs(value - bound), threshold.unit)
    return f"{threshold.measure} is {shown}, {'met' if passed else 'missed'} by {gap}"


def in_unit(value: float, unit: str) -> str:
    """Format `value` in the threshold's unit with at least three significant digits."""
    factor = SECONDS.get(unit, 0.01 if unit == "%" else 1.0)
    scaled = round(value / factor, 6)
    digits = 0 if abs(scaled) >= 100 else 1 if abs(scaled) >= 10 else 2
    return f"{scaled:.{digits}f}{'' if unit == '/s' else ' '}{unit}"
