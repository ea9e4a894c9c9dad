"""The verdict of a campaign in sentences: which entry to run, or why that is not known and what to do.

A sentence never states more than the comparison supports. Terminal, HTML, Markdown and JSON show the same sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log

from experiments.results.phrases import SUBJECTS, UNITS, difference, in_words, percent, show
from experiments.results.winner import Choice
from experiments.scenario.scenario import Scenario
from experiments.stats.comparison import (
    ENOUGH_BLOCKS,
    SIGNIFICANCE,
    Comparison,
    Interval,
    Standing,
    noise,
)
from experiments.stats.student import quantile

MOST_BLOCKS = 200
"""Number of blocks beyond which no campaign is recommended: the difference is too small to be worth it."""


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


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a verdict is about. `comparisons` are those with the baseline in the deciding measure, `explaining` those in
    other latency measures; `failed` is (failed, all) requests by label, `losing` the share by which an entry fails more
    than the baseline; `invalid` are the reasons of invalid runs.
    """

    scenario: Scenario
    world: str
    order: Sequence[tuple[str, float]]
    comparisons: Sequence[Comparison]
    floor: Interval | None
    choice: Choice | None
    explaining: Sequence[Comparison]
    failed: Mapping[str, tuple[int, int]]
    losing: Mapping[str, float]
    invalid: Sequence[str]

    @property
    def blocks(self) -> int:
        """Number of blocks of the comparison with the most."""
        return max((one.interval.blocks for one in self.comparisons), default=0)

    @property
    def at_deadline(self) -> list[str]:
        """Entries whose p99 is the deadline, so that failures decide it."""
        deadline = self.scenario.timeout * self.scenario.time_scale
        is_tail = self.scenario.measure == "p99"
        return [label for label, value in self.order if is_tail and value >= 0.99 * deadline]


def conclude(found: Evidence) -> Verdict:
    """Describe the results in the scenario's measure."""
    has_verdict = any(one.standing != "no verdict" for one in found.comparisons)
    winner, headline, advice = main_line(found)
    sentences = [
        failure_line(found),
        losing_line(found),
        equal_line(found.choice),
        explaining_line(found),
        deadline_line(found.at_deadline),
    ]
    kept = tuple(sentence for sentence in sentences if sentence) if found.order else ()
    order = tuple(found.order)
    return Verdict(has_verdict, headline, advice, kept, details_of(found), order, winner, found.choice)


def details_of(found: Evidence) -> tuple[str, ...]:
    """Sentences from which the verdict follows, and the rule."""
    if not found.order:
        return ()
    return (
        observed_order(found.scenario, found.order),
        *grouped(found.comparisons, found.scenario.baseline),
        noise_line(found.floor),
        rule_line(found),
    )


def main_line(found: Evidence) -> tuple[str | None, str, str]:
    """Winner, headline and advice."""
    if not found.order:
        why = "no run is valid" if found.invalid else "no run had a success"
        return None, f"No verdict: {why}", invalid_advice(found)
    choice, deadline = found.choice, set(found.at_deadline)
    if choice is None:
        return None, no_verdict_line(found), no_verdict_advice(found)
    if {choice.winner, found.scenario.baseline} <= deadline:
        return None, *deadline_lines(found)
    if choice.gain is None and choice.doubtful:
        return None, *doubtful_lines(choice, found)
    return choice.winner, winner_line(choice, found), ""


def winner_line(choice: Choice, found: Evidence) -> str:
    """Headline that names the winner, how far it is ahead, and the runner-up."""
    baseline, lead = found.scenario.baseline, choice.lead
    failures = failed_clause(choice, found)
    subject = SUBJECTS[found.scenario.measure]
    if choice.gain is None:
        if lead is not None and lead.standing == "ahead":
            said = difference(lead, f"{lead.baseline}, the runner-up")
            return f"Run {baseline}: {subject} {said}{failures}"
        return f"No policy beats {baseline}{rival_clause(lead)}{failures}"
    if lead is not None and lead.baseline == baseline:
        said = difference(choice.gain, f"{baseline}, the runner-up")
        return f"Run {choice.winner}: {subject} {said}{failures}"
    if lead is not None and lead.standing == "ahead":
        rival = f" and {difference(lead, f'{lead.baseline}, the runner-up')}"
        return f"Run {choice.winner}: {subject} {difference(choice.gain)}{rival}{failures}"
    return f"Run {choice.winner}: {subject} {difference(choice.gain)}{rival_clause(lead)}{failures}"


def rival_clause(lead: Comparison | None) -> str:
    """Clause about a runner-up that is not clearly behind."""
    if lead is None:
        return ""
    words = "is practically equal" if lead.standing == "practically equal" else "may be as good"
    return f"; {lead.baseline}, the runner-up, {words}"


def failed_clause(choice: Choice, found: Evidence) -> str:
    """Clause about failed requests of the winner and the baseline; empty without any."""
    names = dict.fromkeys((choice.winner, found.scenario.baseline))
    counts = {name: found.failed[name] for name in names if name in found.failed}
    if not any(failed for failed, _ in counts.values()):
        return ""
    shown = [f"{failed_text(*counts[name])} under {name}" for name in counts]
    return f"; failed requests: {', '.join(shown)}"


