"""The matrix in sentences: where a policy is best, where it is not, and what else differs there.

A sentence states what was counted; it never claims a cause.

Over all scenarios of a sweep, and in the distance to a bound, the unit is the scenario, and the ratio is that of
geometric means over its seeds. Scenarios in which failures decide do not enter mean and percentiles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from balancer.syntax.printable import with_digits
from experiments.report.tables import Cell, Table, row
from experiments.scenario.oracles import BOUNDS
from experiments.stats.ceiling import GOODPUT
from experiments.stats.comparison import ENOUGH_BLOCKS, EQUAL_WITHIN, Interval, paired
from experiments.stats.estimates import geometric_mean
from experiments.sweep.matrix import Matrix, Square
from experiments.verdict.phrases import show

NEAR, FAIRLY_NEAR = 1.05, 1.10
POINT = 0.01
"""Goodput below the highest that counts as near."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A policy over all scenarios: shares of the scenarios in which it is near the best, and ratios to the best."""

    policy: str
    scenarios: int
    near: float
    fairly_near: float
    mean: float
    p90: float
    worst: float
    worst_scenario: str


WARNINGS = {
    "missing": "are missing: the sweep was stopped, and the same command goes on with them.",
    "failed": "failed; they stand below and are tried again by the same command.",
    "invalid": "are invalid by what their runs say, and are compared with nothing.",
}


def omissions(left_out: Mapping[str, int], planned: int) -> list[str]:
    """One sentence for each reason for which some of the planned cells are not compared."""
    return [f"{count} of {planned} cells {WARNINGS[name]}" for name, count in left_out.items()]


def standings(matrix: Matrix) -> list[Standing]:
    """Standing of every policy that is no bound, the best mean first; empty for a single scenario."""
    found = [standing(matrix, policy) for policy in matrix.ranked() if policy not in matrix.bounds]
    return [one for one in found if one is not None] if len(matrix.scenarios) > 1 else []


def standing(matrix: Matrix, policy: str) -> Standing | None:
    """Standing of one policy; None without a scenario that is judged by the measure."""
    squares = matrix.row(policy)
    ratios = {square.scenario: square.ratio.ratio for square in squares if square.judged_by != GOODPUT}
    if not ratios:
        return None
    worst = max(ratios, key=lambda scenario: ratios[scenario])
    return Standing(
        policy,
        len(squares),
        sum(is_near(matrix, square, NEAR) for square in squares) / len(squares),
        sum(is_near(matrix, square, FAIRLY_NEAR) for square in squares) / len(squares),
        geometric_mean(ratios.values()),
        float(np.percentile(list(ratios.values()), 90)),
        ratios[worst],
        worst,
    )


def is_near(matrix: Matrix, square: Square, ratio: float) -> bool:
    """Whether the square is within `ratio` of the best, or its goodput within a point of the highest."""
    if square.judged_by != GOODPUT:
        return square.ratio.ratio <= ratio
    column = [other for other in matrix.column(square.scenario) if other.policy not in matrix.bounds]
    return square.goodput >= max(other.goodput for other in column) - POINT


def overview_table(matrix: Matrix) -> Table:
    """Every policy over all scenarios; no rows for a single scenario."""
    note = (
        f"{matrix.measure} as a ratio to the observed best of each scenario. Where even that is the deadline, near "
        "means a goodput at most one point below the highest."
    )
    columns = ("policy", "scenarios", "within 5 %", "within 10 %", "geometric mean", "90th", "worst", "where")
    rows = tuple(
        row(
            *(one.policy, one.scenarios, f"{one.near:.1%}", f"{one.fairly_near:.1%}"),
            *(f"{one.mean:.3f}", f"{one.p90:.2f}", f"{one.worst:.2f}", one.worst_scenario),
        )
        for one in standings(matrix)
    )
    return Table("Over all scenarios", note, columns, rows)


@dataclass(frozen=True, slots=True)
class BoundDistance:
    """A policy beside a bound: ratio over all scenarios with its 95 % interval, and the worst scenario."""

    policy: str
    bound: str
    ratio: Interval
    worst: float
    worst_scenario: str


def bounds_in(matrix: Matrix) -> dict[str, str]:
    """Return the oracles of the matrix by label, with the information that each uses."""
    labels = [label for label in matrix.policies if label in matrix.bounds]
    return {label: BOUNDS[name] for name in BOUNDS for label in labels if label.partition(",")[0] == name}


