"""One seeded simulation per scenario, compared with what it was before: nothing changes unnoticed.

Rule of this file: whoever means to change what is simulated says so, with STEELYARD_REWRITE=1, and the differences in
`golden/` are part of the change:

    STEELYARD_REWRITE=1 pytest tests/simulated/test_simulator_golden.py

Numbers are kept to nine digits: the tenth may be another on a processor that rounds an exponential otherwise.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.results.plan import plan_block
from experiments.scenario.files import load_scenario, packaged
from experiments.scenario.scenario import Entry, Scenario
from experiments.simulator.run import simulate
from experiments.stats.samples import Kind, Run

GOLDEN = Path(__file__).parent / "golden"
CHOSEN = "least-in-flight"
"""Whose run is kept; the first entry's where it is not among them."""


def entry_of(scenario: Scenario) -> Entry:
    """The one that is run."""
    return next((entry for entry in scenario.entries if entry.label == CHOSEN), scenario.entries[0])


def told(run: Run) -> dict[str, Any]:
    """What is kept of a run: counts, and times in seconds."""
    samples, places = run.samples, run.facts.places
    kinds = {kind.name.lower(): int((samples.kind == kind).sum()) for kind in Kind}
    served = {place.worker: int((samples.worker == n).sum()) for n, place in enumerate(places)}
    quantiles = {f"p{q}": nine(np.percentile(samples.latency, q)) for q in (1, 50, 90, 99, 100)}
    return {
        "entry": run.facts.label,
        "requests": len(samples),
        "kinds": {name: count for name, count in kinds.items() if count},
        "served": served,
        "attempts": int(samples.attempts.sum()),
        "mean": nine(samples.latency.mean()),
        **quantiles,
        "last_end": nine(samples.ended_at.max()),
        "status": run.facts.status,
    }


def nine(number: float) -> float:
    """To nine significant digits."""
    return float(f"{number:.9g}")


@pytest.mark.parametrize("name", packaged())
def test_a_scenario_is_simulated_as_it_was(name: str) -> None:
    """Counts to the last request, times to the ninth digit."""
    scenario = load_scenario(name).quickened()
    seed = plan_block(scenario, 0)[0].seed
    found = told(simulate(scenario, entry_of(scenario), 0, 0, seed))
    file = GOLDEN / f"{name}.json"
    if os.environ.get("STEELYARD_REWRITE") == "1":
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    assert found == json.loads(file.read_text(encoding="utf-8"))


def test_every_golden_run_is_of_a_scenario() -> None:
    """None is left behind by one that is gone."""
    assert {file.stem for file in GOLDEN.glob("*.json")} == set(packaged())
