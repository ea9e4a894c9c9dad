"""Measured campaigns below the policy matrix of a sweep."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.errors import BadInputError
from experiments.results.directory import load_results
from experiments.run_data import save_run
from experiments.sweep import catalogue as catalogues
from experiments.sweep.cells import cells_of
from experiments.sweep.grid import checked_grid
from experiments.sweep.matrix import measured, measured_matrix
from experiments.sweep.outcome import CellOutcome, numbers_of
from experiments.sweep.page import write_page
from tests.support.result_sets import LATE, write_results


@pytest.mark.usefixtures("unrendered")
def test_measured_campaigns_are_shown_below_the_matrix(tmp_path: Path) -> None:
    """A late run makes its block invalid for all; those runs are counted and not compared."""
    scenario = write_results(tmp_path / "run", blocks=9, requests=60)
    late = load_results(tmp_path / "run").runs[0]
    facts = late.facts.model_copy(update={"invalid_reasons": (LATE,)})
    save_run(replace(late, facts=facts), tmp_path / "run" / "runs" / "block-000-run-00.npz")
    matrix = measured_matrix([tmp_path / "run"], "p99")
    left = (scenario.control_pair or ())[1:]  # the A/A control repeats another entry
    labels = [entry.label for entry in scenario.entries if entry.label not in left]
    assert matrix.scenarios == (scenario.name,)
    assert [square.policy for square in matrix.column(scenario.name)] == labels
    assert matrix.left_out == {"invalid": len(labels)}
    assert {square.seeds for square in matrix.column(scenario.name)} == {8}
    raw = {"name": "g", "scenarios": ["steady"], "policies": ["random"], "seeds": 9, "ours": "region-aware"}
    grid = checked_grid(raw, "grid")
    numbers = numbers_of(load_results(tmp_path / "run").runs[1], scenario)
    with catalogues.to_write(tmp_path / "g.sqlite") as catalogue:
        cells = cells_of(grid, "1")
        catalogue.plan(grid, "1", "experiments sweep", cells)
        for cell in cells:
            catalogue.record(cell, CellOutcome(numbers, None, 1.0, "here"))
        write_page(catalogue, None, "p99", tmp_path / "out", matrix)
    page = (tmp_path / "out" / "matrix.html").read_text(encoding="utf-8")
    assert "Measured on real processes" in page
    assert f"{len(labels)} runs are invalid and compared with nothing." in page
    assert (tmp_path / "out" / "figures" / "measured.svg").is_file()
    content = json.loads((tmp_path / "out" / "matrix.json").read_text(encoding="utf-8"))
    assert [square["policy"] for square in content["measured"]] == labels


def test_a_block_with_much_lag_counts_for_nothing(tmp_path: Path) -> None:
    """The matrix calls 5 % equal, so lag of more than that under one entry leaves its block out for all."""
    write_results(tmp_path / "run", blocks=2, requests=60)
    first = load_results(tmp_path / "run").runs[0]
    for share, left_out in ((0.02, {}), (0.03, {"invalid": 9})):
        sent = first.samples.scheduled_at + share * first.samples.latency
        late = replace(first, samples=replace(first.samples, sent_at=sent))
        save_run(late, tmp_path / "run" / "runs" / "block-000-run-00.npz")
        assert measured_matrix([tmp_path / "run"], "p99").left_out == left_out


def test_simulated_campaigns_are_rejected_as_measured(tmp_path: Path) -> None:
    write_results(tmp_path / "run", blocks=1, requests=60)
    results = load_results(tmp_path / "run")
    facts = results.runs[0].facts.model_copy(update={"world": "simulated"})
    with pytest.raises(BadInputError, match="holds simulated runs, not measured ones"):
        measured(replace(results, runs=(replace(results.runs[0], facts=facts),)))
