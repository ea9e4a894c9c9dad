"""Headline and advice where there is no winner: why, and what helps; also of an entry that is compared with nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from math import ceil, exp, log

from experiments.platform.terminal import in_ms, rate_digits
from experiments.stats.ceiling import GOODPUT, is_at_ceiling
from experiments.stats.comparison import (
    ENOUGH_BLOCKS,
    EQUAL_WITHIN,
    SIGNIFICANCE,
    Interval,
    as_interval,
    floor_between,
    noise,
)
from experiments.stats.estimates import anytime_reach, anytime_student, logarithms, over_parts, paired_student
from experiments.stats.measures import ACHIEVED, LAG, LEAST_BEYOND, POLICY_FAILED
from experiments.stats.run_summary import RunSummary, counted, parts_per_label
from experiments.stats.student import quantile
from experiments.verdict.evidence import Evidence
from experiments.verdict.phrases import difference, failed_text, grouped_digits, percent
from experiments.verdict.winner import Choice

MOST_BLOCKS = 64
"""Number of blocks beyond which no campaign is recommended: ten entries of 30 s take more than five hours then, and a
difference that needs more is less than half of the noise of one pair of runs."""


MOST_LIVE_BLOCKS = 1000
"""Likewise of a live evaluation, which disturbs nobody and may take days."""

QUIETER = "close other programs, lower {}, or measure disturbed runs again by --patience 4m"

NOTHING_ANSWERED = "The report has the kinds of errors."


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
    """Headline and advice if an entry may be better than the baseline, but nothing is proven of it."""
    best = choice.doubtful[0]
    measure, said = best.judged_by, difference(best)
    subject = "there were" if measure == "throughput" else found.contest.subject(measure)
    floor = floor_between(found.floor, found.contest.control, best.label, best.baseline)
    if best.standing == "within the noise floor" and floor is not None and measure != GOODPUT:
        far = percent(exp(noise(floor)))
        return (
            f"No winner: under {best.label}, {subject} {said}, no more than the laboratory's bias of {far}",
            "The same entry run twice differed by that at least. A quieter machine helps.",
        )
    if best.standing == "within the generator's lag":
        return (
            f"No winner: under {best.label}, {subject} {said}, which the load generator's lag may explain",
            f"What helps: {QUIETER.format('--rate' if found.contest.is_open else '--batch')}.",
        )
    is_anytime = found.contest.method is anytime_student
    advice = doubtful_advice(best.interval, is_anytime, found.is_replay, found.contest.is_virtual)
    return f"No winner: under {best.label}, {subject} {said}, which chance may explain", advice


def doubtful_advice(interval: Interval, is_anytime: bool, is_replay: bool, is_virtual: bool) -> str:
    """What to do about a difference that chance may explain. `is_anytime`: more blocks may be added."""
    if abs(log(interval.ratio)) <= EQUAL_WITHIN:
        return "A difference below 5 % is too small to matter: choose by other criteria, such as failures or cost."
    if is_replay:
        return "More blocks would replay the same record; a longer one may tell."
    needed = blocks_needed(interval, is_anytime)
    if is_anytime and needed <= MOST_LIVE_BLOCKS:
        return f"The difference may show with about {needed} blocks: --blocks {needed}."
    if needed <= MOST_BLOCKS:
        return f"The difference may show with about {needed} blocks in a new campaign: --blocks {needed}."
    helps = "Longer runs help." if is_virtual else "Longer runs or a quieter machine help."
    return f"Runs differ too much: more than {MOST_BLOCKS} blocks would be needed to tell. {helps}"


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
    count, (least, most) = found.blocks, runs_each(found)
    times = (
        {1: "once", 2: "twice"}.get(most, f"{most} times") if least == most else f"{least} to {most} times"
    )
    done = f"{count} block{'s' * (count != 1)} valid" if found.invalid else f"each ran {times}"
    chance = f"{ENOUGH_BLOCKS} {'are ' * bool(found.invalid)}needed to tell a difference from chance"
    return f"No verdict: {done}, {chance}", unjudged_advice(found)


def runs_each(found: Evidence) -> tuple[int, int]:
    """Least and greatest number of runs of an entry that count."""
    numbers = Counter(run.label for run in counted(found.runs)).values()
    return min(numbers), max(numbers)


def unjudged_advice(found: Evidence) -> str:
    """What to do about too few blocks."""
    if found.invalid:
        return remedy(found.invalid, found.contest.is_open)
    if found.contest.planned >= ENOUGH_BLOCKS and runs_each(found)[0] < found.contest.planned:
        return f"The command ended before its {found.contest.planned} blocks had run: repeat it."
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


WORDS = {"p50": "half took at most", "p99": "99 % at most", "mean": "on average"}
"""Beginning of a clause about a measure."""


def is_alone(found: Evidence) -> bool:
    """Whether the contest has one entry, perhaps beside its own repetition."""
    return not found.comparisons and len(found.contest.able) <= 1 and bool(found.order)


def alone_lines(found: Evidence) -> tuple[str, str]:
    """Headline and advice for the only entry."""
    label, contest = found.contest.baseline, found.contest
    runs = [run for run in counted(found.runs) if run.label == label]
    failed, total = sum(run.ko for run in runs), sum(run.requests for run in runs)
    if failed == total:
        return f"{label}: all {grouped_digits(total)} requests failed", NOTHING_ANSWERED
    rate = (total - failed) / sum(run.span for run in runs)
    shown = rate_digits(rate) if rate < 100 else grouped_digits(round(rate))
    share = (
        f"{failed_text(failed, total)} requests failed"
        if failed
        else f"none of {grouped_digits(total)} failed"
    )
    measures = ("p50", "p99" if contest.has_tail else "mean")
    clauses = [text for measure in measures if (text := clause(measure, runs))]
    headline = f"{label}: {shown} answers per second, {share}"
    return "; ".join([headline, *([", ".join(clauses)] if clauses else [])]), alone_advice(found, len(runs))


def clause(measure: str, runs: Sequence[RunSummary]) -> str:
    """Text such as `99 % at most 34 ms (30 ms to 38 ms)`, with an interval over several runs.

    Empty where failures make the measure the deadline in a run: it is no time that requests took.
    """
    if any(is_at_ceiling(measure, run.ko, run.requests) for run in runs):
        return ""
    logs = logarithms([getattr(run, measure) for run in runs])
    parts = parts_per_label([runs[0].label], runs, measure)
    of_parts = logarithms([factor for factors in parts.values() for factor in factors.values()])
    interval, _ = as_interval(over_parts(paired_student(logs), of_parts), len(runs))
    span = "" if math.isnan(interval.low) else f" ({in_ms(interval.low)} to {in_ms(interval.high)})"
    return f"{WORDS[measure]} {in_ms(interval.ratio)}{span}"


def alone_advice(found: Evidence, runs: int) -> str:
    """What gives an interval, a p99, and a comparison."""
    is_service = found.contest.kind == "service"
    wanted = []
    if runs < 2:
        wanted.append(f"--blocks {ENOUGH_BLOCKS} gives intervals")
    if not found.contest.has_tail:
        wanted.append(f"longer runs give a p99, which takes {grouped_digits(100 * LEAST_BEYOND)} requests")
    other = "a second URL" if is_service else "a second policy (--policies A,B)"
    wanted.append(f"{other} gives a comparison")
    text = "; ".join(wanted)
    return f"{text[0].upper()}{text[1:]}."
