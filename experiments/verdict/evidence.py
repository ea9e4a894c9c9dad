"""Evidence of a contest: observed order, comparisons, failures; pure, from the summaries of its runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from experiments.stats.comparison import Comparison, Interval, Values, averaged, averaged_ceiling, is_biased
from experiments.stats.estimates import geometric_mean
from experiments.stats.run_summary import RunSummary, ceiling_per_block, counted, values_per_block
from experiments.verdict.contest import Contest
from experiments.verdict.disturbed import faults_of
from experiments.verdict.winner import Choice, choose, compared_pairs, losing_more


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a verdict is about. `order` is (label, value), best first, in the deciding measure; `at_deadline`
    are those of it whose p99 failures make the deadline; `compared` are the comparisons with the baseline in every
    measure, `floors` the A/A intervals by measure. `failed` is (failed, all)
    requests by label, `losing` the share by which an entry fails more than the baseline, `faulty` why its own runs are
    invalid.
    """

    contest: Contest
    runs: Sequence[RunSummary]
    order: Sequence[tuple[str, float]]
    at_deadline: Sequence[str]
    compared: Sequence[Comparison]
    floors: dict[str, Interval]
    choice: Choice | None
    failed: dict[str, tuple[int, int]]
    losing: dict[str, float]
    faulty: dict[str, str]

    @property
    def floor(self) -> Interval | None:
        """The A/A interval of the deciding measure."""
        return self.floors.get(self.contest.measure)

    @property
    def comparisons(self) -> list[Comparison]:
        """Comparisons in the deciding measure, in the observed order."""
        ours = [one for one in self.compared if one.measure == self.contest.measure]
        return sorted(ours, key=lambda one: places_in(self.order)(one.label))

    @property
    def explaining(self) -> list[Comparison]:
        """Comparisons of entries that may win in the latency measures that do not decide."""
        contest = self.contest
        others = [one for one in self.compared if one.measure not in (contest.measure, "throughput")]
        may_win = set(contest.able).difference(self.losing, self.faulty)
        return [one for one in others if one.label in may_win]

    @property
    def blocks(self) -> int:
        """Number of blocks of the comparison with the most."""
        return max((one.interval.blocks for one in self.comparisons), default=0)

    @property
    def is_unanswered(self) -> bool:
        """Whether every request failed: entries with nothing but deadlines are not equal."""
        return bool(self.failed) and all(failed == total > 0 for failed, total in self.failed.values())

    @property
    def is_replay(self) -> bool:
        """Whether every block has the requests of the same record."""
        return any(run.parts for run in self.runs)

    @property
    def invalid(self) -> list[str]:
        """Reasons of invalid runs."""
        runs = [run for run in self.runs if not run.set_aside]
        return list(dict.fromkeys(reason for run in runs for reason in run.invalid_reasons))

    def goodput_of(self, label: str) -> float:
        """Share (0..1) of the requests of an entry that were answered within the SLO, over the runs that count."""
        mine = [run for run in counted(self.runs) if run.label == label]
        total = sum(run.requests for run in mine)
        return sum(run.goodput * run.requests for run in mine) / total if total else 0.0


def evidence(contest: Contest, runs: Sequence[RunSummary]) -> Evidence:
    comparisons, floors = compared(contest, runs)
    (order, at_deadline), kept = ranking(contest, runs, floors.get(contest.measure)), counted(runs)
    of_each = {label: [run for run in kept if run.label == label] for label, _ in order}
    return Evidence(
        contest=contest,
        runs=runs,
        order=order,
        at_deadline=at_deadline if contest.measure == "p99" else [],
        compared=comparisons,
        floors=floors,
        choice=choose(contest, order, [one for one in comparisons if one.measure == contest.measure], runs),
        failed={
            label: (sum(run.ko for run in mine), sum(run.requests for run in mine))
            for label, mine in of_each.items()
        },
        losing=losing_more(contest, runs),
        faulty=faults_of(runs),
    )


def compared(
    contest: Contest, runs: Sequence[RunSummary]
) -> tuple[tuple[Comparison, ...], dict[str, Interval]]:
    """Every entry compared with the baseline in every measure, and the A/A interval of each measure."""
    found, floors = list[Comparison](), dict[str, Interval]()
    for measure in contest.measures:
        comparisons, floor = compared_pairs(contest, runs, measure, contest.labels, contest.pairs)
        found += comparisons
        if floor is not None and floor.blocks:
            floors[measure] = floor
    return tuple(found), floors


def ranking(
    contest: Contest, runs: Sequence[RunSummary], floor: Interval | None
) -> tuple[list[tuple[str, float]], list[str]]:
    """(label, geometric mean of the deciding measure over valid blocks), best first, without the A/A control, and
    the labels of those at the deadline.

    Unless the laboratory is biased by its `floor`, the entry run twice has the mean of both, as in comparisons.
    Entries at the deadline in at least half of their blocks come last, in the order of their goodput.
    """
    control = contest.control[1] if contest.control else None
    values: Values = values_per_block(contest.labels, runs, contest.measure)
    ceiling = ceiling_per_block(contest.labels, runs, contest.measure)
    if contest.is_virtual or not is_biased(floor):
        values = averaged(values, contest.control)
        ceiling = averaged_ceiling(ceiling, contest.control) or ceiling
    means = [
        (label, geometric_mean(blocks.values()))
        for label, blocks in values.items()
        if blocks and label != control and min(blocks.values()) > 0
    ]
    failing = [label for label, _ in means if 2 * len(ceiling.blocks[label]) >= len(values[label])]
    sign = -1 if contest.measure == "throughput" else 1

    def place(pair: tuple[str, float]) -> tuple[bool, float]:
        label, value = pair
        if label in failing:
            return True, geometric_mean(ceiling.odds[label].values())
        return False, sign * value

    order = sorted(means, key=place)
    return order, [label for label, _ in order if label in failing]


def places_in(order: Sequence[tuple[str, float]]) -> Callable[[str], int]:
    """Place of a label in an order of (label, value), by which to sort; other labels follow."""
    place = {label: index for index, (label, _) in enumerate(order)}
    return lambda label: place.get(label, len(place))
