"""Explanation of a verdict in sentences: observed order, standings, noise, rule."""

from __future__ import annotations

import math
from collections.abc import Sequence

from experiments.stats.ceiling import GOODPUT
from experiments.stats.comparison import Comparison, Interval, Standing, is_biased, noise
from experiments.stats.estimates import anytime_student
from experiments.verdict.alone import is_alone
from experiments.verdict.evidence import Evidence
from experiments.verdict.phrases import UNITS, measure_in_words, percent, show

ALONE = (
    "A failed request counts as slow as the deadline. Intervals are at 95 %, over the runs; a single run has none.",
)


def details_of(found: Evidence, has_verdict: bool) -> tuple[str, ...]:
    """Sentences from which the verdict follows, and the rule. Without a verdict, the order is no detail."""
    if not found.order:
        return ()
    if is_alone(found):
        return ALONE if found.floor is None else (*ALONE, noise_line(found.floor, found.contest.is_virtual))
    return (
        *([observed_order(found)] if has_verdict else []),
        *grouped(found.comparisons, found.contest.baseline),
        noise_line(found.floor, found.contest.is_virtual),
        rule_line(found),
    )


def observed_order(found: Evidence) -> str:
    """Sentence with the observed order, best first, in the scenario's measure.

    A mean over blocks is named as such: the p99 of a table is that of all requests together.
    """
    measure = found.contest.measure
    shown = [f"{label} ({measure_in_words(measure, value)})" for label, value in found.order]
    of = f", mean of {found.blocks} blocks" if found.blocks > 1 else ""
    return f"Observed order by {UNITS[measure]}{of}, best first: {', '.join(shown)}."


def grouped(comparisons: Sequence[Comparison], baseline: str) -> list[str]:
    """One sentence per comparison result that occurs; none without a verdict."""
    kinds: tuple[Standing, ...] = (
        "ahead",
        "behind",
        "practically equal",
        "within the noise floor",
        "within the generator's lag",
        "undecided",
    )
    sentences = []
    for kind in kinds:
        members = [f"{c.label} {ratio_text(c)}" for c in comparisons if c.standing == kind]
        if members:
            sentences.append(f"Against {baseline}, {kind}: {', '.join(members)}.")
    return sentences


def ratio_text(one: Comparison) -> str:
    """Ratio with its interval, such as `× 1.52 [1.48–1.57]`, and what it is of if not of the measure."""
    what = f" in {UNITS[GOODPUT]}" if one.judged_by == GOODPUT else ""
    return f"×\u00a0{show(one.interval)}{what}"


def noise_line(floor: Interval | None, is_virtual: bool) -> str:
    """Sentence about the A/A control's difference and what follows from it."""
    if is_virtual:
        return "In virtual time no machine favours a run, so there is no noise floor."
    if floor is None or not floor.blocks:
        return "No A/A pair was run, so a bias of the laboratory would not be seen."
    said = f"Noise floor: the same entry run twice differed by ×\u00a0{show(floor)}, "
    if not is_biased(floor):
        return f"{said}so no bias shows."
    far = percent(math.exp(noise(floor)))
    return f"{said}so the laboratory is biased: its differences from others up to {far} are not ranked."


def rule_line(found: Evidence) -> str:
    """How the verdict is reached, in one sentence."""
    contest, entries = found.contest, len(found.comparisons)
    is_mapped = contest.measure != "throughput" and contest.deadline is not None
    deadline = ", a failed request counting as slow as the deadline" if is_mapped else ""
    unit = UNITS[contest.measure]
    blocks, family = counted(found.blocks, "block", "blocks"), counted(entries, "entry", "entries")
    return (
        f"Judged by {unit}{deadline}, paired in {blocks}, at 5 % after Holm's adjustment over {family} "
        "(over all pairs for the runner-up); within ±5 % is practically equal."
        + " The intervals hold at every look."
        * (contest.method is anytime_student)
    )


def counted(number: int, one: str, several: str) -> str:
    """Number with its noun."""
    return f"{number} {one if number == 1 else several}"