def distances(matrix: Matrix) -> list[BoundDistance]:
    """Distance of every policy to every bound, by bound, the least first; empty without a bound."""
    policies = [policy for policy in matrix.policies if policy not in matrix.bounds]
    found = [
        [one for policy in policies if (one := distance(matrix, policy, bound)) is not None]
        for bound in bounds_in(matrix)
    ]
    return [one for of_bound in found for one in sorted(of_bound, key=lambda one: one.ratio.ratio)]


def distance(matrix: Matrix, policy: str, bound: str) -> BoundDistance | None:
    """Distance of one policy over the scenarios that both have; None without any."""
    values = {
        label: {
            number: square.value
            for number, scenario in enumerate(matrix.scenarios)
            if (square := matrix.squares.get((label, scenario))) is not None
        }
        for label in (policy, bound)
    }
    interval, _ = paired(values, policy, bound)
    if not interval.blocks:
        return None
    ratios = {
        number: value / values[bound][number]
        for number, value in values[policy].items()
        if values[bound].get(number, 0.0) > 0
    }
    worst = max(ratios, key=lambda number: ratios[number])
    return BoundDistance(policy, bound, interval, ratios[worst], matrix.scenarios[worst])


def distance_table(matrix: Matrix) -> Table:
    """Every policy beside each bound; no rows without one."""
    bounds, found = bounds_in(matrix), {(one.policy, one.bound): one for one in distances(matrix)}
    note = (
        f"{matrix.measure} as a ratio to that of a bound: geometric mean over scenarios and its 95 % interval. "
        + " ".join(f"{bound} {knows}." for bound, knows in bounds.items())
        + " Bounds are no policies, so they are not ranked."
    )
    heads = [(f"{matrix.measure} / {bound}", "scenarios", "worst", "where") for bound in bounds]
    rows = tuple(
        row(policy, *(part for bound in bounds for part in distance_parts(found.get((policy, bound)))))
        for policy in dict.fromkeys(policy for policy, _ in found)
    )
    return Table("Distance to the bounds", note, ("policy", *(name for head in heads for name in head)), rows)


def distance_parts(one: BoundDistance | None) -> tuple[object, ...]:
    """Ratio, scenarios, worst ratio and its scenario, as parts of a row."""
    if one is None:
        return (Cell("–", "few"),) * 4
    return show(one.ratio), one.ratio.blocks, f"{one.worst:.2f}", one.worst_scenario


def distance_sentences(matrix: Matrix, ours: str) -> list[str]:
    """Sentence for each bound such as `Its p99 is × 1.10 [1.07–1.14] of oracle-informed's, which knows … .`"""
    knows = bounds_in(matrix)
    return [
        f"Over {one.ratio.blocks} scenarios its {matrix.measure} is ×\u00a0{show(one.ratio)} of that of {one.bound}, a "
        f"bound that {knows[one.bound]}."
        for one in distances(matrix)
        if one.policy == ours
    ]


MIN_DIFFERENCE = 0.01
"""Minimum difference in shares or failures that is mentioned, as a fraction."""

MANY_FAILED = 0.01
"""Fraction of failed requests from which on p99 is the deadline."""

MAX_RATIO = 1.5
"""Maximum acceptable ratio to the best policy in any scenario."""

OFTEN_SHARE = 0.8
"""Required fraction of the scenarios in which the policy is best or practically equal."""


def headline(matrix: Matrix, ours: str, unit: str = "seeds") -> str:
    """Headline: in how many scenarios the policy is as good as the best. `unit` names what there are too few of."""
    row = matrix.row(variant := matrix.variant(ours))
    name = ours if variant == ours else f"{variant}, its variant of the lowest mean,"
    if not row:
        return f"{ours} takes no part; the best of each scenario stand below"
    if not (squares := judged(row)):
        return f"No verdict: {row[0].seeds} {unit}, {ENOUGH_BLOCKS} needed for an interval"
    good = sum(square.is_as_good for square in squares)
    others = len(row) - len(squares)
    worst = max(square.ratio.ratio for square in squares)
    return (
        f"{name} is best or practically equal in {good} of {len(squares)} scenarios "
        f"({percent(good / len(squares), 0)}; wanted {percent(OFTEN_SHARE, 0)}), and at worst ×\u00a0{worst:.2f}"
        + (f"; {others} more have too few {unit} to be judged" if others else "")
    )


def judged(row: list[Square]) -> list[Square]:
    """Squares with enough seeds for an interval."""
    return [square for square in row if square.mark != "no verdict"]


