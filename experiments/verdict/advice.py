"""Headline and advice where there is no winner: why, and what helps."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, exp, log

from experiments.stats.ceiling import GOODPUT
from experiments.stats.comparison import (
    ENOUGH_BLOCKS,
    EQUAL_WITHIN,
    SIGNIFICANCE,
    Interval,
    floor_between,
    noise,
)
from experiments.stats.estimates import anytime_reach, anytime_student
from experiments.stats.measures import ACHIEVED, LAG, POLICY_FAILED
from experiments.stats.student import quantile
from experiments.verdict.evidence import Evidence
from experiments.verdict.phrases import SUBJECTS, difference, percent
from experiments.verdict.winner import Choice

MOST_BLOCKS = 64
"""Number of blocks beyond which no campaign is recommended: ten entries of 30 s take more than five hours then, and a
difference that needs more is less than half of the noise of one pair of runs."""


MOST_LIVE_BLOCKS = 1000
"""Likewise of a live evaluation, which disturbs nobody and may take days."""

QUIETER = "close other programs, lower {}, or measure disturbed runs again by --patience 4m"

NOTHING_ANSWERED = "Look at the kinds of errors below."


def no_run_lines(found: Evidence) -> tuple[str, str]:
    """Headline and advice if no run can be judged, or every request failed."""
    what = "No result" if len(found.contest.able) <= 1 else "No verdict"
    if found.order:
        return f"{what}: every request failed", NOTHING_ANSWERED
    if not found.invalid:
        return f"{what}: no run had a success", NOTHING_ANSWERED
    is_late = any(late(reason) for reason in found.invalid)
    where = "run" if len(found.contest.able) <= 1 else "block"
    why = (
        f"the load generator was late in every {where}, so their times are wrong"
        if is_late
        else f"no {where} is valid"
    )
    return f"{what}: {why}", remedy(found.invalid, found.contest.is_open)


def doubtful_lines(choice: Choice, found: Evidence) -> tuple[str, str]:
    """Headline and advice if an entry was observed better than the baseline, but not proven to be."""
    best = choice.doubtful[0]
    measure, said = best.judged_by, difference(best)
    floor = floor_between(found.floor, found.contest.control, best.label, best.baseline)
    if best.standing == "within the noise floor" and floor is not None and measure != GOODPUT:
        far = percent(exp(noise(floor)))
        return (
            f"No winner: under {best.label}, {subject_of(measure)} {said}, no more than the laboratory's bias of {far}",
            "The same entry run twice differed by that at least. A quieter machine helps.",
        )
    if best.standing == "within the generator's lag":
        return (
            f"No winner: under {best.label}, {subject_of(measure)} {said}, which the load generator's lag may explain",
            f"What helps: {QUIETER.format('--rate' if found.contest.is_open else '--batch')}.",
        )
    advice = doubtful_advice(best.interval, found.contest.method is anytime_student)
    return f"No winner: under {best.label}, {subject_of(measure)} {said}, which chance may explain", advice


def doubtful_advice(interval: Interval, is_anytime: bool) -> str:
    """What to do about a difference that chance may explain. `is_anytime`: more blocks may be added."""
    if abs(log(interval.ratio)) <= EQUAL_WITHIN:
        return "A difference below 5 % is too small to matter: choose by other criteria, such as failures or cost."
    needed = blocks_needed(interval, is_anytime)
    if is_anytime and needed <= MOST_LIVE_BLOCKS:
        return f"The difference may show with about {needed} blocks: --blocks {needed}."
    if needed <= MOST_BLOCKS:
        return f"The difference may show with about {needed} blocks in a new campaign: --blocks {needed}."
    return (
        f"Runs differ too much: more than {MOST_BLOCKS} blocks would be needed to tell. Longer runs or a quieter "
        "machine help."
    )


def subject_of(measure: str) -> str:
    """Subject of a sentence that names the entry itself."""
    return "there were" if measure == "throughput" else SUBJECTS[measure]


def blocks_needed(interval: Interval, is_anytime: bool) -> int:
    """Number of blocks with which a difference as observed would lie outside a 95 % interval twice as narrow.

    The factor of two leaves room for Holm's adjustment and for an observed difference that flatters.
    """
    half = (log(interval.high) - log(interval.low)) / 2
    many = anytime_reach(MOST_LIVE_BLOCKS) if is_anytime else 2.0
    reach = anytime_reach(interval.blocks) if is_anytime else quantile(1 - SIGNIFICANCE, interval.blocks - 1)
    spread = half * interval.blocks**0.5 / reach
    distance = abs(log(interval.ratio)) / 2
    blocks = ceil((many * spread / distance) ** 2) if distance > 0 else MOST_LIVE_BLOCKS + 1
    return max(2 * interval.blocks, blocks)


def unjudged_lines(found: Evidence) -> tuple[str, str]:
    """Headline and advice if nothing can be judged: too few blocks, or the baseline is missing."""
    baseline, ran = found.contest.baseline, {label for label, _ in found.order}
    if baseline not in ran:
        return f"No verdict: {baseline}, the baseline, has no valid run with a success", unjudged_advice(
            found
        )
    if not found.comparisons:
        return (
            f"No verdict: {baseline} was run alone",
            "Repeat the command: the other entries have not been run.",
        )
    count = found.blocks
    times = {1: "once", 2: "twice"}.get(count, f"{count} times")
    done = f"{count} block{'s' * (count != 1)} valid" if found.invalid else f"each ran {times}"
    chance = f"{ENOUGH_BLOCKS} {'are ' * bool(found.invalid)}needed to tell a difference from chance"
    return f"No verdict: {done}, {chance}", unjudged_advice(found)


def unjudged_advice(found: Evidence) -> str:
    """What to do about too few blocks."""
    if found.invalid:
        return remedy(found.invalid, found.contest.is_open)
    simulated = "; with --simulated that takes seconds" if found.contest.kind == "measured" else ""
    return f"Repeat the command with --blocks {ENOUGH_BLOCKS} or more{simulated}."


def remedy(reasons: Sequence[str], is_open: bool) -> str:
    """Why runs are invalid, and what helps."""
    failed = [reason for reason in reasons if reason.startswith(POLICY_FAILED)]
    reason = next(filter(late, reasons), reasons[0])
    if failed:
        return f"Runs are invalid: {failed[0]}. Correct the policy; `python -m policies.contract` tests it in seconds."
    if not late(reason):
        return f"Runs are invalid: {reason}. Repeat the command."
    helps = QUIETER.format("--rate" if is_open else "--batch")
    return f"Runs are invalid: {reason}. The load generator itself was late. What helps: {helps}."


def late(reason: str) -> bool:
    """Whether a run is invalid because the generator was late."""
    return reason.startswith((LAG, ACHIEVED))
