"""The verdict of a campaign in sentences: which entry to run, or why that is not known and what to do.

A sentence never states more than the comparison supports. Terminal, HTML, Markdown and JSON show the same sentences.
The details explain it: observed order, standings, noise, rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from balancer.syntax.printable import with_digits
from experiments.stats.ceiling import GOODPUT
from experiments.stats.comparison import Comparison, Interval, Standing, is_biased, noise
from experiments.stats.estimates import anytime_student
from experiments.stats.measures import LEAST_BEYOND
from experiments.stats.run_summary import PARTS, counted
from experiments.verdict.advice import alone_lines, doubtful_lines, is_alone, no_run_lines, unjudged_lines
from experiments.verdict.evidence import Evidence
from experiments.verdict.phrases import (
    UNITS,
    difference,
    failed_text,
    grouped_digits,
    measure_in_words,
    percent,
    show,
)
from experiments.verdict.winner import Choice


@dataclass(frozen=True, slots=True)
class Verdict:
    """`headline` is one line, `advice` what to do where there is no winner; `sentences` add what else counts, `details`
    how it was judged. `order` is (label, value), best first. `choice` is None without a verdict, `winner` without a
    winner.
    """

    has_verdict: bool
    headline: str
    advice: str
    sentences: tuple[str, ...]
    details: tuple[str, ...]
    order: tuple[tuple[str, float], ...]
    winner: str | None
    choice: Choice | None

    @property
    def lines(self) -> list[str]:
        """What follows the headline at once: the advice and the sentences."""
        return [line for line in (self.advice, *self.sentences) if line]


def conclude(found: Evidence) -> Verdict:
    """Describe the results in the deciding measure."""
    has_verdict = not found.is_unanswered and any(one.standing != "no verdict" for one in found.comparisons)
    winner, headline, advice = main_line(found)
    sentences = [
        "" if has_verdict or is_alone(found) else observed_order(found),
        tail_line(found),
        "" if is_alone(found) else failure_line(found),
        losing_line(found),
        faulty_line(found),
        equal_line(found.choice),
        explaining_line(found),
        deadline_line(found),
    ]
    if found.is_unanswered and not is_alone(found):
        sentences = [failure_line(found)]
    kept = tuple(sentence for sentence in sentences if sentence) if found.order else ()
    order, details = tuple(found.order), details_of(found, has_verdict)
    return Verdict(has_verdict, headline, advice, kept, details, order, winner, found.choice)


def main_line(found: Evidence) -> tuple[str | None, str, str]:
    """Winner, headline and advice."""
    choice = found.choice
    if not found.order:
        return None, *no_run_lines(found)
    if is_alone(found):
        return None, *alone_lines(found)
    if found.is_unanswered:
        return None, *no_run_lines(found)
    if choice is None:
        return None, *unjudged_lines(found)
    if choice.gain is None and choice.doubtful:
        return None, *doubtful_lines(choice, found)
    return choice.winner, winner_line(choice, found), ""


def winner_line(choice: Choice, found: Evidence) -> str:
    """Headline that names the winner, how far it is ahead, and the runner-up."""
    baseline, lead = found.contest.baseline, choice.lead
    failures = failed_clause(choice, found)
    subject = found.contest.subject((choice.gain or lead or found.comparisons[0]).judged_by)
    if choice.gain is None:
        if lead is not None and lead.standing == "ahead":
            said = difference(lead, f"{lead.baseline}, the runner-up")
            return f"Run {baseline}: {subject} {said}{failures}"
        return f"No policy beats {baseline}{rival_clause(lead)}{failures}"
    if lead is not None and lead.baseline == baseline:
        said = difference(choice.gain, f"{baseline}, the runner-up")
        return f"Run {choice.winner}: {subject} {said}{failures}"
    if lead is not None and lead.standing == "ahead" and lead.judged_by == choice.gain.judged_by:
        rival = f" and {difference(lead, f'{lead.baseline}, the runner-up')}"
        return f"Run {choice.winner}: {subject} {difference(choice.gain)}{rival}{failures}"
    return f"Run {choice.winner}: {subject} {difference(choice.gain)}{rival_clause(lead)}{failures}"


def rival_clause(lead: Comparison | None) -> str:
    """Clause about a runner-up that is not clearly behind."""
    if lead is None:
        return ""
    words = {"practically equal": "is practically equal", "ahead": "is behind"}.get(
        lead.standing, "may be as good"
    )
    return f"; {lead.baseline}, the runner-up, {words}"


def failed_clause(choice: Choice, found: Evidence) -> str:
    """Clause about failed requests of the winner and the baseline; empty without any."""
    names = dict.fromkeys((choice.winner, found.contest.baseline))
    counts = {name: found.failed[name] for name in names if name in found.failed}
    if not any(failed for failed, _ in counts.values()):
        return ""
    shown = [f"{failed_text(*counts[name])} under {name}" for name in counts]
    return f"; failed requests: {', '.join(shown)}"


def tail_line(found: Evidence) -> str:
    """Sentence about a p99 that was to decide and takes more requests."""
    contest = found.contest
    if contest.measure == contest.wanted or is_alone(found):
        return ""
    fewest = min(run.requests for run in counted(found.runs))
    return (
        f"The mean decides: a p99 takes {grouped_digits(100 * LEAST_BEYOND)} requests in each run, and there were "
        f"{grouped_digits(fewest)}."
    )


def failure_line(found: Evidence) -> str:
    """Sentence with the failed requests of every entry, in the runs that are valid."""
    where = " in valid runs" if found.invalid else ""
    failing = {label: pair for label, pair in found.failed.items() if pair[0]}
    if not failing:
        return f"No request failed under any entry{where}."
    shown = ", ".join(f"{label} {failed_text(*pair)}" for label, pair in failing.items())
    others = "; none under the others" if len(failing) < len(found.failed) else ""
    return f"Failed requests{where}: {shown}{others}."


def losing_line(found: Evidence) -> str:
    """Sentence about entries that cannot win because they fail more requests."""
    shown = ", ".join(
        f"{label} ({with_digits(100 * more, 2)} percentage points more)"
        for label, more in found.losing.items()
    )
    baseline = found.contest.baseline
    return f"Cannot win, because more requests fail than under {baseline}: {shown}." if shown else ""


def faulty_line(found: Evidence) -> str:
    """Sentence about entries that cannot win because runs of theirs are invalid by their own fault."""
    shown = "; ".join(f"{label} ({why})" for label, why in found.faulty.items())
    return f"Cannot win, because a run is invalid by a fault of its own: {shown}." if shown else ""


def equal_line(choice: Choice | None) -> str:
    """Sentence with the entries that are practically equal to the winner."""
    names = choice.equals if choice and choice.gain else []
    return f"Practically equal to {choice.winner}: {', '.join(names)}." if choice and names else ""


def explaining_line(found: Evidence) -> str:
    """Sentence about the entry that is furthest ahead in a latency measure that does not decide."""
    ahead = [one for one in found.explaining if one.standing == "ahead"]
    best = min(ahead, key=lambda one: one.interval.ratio, default=None)
    if best is None:
        return ""
    said = f"{found.contest.subject(best.judged_by)} {difference(best)}"
    return f"Under {best.label}, {said}; the {best.measure} does not decide here."


def deadline_line(found: Evidence) -> str:
    """Sentence about entries whose p99 is the deadline: goodput decides between them, and is given."""
    labels = found.at_deadline
    if not labels:
        return ""
    shown = ", ".join(f"{label} {100 * found.goodput_of(label):.2f}\u00a0%" for label in labels)
    is_several = len(labels) > 1
    what = (
        "their p99 is the deadline, and goodput decides between them"
        if is_several
        else "its p99 is the deadline"
    )
    return f"More than 1 % of the requests of {', '.join(labels)} failed: {what}. Answered in time: {shown}."


ALONE = (
    "A failed request counts as slow as the deadline. Intervals are at 95 %, over the runs; a single run has none.",
)


def details_of(found: Evidence, has_verdict: bool) -> tuple[str, ...]:
    """Sentences from which the verdict follows, and the rule. Without a verdict, the order is no detail."""
    if not found.order:
        return ()
    if is_alone(found):
        noise = [] if found.floor is None else [noise_line(found.floor, found.contest.is_virtual)]
        return (*ALONE, *replay_line(found), *noise)
    if found.is_unanswered:
        return ()
    return (
        *([observed_order(found)] if has_verdict else []),
        *grouped(found.comparisons, found.contest.baseline),
        noise_line(found.floor, found.contest.is_virtual),
        rule_line(found),
        *replay_line(found),
    )


def observed_order(found: Evidence) -> str:
    """Sentence with the observed order, best first, in the scenario's measure.

    A mean over blocks is named as such: the p99 of a table is that of all requests together.
    """
    measure = found.contest.measure
    shown = [f"{label} ({measure_in_words(measure, value)})" for label, value in found.order]
    of = f", mean of {found.blocks} blocks" if found.blocks > 1 else ""
    return f"Observed order by {found.contest.unit(measure)}{of}, best first: {', '.join(shown)}."


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
    """Ratio with its interval, such as `× 1.52 [1.48–1.57]`, what it is of if not of the measure, and whether it is a
    bound because failures make one of both the deadline."""
    what = f" in {UNITS[GOODPUT]}" if one.judged_by == GOODPUT else ""
    if not one.at_deadline:
        return f"×\u00a0{show(one.interval)}{what}"
    bound = "at least" if one.interval.ratio > 1 else "at most"
    return f"{bound} ×\u00a0{show(one.interval)} (the deadline under {one.at_deadline})"


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
    unit = contest.unit(contest.measure)
    blocks, family = number_of(found.blocks, "block", "blocks"), number_of(entries, "entry", "entries")
    return (
        f"Judged by {unit}{deadline}, paired in {blocks}, at 5 % after Holm's adjustment over {family} "
        "(over all pairs for the runner-up); within ±5 % is practically equal."
        + " The intervals hold at every look."
        * (contest.method is anytime_student)
    )


def replay_line(found: Evidence) -> list[str]:
    """Sentence about what intervals mean where every block has the same requests; none for other loads."""
    said = (
        "Every block replays the same record, so an interval is the wider of that over the blocks and that over "
        f"{PARTS} parts of the record."
    )
    return [said] if found.is_replay else []


def number_of(number: int, one: str, several: str) -> str:
    """Number with its noun."""
    return f"{number} {one if number == 1 else several}"
