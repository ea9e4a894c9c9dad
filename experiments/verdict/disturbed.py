"""Runs that do not count: what made them invalid, whose they are, and whether they contradict those that count.

The policy under test shares the machine with the load generator, so it can make it late. Leaving out late runs of one
entry would keep its better ones. Therefore a late run makes its block invalid for all entries, and a repeated block is
measured for all entries. What is left may still be the better part; so a difference is only claimed if the runs of the
invalid and repeated blocks, taken together with the others, point to the same side, and equality if they do not differ.
In runs that count the generator may be late, too: what is claimed of latencies must hold of them without the lag.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from experiments.stats.comparison import CLAIMS, EQUAL_WITHIN, Comparison, Standing, is_comparable
from experiments.stats.measures import is_late, spoils_block
from experiments.stats.run_summary import RunSummary, value_of


def unless_contradicted(one: Comparison, runs: Sequence[RunSummary]) -> Comparison:
    """The comparison, undecided if it claims a difference or equality that vanishes with the late runs counted."""
    if one.standing not in CLAIMS or not any(map(was_late, runs)):
        return one
    whole = [run for run in runs if run.valid or was_late(run)]
    ours, theirs = (
        {(run.block, run.set_aside): value_of(run, one.judged_by) for run in whole if run.label == label}
        for label in (one.label, one.baseline)
    )
    logs = [
        math.log(value / theirs[key])
        for key, value in ours.items()
        if is_comparable(value) and is_comparable(theirs.get(key))
    ]
    mean = sum(logs) / len(logs) if logs else 0.0
    is_equal = one.standing == "practically equal"
    holds = abs(mean) <= EQUAL_WITHIN if is_equal else mean * math.log(one.interval.ratio) > 0
    return one if holds else replace(one, standing="undecided")


def standing_with(standing: Standing, lagless: Standing) -> Standing:
    """Standing that follows from that of the runs as they were and that without the generator's lag."""
    return "within the generator's lag" if standing in CLAIMS and standing != lagless else standing


def has_lag(runs: Sequence[RunSummary]) -> bool:
    """Whether the generator has a lag in any run: it has none in virtual time and none in a live evaluation."""
    return any(run.without_lag for run in runs)


def was_late(run: RunSummary) -> bool:
    """Whether the generator was late, and nothing else is wrong with the run."""
    return is_late(run.invalid_reasons)


def faults_of(runs: Sequence[RunSummary]) -> dict[str, str]:
    """Entries with a run that is invalid for a reason of its own, such as a policy that raised: label -> reason."""
    own = [run for run in runs if not run.valid and not spoils_block(run.invalid_reasons)]
    return {run.label: run.invalid_reasons[0] for run in reversed(own)}


def repetitions(runs: Sequence[RunSummary]) -> list[str]:
    """A line for each attempt that was set aside, with its invalid runs, and one with the late runs of each entry."""
    lines = []
    for block, attempt in sorted({(run.block, run.set_aside) for run in runs if run.set_aside}):
        invalid = [
            f"{run.label}: {'; '.join(run.invalid_reasons)}"
            for run in runs
            if (run.block, run.set_aside) == (block, attempt) and not run.valid
        ]
        lines.append(f"block {block + 1}, attempt {attempt}: {', '.join(invalid) or 'measured again'}")
    late, every = Counter(run.label for run in runs if was_late(run)), Counter(run.label for run in runs)
    if late:
        counts = ", ".join(f"{label} {count} of {every[label]}" for label, count in late.most_common())
        lines.append(
            f"The load generator was late, so these runs do not count, repeated ones included: {counts}."
        )
    return lines
