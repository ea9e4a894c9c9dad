"""The policy matrix: every policy under every scenario, as a ratio to the best policy there.

The statistical unit is the cell, paired by seed. A failed cell, or one with an invalid run, is counted but not
compared. The best policy has the lowest geometric mean; that selection favours it slightly, so a policy that is
practically equal to it counts as equally good.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from experiments.scenario.oracles import is_oracle
from experiments.stats.comparison import ENOUGH_BLOCKS, Interval, holm, is_comparable, paired, standing
from experiments.stats.estimates import geometric_mean, paired_student
from experiments.sweep.catalogue import Row
from experiments.sweep.grid import POLICY_KNOB

Mark = Literal["best", "equal", "undecided", "behind", "no verdict", "bound"]
"""`equal`: the whole interval lies within ±5 %. `undecided`: chance may explain the difference. `bound`: an oracle."""


@dataclass(frozen=True, slots=True)
class Square:
    """A policy under a scenario: `value` in seconds, the geometric mean over `seeds`; `ratio` to the best.

    `failed` is the fraction of its requests that failed, `shares` the fraction of the answers by worker, `median` in
    seconds, all averaged over the seeds.
    """

    policy: str
    scenario: str
    value: float
    ratio: Interval
    mark: Mark
    seeds: int
    failed: float
    median: float | None
    shares: Mapping[str, float]

    @property
    def is_as_good(self) -> bool:
        """Whether the policy is the best of the scenario or practically equal to it."""
        return self.mark in ("best", "equal")

    @property
    def shown_mark(self) -> Mark:
        """Displayed mark: "no verdict" with too few seeds, although the ratios still refer to a best policy."""
        return self.mark if self.mark == "bound" or self.seeds >= ENOUGH_BLOCKS else "no verdict"


@dataclass(frozen=True, slots=True)
class Matrix:
    """`policies` and `scenarios` in the order of the grid; a square is missing where nothing can be compared.

    `bounds` are those of the policies that are oracles.
    """

    measure: str
    policies: tuple[str, ...]
    scenarios: tuple[str, ...]
    squares: Mapping[tuple[str, str], Square]
    left_out: Mapping[str, int]
    bounds: frozenset[str] = frozenset()

    def column(self, scenario: str) -> list[Square]:
        """Squares of a scenario, in the order of the policies."""
        found = (self.squares.get((policy, scenario)) for policy in self.policies)
        return [square for square in found if square is not None]

    def best(self, scenario: str) -> Square | None:
        """Best square of a scenario, or None where no cell succeeded."""
        return next((square for square in self.column(scenario) if square.mark == "best"), None)

    def row(self, policy: str) -> list[Square]:
        """Squares of a policy, in the order of the scenarios."""
        found = (self.squares.get((policy, scenario)) for scenario in self.scenarios)
        return [square for square in found if square is not None]

    def ranked(self) -> list[str]:
        """Policies by the geometric mean of their ratios; those that lack a scenario come last, then the bounds."""
        return sorted(self.policies, key=self._standing)

    def shown_name(self, policy: str) -> str:
        """Label of a policy's row; a bound is marked."""
        return f"{policy} (bound)" if policy in self.bounds else policy

    def _standing(self, policy: str) -> tuple[bool, int, float]:
        row = self.row(policy)
        logs = [math.log(square.ratio.ratio) for square in row if square.ratio.ratio > 0]
        return policy in self.bounds, len(self.scenarios) - len(row), float(np.mean(logs)) if logs else 0.0


def matrix_of(rows: Iterable[Row], measure: str = "p99") -> Matrix:
    """Compute the matrix of a grid's cells."""
    rows = list(rows)
    grouped: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        grouped[scenario_name(row), policy_name(row)].append(row)
    scenarios = tuple(dict.fromkeys(scenario for scenario, _ in grouped))
    policies = tuple(dict.fromkeys(policy for _, policy in grouped))
    squares = {
        (square.policy, scenario): square
        for scenario in scenarios
        for square in column_of(
            scenario, {policy: grouped.get((scenario, policy), []) for policy in policies}, measure
        )
    }
    bounds = frozenset(policy_name(row) for row in rows if is_bound(row))
    return Matrix(measure, policies, scenarios, squares, left_out(rows), bounds)


def scenario_name(row: Row) -> str:
    """Scenario name with its knobs: `steady, load.rate = 150`."""
    return named(row.scenario, row, is_policys=False)


