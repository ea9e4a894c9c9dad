"""The policy matrix: every policy under every scenario, as a ratio to the best policy there.

The statistical unit is the cell, paired by seed. A failed cell, or one with an invalid run, is counted but not
compared. The best policy is not known but chosen from the same cells, so marks and intervals are those of multiple
comparisons with the best (`stats/best.py`). Ratios are to the observed best, that with the lowest geometric mean. Where
even its measure is the deadline in at least half of its cells, the odds of a late or failed answer are compared.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from experiments.errors import BadInputError
from experiments.results.directory import Results, load_results
from experiments.run_data import Run
from experiments.scenario.oracles import is_oracle
from experiments.stats.best import Distance, distances
from experiments.stats.ceiling import GOODPUT, Ceiling, is_at_ceiling, odds_of_miss
from experiments.stats.comparison import ENOUGH_BLOCKS, EQUAL_WITHIN, Interval, is_comparable
from experiments.stats.estimates import geometric_mean
from experiments.stats.measures import lag_shares, spoils_block
from experiments.sweep.catalogue import CellRow
from experiments.sweep.grid import POLICY_KNOB
from experiments.sweep.outcome import numbers_of

Mark = Literal["best", "equal", "undecided", "behind", "no verdict", "bound"]
"""`best`: no other policy can be. `equal`: at most 5 % worse than the best, by its whole interval. `undecided`: it may
be the best, or as good. `behind`: it is not the best. `bound`: an oracle.
"""


@dataclass(frozen=True, slots=True)
class Square:
    """A policy under a scenario: `value` in seconds, the geometric mean over `seeds`; `ratio` to the best.

    `leads`: it is the observed best. `judged_by` is the measure, or `GOODPUT` where the ratio is one of odds. `failed`
    is the fraction of its requests that failed, `goodput` that answered within the SLO, `shares` the fraction of the
    answers by worker, `median` in seconds, all averaged over the seeds.
    """

    policy: str
    scenario: str
    value: float
    ratio: Interval
    mark: Mark
    seeds: int
    failed: float
    goodput: float
    leads: bool
    judged_by: str
    median: float | None
    shares: Mapping[str, float]

    @property
    def is_as_good(self) -> bool:
        """Whether the policy is the best of the scenario or practically equal to it."""
        return self.mark in ("best", "equal")


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
        """Observed best square of a scenario, or None where no cell succeeded."""
        return next((square for square in self.column(scenario) if square.leads), None)

    def row(self, policy: str) -> list[Square]:
        """Squares of a policy, in the order of the scenarios."""
        found = (self.squares.get((policy, scenario)) for scenario in self.scenarios)
        return [square for square in found if square is not None]

    def ranked(self) -> list[str]:
        """Policies by the geometric mean of their ratios; those that lack a scenario come last, then the bounds."""
        return sorted(self.policies, key=self._standing)

    def variant(self, policy: str) -> str:
        """The policy, or the first in the ranking of those that knobs make of it."""
        if policy in self.policies:
            return policy
        return next((one for one in self.ranked() if one.startswith(f"{policy}, ")), policy)

    def shown_name(self, policy: str) -> str:
        """Label of a policy's row; a bound is marked."""
        return f"{policy} (bound)" if policy in self.bounds else policy

    def _standing(self, policy: str) -> tuple[bool, int, float]:
        row = self.row(policy)
        logs = [math.log(square.ratio.ratio) for square in row if square.ratio.ratio > 0]
        return policy in self.bounds, len(self.scenarios) - len(row), float(np.mean(logs)) if logs else 0.0


def matrix_of(rows: Iterable[CellRow], measure: str = "p99") -> Matrix:
    rows = list(rows)
    grouped: dict[tuple[str, str], list[CellRow]] = defaultdict(list)
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


def scenario_name(row: CellRow) -> str:
    """Scenario name with its knobs: `steady, load.rate = 150`."""
    return named(row.scenario, row, is_policys=False)


def policy_name(row: CellRow) -> str:
    """Policy label with its knobs: `least-in-flight, choices = 3`."""
    return named(row.label, row, is_policys=True)


