"""The verdict of a campaign in sentences: which entry to run, or why that is not known and what to do.

A sentence never states more than the comparison supports. Terminal, HTML, Markdown and JSON show the same sentences.
"""

from __future__ import annotations

from dataclasses import dataclass

from balancer.syntax.printable import with_digits
from experiments.stats.comparison import Comparison
from experiments.stats.measures import LEAST_BEYOND
from experiments.stats.run_summary import counted
from experiments.verdict.advice import doubtful_lines, no_run_lines, unjudged_lines
from experiments.verdict.alone import alone_lines, is_alone
from experiments.verdict.evidence import Evidence
from experiments.verdict.judged import details_of, observed_order
from experiments.verdict.phrases import SUBJECTS, difference, failed_text, grouped_digits
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
    has_verdict = any(one.standing != "no verdict" for one in found.comparisons)
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
    if all(failed == total > 0 for failed, total in found.failed.values()):
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
    subject = SUBJECTS[(choice.gain or lead or found.comparisons[0]).judged_by]
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
    """Sentence with the failed requests of every entry."""
    failing = {label: pair for label, pair in found.failed.items() if pair[0]}
    if not failing:
        return "No request failed under any entry."
    shown = ", ".join(f"{label} {failed_text(*pair)}" for label, pair in failing.items())
    others = "; none under the others" if len(failing) < len(found.failed) else ""
    return f"Failed requests: {shown}{others}."


def losing_line(found: Evidence) -> str:
    """Sentence about entries that cannot win because they fail more requests."""
    shown = ", ".join(
        f"{label} ({with_digits(100 * more, 2)}\u00a0% more)" for label, more in found.losing.items()
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
    ahead = [one for one in found.explaining if one.standing == "ahead" and one.label not in found.losing]
    best = min(ahead, key=lambda one: one.interval.ratio, default=None)
    if best is None:
        return ""
    said = f"{SUBJECTS[best.judged_by]} {difference(best)}"
    return f"Under {best.label}, {said}; the {best.measure} does not decide here."


def deadline_line(found: Evidence) -> str:
    """Sentence about entries whose p99 is the deadline: goodput decides between them, and is given."""
    labels = found.at_deadline
    if not labels:
        return ""
    shown = ", ".join(f"{label} {100 * found.goodput_of(label):.2f}\u00a0%" for label in labels)
    return (
        f"More than 1 % of the requests of {', '.join(labels)} failed: their p99 is the deadline, and goodput decides "
        f"between them. Answered in time: {shown}."
    )