def policy_name(row: Row) -> str:
    """Policy label with its knobs: `least-in-flight, choices = 3`."""
    return named(row.label, row, is_policys=True)


def named(name: str, row: Row, is_policys: bool) -> str:
    """Name with those knobs that belong to it."""
    knobs = [(k, v) for k, v in json.loads(row.knobs).items() if k.startswith(POLICY_KNOB) is is_policys]
    return ", ".join(
        [name, *(f"{knob.removeprefix(POLICY_KNOB)} = {value_text(value)}" for knob, value in knobs)]
    )


def value_text(value: object) -> str:
    """Format a knob value; floats in short form."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def left_out(rows: Iterable[Row]) -> dict[str, int]:
    """Number of cells that are in no square, by reason."""
    counts = {"missing": 0, "failed": 0, "invalid": 0}
    for row in rows:
        if row.state != "done":
            counts[row.state] += 1
        elif is_invalid(row):
            counts["invalid"] += 1
    return {kind: count for kind, count in counts.items() if count}


def is_bound(row: Row) -> bool:
    """Whether the policy is an oracle: shown beside the others, but never the best."""
    return is_oracle(json.loads(row.policy)["name"])


def is_invalid(row: Row) -> bool:
    """Whether the run of the cell is invalid."""
    return bool(json.loads(row.numbers["invalid"] or "[]"))


def column_of(scenario: str, cells: Mapping[str, Sequence[Row]], measure: str) -> list[Square]:
    """Compute the squares of one scenario."""
    kept = {policy: usable(rows, measure) for policy, rows in cells.items()}
    values = {
        policy: {row.seed: float(row.numbers[measure]) for row in rows}
        for policy, rows in kept.items()
        if rows
    }
    if not values:
        return []
    best = best_of(
        {policy: found for policy, found in values.items() if not is_bound(kept[policy][0])} or values
    )
    rivals = [policy for policy in values if policy != best]
    found = {policy: paired(values, policy, best, 0, paired_student) for policy in rivals}
    adjusted = dict(zip(rivals, holm([p for _, p in found.values()]), strict=True))
    seeds = len(values[best])
    squares: dict[str, tuple[Interval, Mark]] = {best: (Interval(1.0, 1.0, 1.0, seeds), "best")}
    for policy, (interval, _) in found.items():
        mark = "bound" if is_bound(kept[policy][0]) else mark_of(interval, adjusted[policy])
        squares[policy] = interval, mark
    return [
        square_of(policy, scenario, kept[policy], values[policy], *squares[policy])
        for policy in values
        if squares[policy][0].blocks
    ]


def usable(rows: Sequence[Row], measure: str) -> list[Row]:
    """Valid cells with a comparable value."""
    return [
        row
        for row in rows
        if row.state == "done" and not is_invalid(row) and is_comparable(row.numbers[measure])
    ]


def best_of(values: Mapping[str, Mapping[int, float]]) -> str:
    """Policy with the lowest geometric mean over common seeds, among those with at least half of the most seeds."""
    most = max(len(of_seed) for of_seed in values.values())
    judged = {policy: of_seed for policy, of_seed in values.items() if 2 * len(of_seed) >= most}
    common = set.intersection(*(set(of_seed) for of_seed in judged.values())) or set().union(*judged.values())

    def mean(policy: str) -> float:
        return geometric_mean(value for seed, value in judged[policy].items() if seed in common)

    return min(judged, key=mean)


def mark_of(interval: Interval, p_value: float) -> Mark:
    """Mark for a comparison with the best; a policy ahead of the best lacks seeds."""
    found = standing(interval, p_value, None, more_is_better=False)
    marks: dict[str, Mark] = {"practically equal": "equal", "behind": "behind", "no verdict": "no verdict"}
    return marks.get(found, "undecided")


def square_of(
    policy: str, scenario: str, rows: Sequence[Row], values: Mapping[int, float], ratio: Interval, mark: Mark
) -> Square:
    """Assemble one square with its explanatory figures."""
    shares: dict[str, float] = defaultdict(float)
    for row in rows:
        for worker, part in json.loads(row.numbers["shares"]).items():
            shares[worker] += part / len(rows)
    failed = float(np.mean([1 - row.numbers["ok"] / max(1, row.numbers["requests"]) for row in rows]))
    value = geometric_mean(values.values())
    medians = [row.numbers["p50"] for row in rows if row.numbers.get("p50") is not None]
    median = float(np.mean(medians)) if medians else None
    return Square(policy, scenario, value, ratio, mark, len(values), failed, median, dict(shares))
