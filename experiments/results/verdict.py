"""The verdict of a campaign in sentences.

A sentence never states more than the comparison supports. Without enough blocks, the observed order is shown without a
verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.scenario.scenario import Scenario
from experiments.stats.comparison import ENOUGH_BLOCKS, Comparison, Interval, Standing

UNITS = {"throughput": "successes per second", "p99": "p99 latency", "mean": "mean latency"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict in words: `headline` is one line, `sentences` follow it; `order` is (label, value), best first."""

    has_verdict: bool
    headline: str
    sentences: tuple[str, ...]
    order: tuple[tuple[str, float], ...]


def conclude(
    scenario: Scenario,
    order: Sequence[tuple[str, float]],
    comparisons: Sequence[Comparison],
    floor: Interval | None,
) -> Verdict:
    """Describe the results in the scenario's measure. `order` is best first, empty when no valid run had a success."""
    if not order:
        return Verdict(False, "No verdict: no valid run had a success", (), ())
    ours = [comparison for comparison in comparisons if comparison.measure == scenario.measure]
    blocks = max((comparison.interval.blocks for comparison in ours), default=1)
    has_verdict = any(comparison.standing != "no verdict" for comparison in ours)
    headline = verdict_line(scenario, ours) if has_verdict else no_verdict_line(blocks)
    sentences = [observed_order(scenario, order), *grouped(ours, scenario.baseline), noise_line(floor)]
    sentences.append(deadline_line(scenario, order))
    return Verdict(has_verdict, headline, tuple(sentence for sentence in sentences if sentence), tuple(order))


def no_verdict_line(blocks: int) -> str:
    """Headline when there are too few blocks for an interval."""
    return f"No verdict: {blocks} block{'s' * (blocks != 1)} measured, {ENOUGH_BLOCKS} needed for an interval"


def verdict_line(scenario: Scenario, comparisons: Sequence[Comparison]) -> str:
    """Headline: the entry that is furthest ahead of the baseline, or that none is."""
    ahead = [comparison for comparison in comparisons if comparison.standing == "ahead"]
    unit = UNITS[scenario.measure]
    if not ahead:
        return f"Nothing is ahead of {scenario.baseline} in {unit}"
    best = max(ahead, key=lambda comparison: abs(math.log(comparison.interval.ratio)))
    return f"{best.label} is ahead of {scenario.baseline}: {unit} ×\u00a0{show(best.interval)}"


def observed_order(scenario: Scenario, order: Sequence[tuple[str, float]]) -> str:
    """Sentence with the observed order, best first, in the scenario's measure."""
    shown = [f"{label} ({in_words(scenario.measure, value)})" for label, value in order]
    return f"Observed order by {UNITS[scenario.measure]}, best first: {', '.join(shown)}."


def deadline_line(scenario: Scenario, order: Sequence[tuple[str, float]]) -> str:
    """Sentence about entries whose p99 equals the deadline: failures decide there, so ratios of p99 are meaningless."""
    deadline = scenario.timeout * scenario.time_scale
    there = [label for label, value in order if scenario.measure == "p99" and value >= 0.99 * deadline]
    if not there:
        return ""
    return f"More than 1 % of the requests of {', '.join(there)} failed: their p99 is the deadline. Look at goodput."


def in_words(measure: str, value: float) -> str:
    """Format a measure with its unit."""
    return f"{value:.0f}/s" if measure == "throughput" else f"{value * 1e3:.0f} ms"


def grouped(comparisons: Sequence[Comparison], baseline: str) -> list[str]:
    """One sentence per comparison result that occurs; none without a verdict."""
    kinds: tuple[Standing, ...] = (
        "ahead",
        "behind",
        "practically equal",
        "within the noise floor",
        "undecided",
    )
    sentences = []
    for kind in kinds:
        members = [f"{c.label} ×\u00a0{show(c.interval)}" for c in comparisons if c.standing == kind]
        if members:
            sentences.append(f"Against {baseline}, {kind}: {', '.join(members)}.")
    return sentences


def noise_line(floor: Interval | None) -> str:
    """Sentence about the A/A control's difference."""
    if floor is None or not floor.blocks:
        return "No A/A pair was run, so the noise of the laboratory is unknown."
    return f"Noise floor: the same entry run twice differed by ×\u00a0{show(floor)}."


def show(interval: Interval) -> str:
    """Format as `1.52 [1.48–1.57]`, or the ratio alone for one block."""
    if math.isnan(interval.low):
        return f"{interval.ratio:.2f}"
    return f"{interval.ratio:.2f} [{interval.low:.2f}–{interval.high:.2f}]"
