"""One seeded simulation per scenario, compared with stored figures: no change goes unnoticed.

For an intended change, rewrite the files in `golden/` and commit them with it:

    STEELYARD_REWRITE=1 pytest tests/simulated/test_simulator_golden.py

Numbers have nine digits: the tenth may differ between processors that round an exponential differently.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.results.directory import plan_block
from experiments.run_data import Kind, Run
from experiments.scenario.files import load_scenario, packaged
from experiments.scenario.scenario import Entry, Scenario
from experiments.simulator.run import simulate

GOLDEN = Path(__file__).parent / "golden"
CHOSEN = "least-in-flight"
"""Label of the entry whose run is stored; the scenario's first entry if it has none of that label."""


def entry_of(scenario: Scenario) -> Entry:
    return next((entry for entry in scenario.entries if entry.label == CHOSEN), scenario.entries[0])


def figures_of(run: Run) -> dict[str, Any]:
    """The stored figures of a run: counts, and times in seconds."""
    samples, places = run.samples, run.facts.places
    kinds = {kind.name.lower(): int((samples.kind == kind).sum()) for kind in Kind}
    served = {place.worker: int((samples.worker == n).sum()) for n, place in enumerate(places)}
    quantiles = {f"p{q}": rounded(np.percentile(samples.latency, q)) for q in (1, 50, 90, 99, 100)}
    return {
        "entry": run.facts.label,
        "requests": len(samples),
        "kinds": {name: count for name, count in kinds.items() if count},
        "served": served,
        "attempts": int(samples.attempts.sum()),
        "mean": rounded(samples.latency.mean()),
        **quantiles,
        "last_end": rounded(samples.ended_at.max()),
        "status": run.facts.status,
    }


def rounded(number: float) -> float:
    """To nine significant digits."""
    return float(f"{number:.9g}")


SIMULATED = [name for name in packaged() if not name.startswith("inference-")]
"""Scenarios whose workers are those of this simulator."""


@pytest.mark.parametrize("name", SIMULATED)
def test_simulation_equals_its_stored_figures(name: str) -> None:
    """Counts exactly, times to nine digits."""
    scenario = load_scenario(name).quickened()
    seed = plan_block(scenario, 0)[0].seed
    found = figures_of(simulate(scenario, entry_of(scenario), 0, 0, seed))
    file = GOLDEN / f"{name}.json"
    if os.environ.get("STEELYARD_REWRITE") == "1":
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    assert found == json.loads(file.read_text(encoding="utf-8"))


def test_every_stored_run_has_a_scenario() -> None:
    assert {file.stem for file in GOLDEN.glob("*.json")} == set(SIMULATED)