def named(name: str, row: CellRow, is_policys: bool) -> str:
    knobs = [(k, v) for k, v in json.loads(row.knobs).items() if k.startswith(POLICY_KNOB) is is_policys]
    texts = [(knob, f"{value:g}" if isinstance(value, float) else str(value)) for knob, value in knobs]
    return ", ".join([name, *(f"{knob.removeprefix(POLICY_KNOB)} = {text}" for knob, text in texts)])


def left_out(rows: Iterable[CellRow]) -> dict[str, int]:
    """Number of cells that are in no square, by reason."""
    counts = Counter(
        "invalid" if row.state == "done" else row.state
        for row in rows
        if row.state != "done" or is_invalid(row)
    )
    return {kind: counts[kind] for kind in ("missing", "failed", "invalid") if counts[kind]}


def is_bound(row: CellRow) -> bool:
    """Whether the policy is an oracle: shown beside the others, but never the best."""
    return is_oracle(json.loads(row.policy)["name"])


def is_invalid(row: CellRow) -> bool:
    return bool(json.loads(row.numbers["invalid"] or "[]"))


def column_of(scenario: str, cells: Mapping[str, Sequence[CellRow]], measure: str) -> list[Square]:
    kept = {policy: good for policy, rows in cells.items() if (good := usable(rows, measure))}
    if not kept:
        return []
    values = {
        policy: {row.seed: float(row.numbers[measure]) for row in rows} for policy, rows in kept.items()
    }
    bounds = {policy for policy, rows in kept.items() if is_bound(rows[0])}
    able = judged_policies([policy for policy in values if policy not in bounds] or list(values), values)
    ceiling = ceiling_of(kept, measure)
    best = best_of({policy: values[policy] for policy in able})
    is_lost = 2 * len(ceiling.blocks[best]) >= len(values[best])
    compared = {policy: ceiling.odds[policy] for policy in values} if is_lost else values
    best = best_of({policy: compared[policy] for policy in able})
    found = distances(compared, able, best, None if is_lost else ceiling)
    contenders = [policy for policy in able if found[policy].is_contender]
    return [
        Square(
            policy=policy,
            scenario=scenario,
            value=geometric_mean(values[policy].values()),
            ratio=one.ratio,
            mark="bound" if policy in bounds else mark_of(policy, one, contenders, policy in able),
            seeds=len(values[policy]),
            failed=float(np.mean([1 - success_of(row) for row in kept[policy]])),
            goodput=float(np.mean([goodput_of(row) for row in kept[policy]])),
            leads=policy == best,
            judged_by=GOODPUT if is_lost else measure,
            median=median_of(kept[policy]),
            shares=shares_of(kept[policy]),
        )
        for policy, one in found.items()
        if one.ratio.blocks
    ]


def median_of(rows: Sequence[CellRow]) -> float | None:
    """Mean of the medians; None where none is known."""
    medians = [row.numbers["p50"] for row in rows if row.numbers.get("p50") is not None]
    return float(np.mean(medians)) if medians else None


def shares_of(rows: Sequence[CellRow]) -> dict[str, float]:
    """Mean fraction of the answers by worker."""
    shares: dict[str, float] = defaultdict(float)
    for row in rows:
        for worker, part in json.loads(row.numbers["shares"]).items():
            shares[worker] += part / len(rows)
    return dict(shares)


def ceiling_of(cells: Mapping[str, Sequence[CellRow]], measure: str) -> Ceiling:
    """Seeds in which failures make the measure the deadline, and the odds of a miss, by policy."""
    blocks: dict[str, set[int]] = {
        policy: {row.seed for row in rows if is_at_ceiling(measure, failed_of(row), row.numbers["requests"])}
        for policy, rows in cells.items()
    }
    odds = {
        policy: {row.seed: odds_of_miss(goodput_of(row), row.numbers["requests"]) for row in rows}
        for policy, rows in cells.items()
    }
    return Ceiling(blocks, odds)


def failed_of(row: CellRow) -> int:
    return int(row.numbers["requests"] - row.numbers["ok"])


