"""Campaigns of equal entries, in which every verdict is false, and campaigns with one planted difference.

Plan, statistics and verdict are those of real campaigns; only the runs are made in memory. A difference is planted
after the run by multiplying every latency of one entry, so it is known exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.calibration.methods import SeededMethod
from experiments.results.directory import plan
from experiments.run_data import Run
from experiments.scenario.scenario import Scenario
from experiments.simulator.run import Simulate
from experiments.stats.run_summary import RunSummary, summarise_run
from experiments.verdict.contest import contest_of
from experiments.verdict.evidence import compared

STRETCHED = "b"
"""Entry that is made slower where a difference is planted."""

RANKED = ("ahead", "behind")


@dataclass(frozen=True, slots=True)
class CampaignSummaries:
    """Summaries of all runs, unchanged and with one entry stretched; `planted` is empty without a difference."""

    scenario: Scenario
    plain: tuple[RunSummary, ...]
    planted: tuple[RunSummary, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """Verdict on one campaign, in the scenario's own measure.

    `claims` are labels ranked ahead or behind, `others` those ranked in another measure only; `standing` is that of
    `STRETCHED`.
    """

    claims: tuple[str, ...]
    others: tuple[str, ...]
    standing: str


def made(simulate: Simulate, scenario: Scenario, planted: float | None, seed: int) -> CampaignSummaries:
    """Run one campaign; `planted` is the factor for the latencies of `STRETCHED`."""
    scenario = scenario.model_copy(update={"seed": seed})
    plain, changed = [], []
    for planned in plan(scenario):
        entry = scenario.entry(planned.label)
        run = simulate(scenario, entry, planned.block, planned.order, planned.seed)
        plain.append(summarise_run(run, scenario.slo))
        if planted is not None:
            is_it = planned.label == STRETCHED
            changed.append(summarise_run(stretched(run, planted), scenario.slo) if is_it else plain[-1])
    return CampaignSummaries(scenario, tuple(plain), tuple(changed))


def stretched(run: Run, factor: float) -> Run:
    """The run with every latency, and so each percentile, multiplied by `factor`."""
    due = run.samples.scheduled_at
    return Run(run.facts, replace(run.samples, ended_at=due + factor * run.samples.latency))


def many(
    simulate: Simulate, scenario: Scenario, planted: float | None, seeds: range, jobs: int
) -> Iterator[CampaignSummaries]:
    """One campaign for each seed, in order, `jobs` in parallel."""
    make = partial(made, simulate, scenario, planted)
    if jobs == 1:
        yield from map(make, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        try:
            yield from pool.map(make, seeds)
        finally:  # after an interruption, campaigns that have not begun do not begin
            pool.shutdown(cancel_futures=True)


def found(scenario: Scenario, runs: tuple[RunSummary, ...], blocks: int, method: SeededMethod) -> Finding:
    """Verdict on the first `blocks` blocks."""
    kept = tuple(run for run in runs if run.block < blocks)
    contest = contest_of(scenario, "measured", kept)
    # of any length: the method is tested
    contest = replace(contest, has_tail=True, method=lambda logs: method(logs, scenario.seed))
    comparisons, _ = compared(contest, kept)
    ranked = [item for item in comparisons if item.standing in RANKED]
    claims = tuple(item.label for item in ranked if item.measure == scenario.measure)
    others = tuple(dict.fromkeys(item.label for item in ranked if item.label not in claims))
    own = next(c for c in comparisons if c.measure == scenario.measure and c.label == STRETCHED)
    return Finding(claims, others, own.standing)
