"""The matrix in sentences: where a policy is best, where it is not, and what else differs there.

A sentence states what was counted; it never claims a cause.
"""

from __future__ import annotations

import math

from balancer.syntax.printable import with_digits
from experiments.stats.ceiling import GOODPUT
from experiments.stats.comparison import ENOUGH_BLOCKS, EQUAL_WITHIN
from experiments.sweep.matrix import Matrix, Square
from experiments.sweep.overview import distance_sentences
from experiments.verdict.phrases import show

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
    row = matrix.row(ours)
    if not row:
        return f"{ours} takes no part; the best of each scenario stand below"
    if has_no_verdict(row):
        return f"No verdict: {row[0].seeds} {unit}, {ENOUGH_BLOCKS} needed for an interval"
    squares = judged(row)
    good = sum(square.is_as_good for square in squares)
    others = len(row) - len(squares)
    worst = max(square.ratio.ratio for square in squares)
    return (
        f"{ours} is best or practically equal in {good} of {len(squares)} scenarios "
        f"({percent(good / len(squares), 0)}; wanted {percent(OFTEN_SHARE, 0)}), and at worst ×\u00a0{worst:.2f}"
        + (f"; {others} more have too few {unit} to be judged" if others else "")
    )


def judged(row: list[Square]) -> list[Square]:
    """Squares with enough seeds for an interval."""
    return [square for square in row if square.mark != "no verdict"]


def has_no_verdict(row: list[Square]) -> bool:
    """Whether there are too few seeds for any interval."""
    return not judged(row)


def is_met(matrix: Matrix, ours: str) -> bool | None:
    """Whether both bounds are met; None without a verdict."""
    row = matrix.row(ours)
    if not row or has_no_verdict(row):
        return None
    squares = judged(row)
    good = sum(square.is_as_good for square in squares) / len(squares)
    return good >= OFTEN_SHARE and max(square.ratio.ratio for square in squares) <= MAX_RATIO


def sentences(matrix: Matrix, ours: str) -> list[str]:
    """Sentences about the worst scenario and the bounds; then, given a verdict, one for each scenario that is lost."""
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
