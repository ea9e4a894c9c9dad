"""Summary of a campaign: every number that a report shows, computed once.

A pure function of the results, so the same files give the same bytes. Times in measured seconds, shares from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from experiments.results.directory import Results, believable
from experiments.results.policy_files import PolicyFile
from experiments.results.verdict import Evidence, Verdict, conclude
from experiments.results.winner import candidates, choose, losing_more
from experiments.scenario.scenario import Entry, Scenario
from experiments.scenario.thresholds import Judgement, judge, parse_threshold
from experiments.stats import measures
from experiments.stats.comparison import Comparison, Interval, compare
from experiments.stats.estimates import Method, paired_student
from experiments.stats.run_summary import RunSummary, summarise_run, values_per_block
from experiments.stats.samples import WorldName

MEASURES = ("throughput", "p99", "mean")


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
    """Summary of a campaign: the data of every output."""

    world: WorldName
    scenario: Scenario
    command: str
    started_at: str
    versions: dict[str, str]
    policy_files: tuple[PolicyFile, ...]
    machine: str
    blocks: int
    missing_runs: int
    verdict: Verdict
    entries: tuple[EntrySummary, ...]
    comparisons: tuple[Comparison, ...]
    noise_floor: dict[str, Interval]
    thresholds: tuple[Judgement, ...]
    runs: tuple[RunSummary, ...]

    @property
    def has_invalid(self) -> bool:
        return any(not run.valid for run in self.runs)

    @property
    def failed_thresholds(self) -> tuple[Judgement, ...]:
        return tuple(judgement for judgement in self.thresholds if not judgement.passed)


Labelled = TypeVar("Labelled", EntrySummary, Comparison)


def summarise(results: Results) -> Summary:
    """Compute the summary of a results directory."""
    campaign, scenario = results.campaign, results.scenario
    runs = tuple(summarise_run(run) for run in results.runs)
    comparisons, floors = compared(scenario, runs)
    verdict = conclude(evidence(scenario, campaign.world, runs, comparisons, floors.get(scenario.measure)))
    labels = [label for label, _ in verdict.order]
    entries = [summarise_entry(results, entry) for entry in results.entries()]
    return Summary(
        world=campaign.world,
        scenario=scenario,
        command=campaign.command,
        started_at=campaign.started_at,
        versions=campaign.versions,
        policy_files=campaign.policy_files,
        machine=campaign.machine,
        blocks=len({run.facts.block for run in results.runs if run.facts.is_valid}),
        missing_runs=results.missing,
        verdict=verdict,
        entries=tuple(best_first(entries, labels)),
        comparisons=tuple(
            sorted(
                best_first(comparisons, labels),
                key=lambda one: (one.measure != scenario.measure, one.measure == "throughput", one.measure),
            )
        ),
        noise_floor=floors,
        thresholds=judgements(results),
        runs=runs,
    )


def evidence(
    scenario: Scenario,
    world: WorldName,
    runs: Sequence[RunSummary],
    comparisons: Sequence[Comparison],
    floor: Interval | None,
) -> Evidence:
    """What the verdict is reached from, in the scenario's measure."""
    order = ranking(scenario, runs)
    able = candidates(scenario, order)
    ours = [comparison for comparison in comparisons if comparison.measure == scenario.measure]
    others = [
        one
        for one in comparisons
        if one.measure not in (scenario.measure, "throughput") and one.label in able
    ]
    reasons = dict.fromkeys(reason for run in runs for reason in run.invalid_reasons)
    return Evidence(
        scenario=scenario,
        world=world,
        order=order,
        comparisons=best_first(ours, [label for label, _ in order]),
        floor=floor,
        choice=choose(scenario, order, ours, floor, runs),
        explaining=others,
        failed={label: failures_of(label, runs) for label, _ in order},
        losing=losing_more(scenario, runs),
        invalid=tuple(reasons),
    )


def best_first(found: Sequence[Labelled], labels: Sequence[str]) -> list[Labelled]:
    """Entries or comparisons in the order of `labels`, followed by those of other entries."""
    place = {label: index for index, label in enumerate(labels)}
    return sorted(found, key=lambda one: place.get(one.label, len(place)))


def failures_of(label: str, runs: Sequence[RunSummary]) -> tuple[int, int]:
    """Failed and all requests of an entry, over its valid runs."""
    mine = [run for run in runs if run.label == label and run.valid]
    return sum(run.ko for run in mine), sum(run.requests for run in mine)


def summarise_entry(results: Results, entry: Entry) -> EntrySummary:
    """Pool the entry's valid runs, or all runs if none is valid."""
    runs = results.runs_of(entry.label)
    kept = believable(runs)
    slo = results.scenario.slo * results.scenario.time_scale
    mapped = np.concatenate([measures.deadline_mapped(run) for run in kept])
    reasons = dict.fromkeys(reason for run in runs for reason in run.facts.invalid_reasons)
    return EntrySummary(
        label=entry.label,
        policy=entry.policy.model_dump(),
        load=describe_load(results.scenario, entry),
        runs=len(runs),
        valid_runs=sum(run.facts.is_valid for run in runs),
        valid=any(run.facts.is_valid for run in runs),
        invalid_reasons=tuple(reasons),
        table=measures.statistics_row(kept),
        latency=measures.quantiles(measures.success_latency(kept)),
        latency_deadline_mapped=measures.quantiles(mapped),
        service_time=measures.quantiles(measures.success_service_time(kept)),
        mean_span=float(np.mean([run.samples.span for run in kept])),
        goodput=measures.goodput(kept, slo),
        errors=measures.errors_by_kind(kept),
        share_per_worker=measures.share_per_worker(kept),
    )


def describe_load(scenario: Scenario, entry: Entry) -> str:
    """Describe the load, for example `batch 100` or `180 requests/s, poisson`."""
    return scenario.load_of(entry).in_words


def compared(
    scenario: Scenario, runs: Sequence[RunSummary], method: Method = paired_student
) -> tuple[tuple[Comparison, ...], dict[str, Interval]]:
    """Every entry compared with the baseline in every measure, and the A/A interval of each measure."""
    found, floors = list[Comparison](), dict[str, Interval]()
    for measure in MEASURES:
        values = values_per_block(labels_of(scenario, runs), runs, measure)
        comparisons, floor = compare(
            measure, values, scenario.baseline, scenario.control_pair, scenario.seed, method
        )
        found += comparisons
        if floor is not None and floor.blocks:
            floors[measure] = floor
    return tuple(found), floors


def labels_of(scenario: Scenario, runs: Sequence[RunSummary]) -> list[str]:
    """Labels that have runs, in the scenario's order."""
    measured = {run.label for run in runs}
    return [entry.label for entry in scenario.entries if entry.label in measured]


def ranking(scenario: Scenario, runs: Sequence[RunSummary]) -> list[tuple[str, float]]:
    """(label, geometric mean of the scenario's measure over valid blocks), best first, without the A/A control."""
    control = scenario.control_pair[1] if scenario.control_pair else None
    values = values_per_block(labels_of(scenario, runs), runs, scenario.measure)
    means = [
        (label, float(np.exp(np.mean(np.log(list(blocks.values()))))))
        for label, blocks in values.items()
        if blocks and label != control and min(blocks.values()) > 0
    ]
    return sorted(means, key=lambda pair: pair[1], reverse=scenario.measure == "throughput")


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
        for judged in [runs if threshold.measure == "errors" else believable(runs)]
    )