def is_met(matrix: Matrix, ours: str) -> bool | None:
    """Whether both bounds are met; None without a verdict."""
    if not (squares := judged(matrix.row(matrix.variant(ours)))):
        return None
    good = sum(square.is_as_good for square in squares) / len(squares)
    return good >= OFTEN_SHARE and max(square.ratio.ratio for square in squares) <= MAX_RATIO


def sentences(matrix: Matrix, ours: str) -> list[str]:
    """Sentences about the worst scenario and the bounds; then, given a verdict, one for each scenario that is lost."""
    ours = matrix.variant(ours)
    row = matrix.row(ours)
    if not row:
        return []
    squares = judged(row)
    worst = max(squares or row, key=lambda square: square.ratio.ratio)
    kind = "within" if worst.ratio.ratio <= MAX_RATIO else "beyond"
    near = sum(abs(math.log(square.ratio.ratio)) <= EQUAL_WITHIN for square in row)
    first = (
        f"Its worst is {worst.scenario}: {matrix.measure} ×\u00a0{show(worst.ratio)} of the best, {kind} the bound of "
        f"×\u00a0{MAX_RATIO:g}. By the mean alone, it is within ±5 % of the best in {near} of {len(row)}."
    )
    return [
        first,
        *distance_sentences(matrix, ours),
        *overloaded_scenarios(matrix),
        *(loss_sentence(matrix, square) for square in squares if not square.is_as_good),
    ]


def overloaded_scenarios(matrix: Matrix) -> list[str]:
    """Sentence about scenarios in which so many requests fail under every policy that the measure is meaningless."""
    lost = [
        scenario
        for scenario in matrix.scenarios
        if (column := matrix.column(scenario)) and min(square.failed for square in column) >= MANY_FAILED
    ]
    if not lost or matrix.measure not in ("p99", "p999", "max"):
        return []
    where = ", ".join(lost)
    return [
        f"In {where} at least {percent(MANY_FAILED, 0)} of the requests fail under every policy: {matrix.measure} is "
        "the deadline there, and the odds of a late or failed answer are compared instead."
    ]


def loss_sentence(matrix: Matrix, ours: Square) -> str:
    """Sentence such as `cold-start: prequal is best with p99 212 ms; steelyard has 238 ms, × 1.12 [1.08–1.17].`"""
    best = matrix.best(ours.scenario)
    assert best is not None
    if ours.leads:
        return (
            f"{ours.scenario}: {ours.policy} has the lowest {matrix.measure}, {in_ms(ours.value)}, which chance may "
            f"explain: it may be ×\u00a0{ours.ratio.high:.2f} of the best."
        )
    doubt = ", which chance may explain" if ours.mark == "undecided" else ""
    place = "is best with" if best.mark == "best" else "has the lowest"
    odds = " in odds of a late or failed answer" if ours.judged_by == GOODPUT else ""
    squares = (
        f"{ours.scenario}: {best.policy} {place} {matrix.measure} {in_ms(best.value)}; {ours.policy} has "
        f"{in_ms(ours.value)}, ×\u00a0{show(ours.ratio)}{odds}{doubt}."
    )
    return " ".join([squares, *reasons(ours, best)])


def reasons(ours: Square, best: Square) -> list[str]:
    """Sentences about other differences: the median, the shares of workers, and failures."""
    found = []
    if ours.median and best.median:
        found.append(f"Its median is ×\u00a0{ours.median / best.median:.2f} of the best's.")
    if abs(ours.failed - best.failed) >= MIN_DIFFERENCE / 10:
        found.append(
            f"Of its requests {percent(ours.failed, 2)} failed, of the best's {percent(best.failed, 2)}; its goodput "
            f"is {percent(ours.goodput, 2)}, the best's {percent(best.goodput, 2)}."
        )
    workers = sorted(set(ours.shares) | set(best.shares))
    gaps = {worker: ours.shares.get(worker, 0.0) - best.shares.get(worker, 0.0) for worker in workers}
    widest = max(gaps, key=lambda worker: abs(gaps[worker]), default=None)
    if widest is not None and abs(gaps[widest]) >= MIN_DIFFERENCE:
        parts = [percent(square.shares.get(widest, 0.0), 1) for square in (ours, best)]
        found.append(f"It had {widest} answer {parts[0]}, the best {parts[1]}.")
    return found


def percent(part: float, digits: int) -> str:
    """Format a fraction as `12.5 %`."""
    return f"{part * 100:.{digits}f}\u00a0%"


def in_ms(seconds: float) -> str:
    """Format seconds as `212 ms`, with more digits below 100 ms."""
    return f"{with_digits(seconds * 1e3, 3)} ms"
