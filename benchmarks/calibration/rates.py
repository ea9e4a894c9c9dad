"""Campaigns of equal entries, in which every verdict is false, or with one planted difference, and the rates of false
and correct verdicts on them.

Plan, statistics and verdict are those of real campaigns; only the runs are made in memory. A difference is planted
after the run by multiplying every latency of one entry, so it is known exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from statistics import NormalDist, stdev

from benchmarks.calibration.methods import METHODS, SeededMethod
from experiments.results.directory import plan
from experiments.run_data import Run
from experiments.scenario.scenario import Scenario
from experiments.simulator.run import Simulate
from experiments.stats.estimates import CONFIDENCE
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


MOST_FALSE = 0.05
LEAST_FOUND = 0.80


@dataclass(frozen=True, slots=True)
class Rate:
    """`hits` of `total`, with Wilson's score interval (1927), which also holds near 0 and 1."""

    hits: int
    total: int

    @property
    def value(self) -> float:
        return self.hits / self.total

    @property
    def interval(self) -> tuple[float, float]:
        z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
        square, share = z * z / self.total, self.value
        middle = (share + square / 2) / (1 + square)
        reach = z / (1 + square) * math.sqrt((share * (1 - share) + square / 4) / self.total)
        return max(0.0, middle - reach), min(1.0, middle + reach)

    def __str__(self) -> str:
        """Text such as `2.5 % [1.1–5.7]`."""
        low, high = self.interval
        return f"{100 * self.value:.1f} % [{100 * low:.1f}–{100 * high:.1f}]"


@dataclass(frozen=True, slots=True)
class MethodRates:
    """Rates of one method at one size.

    `false` counts campaigns of equals with any claim in the scenario's own measure, `elsewhere` those with a claim in
    another measure only. `right` counts planted campaigns in which the stretched entry was ranked on its side, `wrong`
    those with any other false claim; both None without a planted difference. `spread` is the standard deviation over
    blocks and campaigns of log(p99 / p99), the noise of a pair.
    """

    method: str
    requests: int
    blocks: int
    spread: float
    false: Rate
    elsewhere: Rate
    right: Rate | None
    wrong: Rate | None

    @property
    def holds_level(self) -> bool:
        return self.false.value <= MOST_FALSE

    @property
    def has_power(self) -> bool | None:
        return None if self.right is None else self.right.value >= LEAST_FOUND


def outcome(
    campaigns: Sequence[CampaignSummaries], blocks: int, method: str, planted: float | None
) -> MethodRates:
    """Judge every campaign on its first `blocks` blocks."""
    chosen, total = METHODS[method], len(campaigns)
    plain = [found(c.scenario, c.plain, blocks, chosen) for c in campaigns]
    right = wrong = None
    if planted is not None:
        changed = [found(c.scenario, c.planted, blocks, chosen) for c in campaigns]
        right = Rate(sum(is_right(one, planted) for one in changed), total)
        wrong = Rate(sum(is_wrong(one, planted) for one in changed), total)
    return MethodRates(
        method=method,
        requests=campaigns[0].scenario.load.planned,
        blocks=blocks,
        spread=spread(campaigns),
        false=Rate(sum(bool(one.claims) for one in plain), total),
        elsewhere=Rate(sum(bool(one.others) for one in plain), total),
        right=right,
        wrong=wrong,
    )


def is_right(finding: Finding, planted: float) -> bool:
    """Whether the stretched entry was ranked on its side."""
    return finding.standing == ("behind" if planted > 1 else "ahead")


def is_wrong(finding: Finding, planted: float) -> bool:
    """Whether another entry was ranked, or the stretched one on the other side or called equal to the baseline."""
    other_side = "ahead" if planted > 1 else "behind"
    return finding.standing in (other_side, "practically equal") or any(
        label != STRETCHED for label in finding.claims
    )


def spread(campaigns: Sequence[CampaignSummaries]) -> float:
    """Standard deviation of log(p99 of `STRETCHED`, unstretched / p99 of the baseline) over pairs."""
    logs = []
    for campaign in campaigns:
        p99 = {(run.label, run.block): run.p99 for run in campaign.plain}
        logs += [
            math.log(value / p99[campaign.scenario.baseline, block])
            for (label, block), value in p99.items()
            if label == STRETCHED
        ]
    return stdev(logs)
