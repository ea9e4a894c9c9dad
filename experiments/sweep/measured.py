"""Convert measured campaigns to the rows of a sweep, so that both are compared in the same way.

The block takes the place of the seed: all entries share it and are paired by it. The A/A control is left out, because
the policy that it repeats is included.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from experiments.errors import BadInputError
from experiments.results.directory import Results, load_results
from experiments.run_data import Run
from experiments.stats.measures import lag_shares, spoils_block
from experiments.sweep.catalogue import CellRow
from experiments.sweep.matrix import Matrix, matrix_of
from experiments.sweep.outcome import numbers_of

MEASURED = "measured"
LAG_SHARE = 0.05
"""Maximum share (0..1) of mean and p99 that the generator's lag may be in a block that counts."""


def measured_matrix(directories: Sequence[Path], measure: str) -> Matrix:
    """Matrix of the measured campaigns in these results directories. Raises `BadInputError`."""
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