def failed_text(failed: int, total: int) -> str:
    """Text such as `6 of 22 000 (0.03 %)`."""
    return f"{grouped_digits(failed)} of {grouped_digits(total)} ({100 * failed / max(1, total):.2g}\u00a0%)"


def grouped_digits(count: int) -> str:
    """Whole number with thin spaces between thousands."""
    return f"{count:,}".replace(",", "\u202f")


def doubtful_lines(choice: Choice, found: Evidence) -> tuple[str, str]:
    """Headline and advice if an entry was observed better than the baseline, but not proven to be."""
    best, measure = choice.doubtful[0], found.scenario.measure
    said = difference(best)
    if best.standing == "within the noise floor" and found.floor is not None:
        far = percent(1 + noise(found.floor))
        return (
            f"No winner: under {best.label}, {subject_of(measure)} {said}, which is within the noise of ±{far}",
            "Quieten the machine or lengthen the runs: the same policy run twice differed as much.",
        )
    needed = blocks_needed(best.interval)
    advice = (
        f"The difference may show with about {needed} blocks in a new campaign: --blocks {needed}."
        if needed <= MOST_BLOCKS
        else "The difference is too small to be found in a reasonable time; choose by other criteria."
    )
    return f"No winner: under {best.label}, {subject_of(measure)} {said}, which chance may explain", advice


def subject_of(measure: str) -> str:
    """Subject of a sentence that names the entry itself."""
    return "there were" if measure == "throughput" else SUBJECTS[measure]


def blocks_needed(interval: Interval) -> int:
    """Number of blocks with which a difference as observed would lie outside a 95 % interval twice as narrow.

    The factor of two leaves room for Holm's adjustment and for an observed difference that flatters.
    """
    half = (log(interval.high) - log(interval.low)) / 2
    spread = half * interval.blocks**0.5 / quantile(1 - SIGNIFICANCE, interval.blocks - 1)
    distance = abs(log(interval.ratio)) / 2
    return max(2 * interval.blocks, ceil((2 * spread / distance) ** 2)) if distance > 0 else MOST_BLOCKS + 1


def deadline_lines(found: Evidence) -> tuple[str, str]:
    """Headline and advice if the deciding percentile is the deadline for the winner and the baseline."""
    names = ", ".join(found.at_deadline)
    return (
        f"No verdict by p99: more than 1 % of the requests failed under {names}, so their p99 is the deadline",
        'Compare failures and goodput below, or let the scenario be decided by measure = "mean", which counts every '
        "failure.",
    )


def no_verdict_line(found: Evidence) -> str:
    """Headline when nothing can be judged: too few blocks, or nothing to compare."""
    baseline, ran = found.scenario.baseline, {label for label, _ in found.order}
    if baseline not in ran:
        return f"No verdict: {baseline}, the baseline, has no valid run with a success"
    if not found.comparisons:
        return f"No verdict: {baseline} was run alone"
    count = found.blocks
    kind = "valid" if found.invalid else "measured" if found.world == "measured" else "simulated"
    return f"No verdict: {count} block{'s' * (count != 1)} {kind}, {ENOUGH_BLOCKS} needed for an interval"


def no_verdict_advice(found: Evidence) -> str:
    """What to do without a verdict."""
    if found.order and not found.comparisons:
        return "Add an entry to compare with: --policies A,B."
    if found.invalid:
        return invalid_advice(found)
    simulated = "" if found.world == "simulated" else "; with --simulated that takes seconds"
    return f"Repeat the command with --blocks {ENOUGH_BLOCKS} or more{simulated}."


def invalid_advice(found: Evidence) -> str:
    """What to do about invalid runs or failures."""
    if not found.invalid:
        return "Look at the kinds of errors below."
    return (
        f"Runs are invalid: {found.invalid[0]}. Repeat on an idle machine, with --patience 4m on a shared one, or with "
        "a lower --rate."
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
    shown = ", ".join(f"{label} ({100 * more:.2g}\u00a0% more)" for label, more in found.losing.items())
    baseline = found.scenario.baseline
    return f"Cannot win, because more requests fail than under {baseline}: {shown}." if shown else ""


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
    return f"Under {best.label}, {SUBJECTS[best.measure]} {difference(best)}; the {best.measure} does not decide here."


def observed_order(scenario: Scenario, order: Sequence[tuple[str, float]]) -> str:
    """Sentence with the observed order, best first, in the scenario's measure."""
    shown = [f"{label} ({in_words(scenario.measure, value)})" for label, value in order]
    return f"Observed order by {UNITS[scenario.measure]}, best first: {', '.join(shown)}."


def deadline_line(labels: Sequence[str]) -> str:
    """Sentence about entries whose p99 equals the deadline: failures decide there, so ratios of p99 are meaningless."""
    if not labels:
        return ""
    return f"More than 1 % of the requests of {', '.join(labels)} failed: their p99 is the deadline. Look at goodput."


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


def rule_line(found: Evidence) -> str:
    """How the verdict is reached, in one sentence."""
    scenario, entries = found.scenario, len(found.comparisons)
    deadline = (
        "" if scenario.measure == "throughput" else ", a failed request counting as slow as the deadline"
    )
    return (
        f"Judged by {UNITS[scenario.measure]}{deadline}, paired in {found.blocks} blocks, at 5 % after Holm's "
        f"adjustment over {entries} entr{'y' if entries == 1 else 'ies'} (over all pairs for the runner-up); "
        "within ±5 % is practically equal."
    )