def success_of(row: CellRow) -> float:
    """Share of the requests of a cell that succeeded."""
    return float(row.numbers["ok"] / max(1, row.numbers["requests"]))


def goodput_of(row: CellRow) -> float:
    """Share of the requests of a cell that were answered within the SLO; of successes where it is not known."""
    known = row.numbers.get("goodput")
    return success_of(row) if known is None else float(known)


def usable(rows: Sequence[CellRow], measure: str) -> list[CellRow]:
    """Valid cells with a comparable value."""
    return [
        row
        for row in rows
        if row.state == "done" and not is_invalid(row) and is_comparable(row.numbers[measure])
    ]


def judged_policies(policies: Sequence[str], values: Mapping[str, Mapping[int, float]]) -> list[str]:
    """Policies with at least half of the most seeds: of a few seeds none is the best."""
    most = max(len(values[policy]) for policy in policies)
    return [policy for policy in policies if 2 * len(values[policy]) >= most]


def best_of(values: Mapping[str, Mapping[int, float]]) -> str:
    """Policy with the lowest geometric mean over common seeds."""
    common = set.intersection(*(set(of_seed) for of_seed in values.values())) or set().union(*values.values())

    def mean(policy: str) -> float:
        return geometric_mean(value for seed, value in values[policy].items() if seed in common)

    return min(values, key=mean)


def mark_of(policy: str, distance: Distance, contenders: Sequence[str], is_able: bool) -> Mark:
    """Mark of a policy by its distance from the best; one that is not able to be the best is a bound for the others."""
    if distance.ratio.blocks < ENOUGH_BLOCKS or math.isnan(distance.ratio.high):
        return "no verdict"
    if contenders == [policy]:
        return "best"
    if math.log(distance.ratio.high) <= EQUAL_WITHIN and (
        is_able or distance.ratio.low >= math.exp(-EQUAL_WITHIN)
    ):
        return "undecided" if distance.is_tied else "equal"
    is_behind = not distance.is_contender if is_able else distance.ratio.low > 1
    return "behind" if is_behind else "undecided"


MEASURED = "measured"
LAG_SHARE = 0.05
"""Maximum share (0..1) of mean and p99 that the generator's lag may be in a block that counts."""


def measured_matrix(directories: Sequence[Path], measure: str) -> Matrix:
    """Matrix of the measured campaigns in these results directories; blocks stand for seeds: all entries share one and
    are paired by it. Raises `BadInputError`."""
    return matrix_of(
        [row for directory in directories for row in rows_of(measured(load_results(directory)))], measure
    )


def measured(results: Results) -> Results:
    """Return the results. Raises `BadInputError` when they were simulated."""
    world = results.runs[0].facts.world
    if world != MEASURED:
        raise BadInputError(f"--measured: {results.directory} holds {world} runs, not measured ones")
    return results


def rows_of(results: Results) -> list[CellRow]:
    """One row per run, without the A/A control. A late or interrupted run makes its block invalid for all entries; so
    does here, where 5 % may be called equal, lag of 5 % of a latency.
    """
    policies = {entry.label: entry.policy.model_dump_json() for entry in results.entries()}
    spoiled = {
        run.facts.block
        for run in results.runs
        if spoils_block(run.facts.invalid_reasons) or max(lag_shares(run).values(), default=0) > LAG_SHARE
    }
    return [
        measured_cell(run, results, policies[run.facts.label], run.facts.block in spoiled)
        for run in results.runs
        if results.scenario.entry(run.facts.label).repeat_of is None
    ]


def measured_cell(run: Run, results: Results, policy: str, is_spoiled: bool) -> CellRow:
    """Row of one run, with the same numbers as a simulated cell; one of an invalid block is invalid."""
    facts, scenario = run.facts, results.scenario
    numbers = numbers_of(run, scenario)
    if is_spoiled and facts.is_valid:
        numbers["invalid"] = json.dumps(["left out with its block"])
    cell = f"{results.directory} {facts.label} {facts.block}"
    return CellRow(cell, scenario.name, facts.label, policy, json.dumps({}), facts.block, "done", numbers)
