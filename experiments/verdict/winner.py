"""Which entry of a campaign to run, by rules that are fixed before the campaign.

1. Candidates are entries that a balancer can run (no oracles), under the baseline's load, whose requests are
   not proven to fail more often than the baseline's, and whose runs are not invalid by a fault of their own.
2. The winner is the candidate with the best observed value among those that stand ahead of the baseline, otherwise the
   baseline itself. The standing is that of `stats.comparison`: Holm's adjustment is over all entries.
3. The runner-up is the best observed candidate apart from the winner. Both are compared by a test that is adjusted over
   all pairs of candidates, because the blocks that choose the two also compare them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from experiments.stats.comparison import SIGNIFICANCE, Comparison, Interval, compare_pairs, holm, inverted
from experiments.stats.estimates import Estimate
from experiments.stats.run_summary import (
    RunSummary,
    ceiling_per_block,
    counted,
    parts_per_label,
    values_per_block,
)
from experiments.verdict.contest import Contest
from experiments.verdict.disturbed import faults_of, has_lag, standing_with, unless_contradicted

MORE_FAILURES = 0.001
"""Share of requests (0..1) that an entry may fail more than the baseline and still win: what `capacity` allows, too."""

DOUBTFUL = ("undecided", "within the noise floor", "within the generator's lag")


@dataclass(frozen=True, slots=True)
class Choice:
    """The winner and its comparisons in the deciding measure. `gain` is with the baseline, None if that is the winner.

    `rivals` are the comparisons of the winner with the other candidates, the runner-up first. `doubtful` are the
    candidates that may be better: observed so, or else the runner-up, but nothing is proven of them.
    """

    winner: str
    gain: Comparison | None
    rivals: tuple[Comparison, ...]
    doubtful: tuple[Comparison, ...]

    @property
    def lead(self) -> Comparison | None:
        """Comparison with the runner-up."""
        return self.rivals[0] if self.rivals else None

    @property
    def equals(self) -> list[str]:
        """Labels of the candidates that are practically equal to the winner."""
        return [rival.baseline for rival in self.rivals if rival.standing == "practically equal"]


def choose(
    contest: Contest,
    order: Sequence[tuple[str, float]],
    comparisons: Sequence[Comparison],
    runs: Sequence[RunSummary],
) -> Choice | None:
    """Choose by the comparisons with the baseline in the deciding measure; None where none of them has a verdict."""
    against = {one.label: one for one in comparisons if one.standing != "no verdict"}
    excluded = losing_more(contest, runs).keys() | faults_of(runs).keys() - {contest.baseline}
    labels = [label for label, _ in order if label in contest.able and label not in excluded]
    labels = [label for label in labels if label in against or label == contest.baseline]
    if not against or contest.baseline not in labels:
        return None
    ahead = [label for label in labels if label in against and against[label].standing == "ahead"]
    winner = ahead[0] if ahead else contest.baseline
    ran = [*labels, *(contest.control[1:] if contest.control else ())]
    every, _ = compared_pairs(contest, runs, contest.measure, ran, list(combinations(labels, 2)))
    pairs = {
        (one.label, one.baseline): one
        for found in (*every, *against.values())
        for one in (found, inverted(found))
    }
    rivals = tuple(pairs[winner, label] for label in labels if label != winner)
    better = labels[: labels.index(winner)] or labels[1:2]
    doubtful = tuple(pairs[label, winner] for label in better if pairs[label, winner].standing in DOUBTFUL)
    return Choice(winner, against.get(winner), rivals, doubtful)


def compared_pairs(
    contest: Contest,
    runs: Sequence[RunSummary],
    measure: str,
    ran: Sequence[str],
    pairs: Sequence[tuple[str, str]],
) -> tuple[list[Comparison], Interval | None]:
    """Compare the pairs (label, baseline) in one measure; returns the A/A interval, too. `ran` are all labels.

    What is claimed must also hold without the generator's lag, and with the late runs.
    """

    def found(lagless: bool) -> tuple[list[Comparison], Interval | None]:
        values = values_per_block(ran, runs, measure, lagless)
        ceiling = ceiling_per_block(ran, runs, measure, lagless)
        parts = parts_per_label(ran, runs, measure)
        return compare_pairs(
            measure, values, pairs, contest.method, ceiling, contest.control, contest.is_virtual, parts
        )

    comparisons, floor = found(lagless=False)
    if has_lag(runs):
        lagless, _ = found(lagless=True)
        comparisons = [
            replace(one, standing=standing_with(one.standing, less.standing))
            for one, less in zip(comparisons, lagless, strict=True)
        ]
    return [unless_contradicted(one, runs) for one in comparisons], floor


def losing_more(contest: Contest, runs: Sequence[RunSummary]) -> dict[str, float]:
    """Entries that fail more requests than the baseline: label -> by how much, as a share (0..1).

    The difference of a block counts: its mean exceeds `MORE_FAILURES`, and is above 0 by a test that is adjusted over
    all entries.
    """
    shares = {(run.label, run.block): run.ko / max(1, run.requests) for run in counted(runs)}
    found: dict[str, Estimate] = {}
    for label, baseline in contest.pairs:
        blocks = [block for other, block in shares if other == label and (baseline, block) in shares]
        more = [shares[label, block] - shares[baseline, block] for block in blocks]
        found[label] = contest.method(np.array(more))
    adjusted = zip(found.items(), holm([one.p_value for one in found.values()]), strict=True)
    return {
        label: one.mean
        for (label, one), p_value in adjusted
        if one.mean > MORE_FAILURES and p_value < SIGNIFICANCE
    }
