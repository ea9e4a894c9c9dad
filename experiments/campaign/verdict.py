"""The answer in words: what a reader may take home, and what not.

Rule of this file: a sentence never says more than the comparison allows. Without enough blocks there is an
order that was observed, but no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.campaign.comparison import ENOUGH_BLOCKS, Standing, Comparison, Interval
from experiments.campaign.scenario import Scenario

UNITS = {"throughput": "successes per second", "p99": "p99 latency", "mean": "mean latency"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """`headline` is one line; `sentences` follow it; `order` is best first, (label, value of the measure)."""

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
    """Put the scenario's own measure into words. `order` is best first, empty when no valid run had a success."""
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
    """Say how many blocks there are and how many it takes."""
    return f"No verdict: {blocks} block{'s' * (blocks != 1)} measured, {ENOUGH_BLOCKS} needed for an interval"


def verdict_line(scenario: Scenario, comparisons: Sequence[Comparison]) -> str:
    """The best that is really ahead of the baseline, or that nothing is."""
    ahead = [comparison for comparison in comparisons if comparison.standing == "ahead"]
    unit = UNITS[scenario.measure]
    if not ahead:
        return f"Nothing is ahead of {scenario.baseline} in {unit}"
    best = max(ahead, key=lambda comparison: abs(math.log(comparison.interval.ratio)))
    return f"{best.label} is ahead of {scenario.baseline}: {unit} ×\u00a0{show(best.interval)}"


def observed_order(scenario: Scenario, order: Sequence[tuple[str, float]]) -> str:
    """What was seen, best first, in the scenario's own measure."""
    shown = [f"{label} ({in_words(scenario.measure, value)})" for label, value in order]
    return f"Observed order by {UNITS[scenario.measure]}, best first: {', '.join(shown)}."


def deadline_line(scenario: Scenario, order: Sequence[tuple[str, float]]) -> str:
    """Whose p99 is the deadline itself: failures decide there, and ratios of p99 say nothing."""
    deadline = scenario.timeout * scenario.time_scale
    there = [label for label, value in order if scenario.measure == "p99" and value >= 0.99 * deadline]
    if not there:
        return ""
    return f"More than 1 % of the requests of {', '.join(there)} failed: their p99 is the deadline. Look at goodput."


def in_words(measure: str, value: float) -> str:
    """A measure with its unit."""
    return f"{value:.0f}/s" if measure == "throughput" else f"{value * 1e3:.0f} ms"


def grouped(comparisons: Sequence[Comparison], baseline: str) -> list[str]:
    """One sentence per standing that occurs; none without a verdict."""
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
    """What two runs of the same thing differed by."""
    if floor is None or not floor.blocks:
        return "No A/A pair was run, so the noise of the laboratory is unknown."
    return f"Noise floor: the same entry run twice differed by ×\u00a0{show(floor)}."


def show(interval: Interval) -> str:
    """`1.52 [1.48–1.57]`, or the ratio alone for one block."""
    if math.isnan(interval.low):
        return f"{interval.ratio:.2f}"
    return f"{interval.ratio:.2f} [{interval.low:.2f}–{interval.high:.2f}]"
