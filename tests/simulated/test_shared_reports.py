"""Balancers that report to each other in virtual time are nearly as good as one."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.errors import BadInputError
from experiments.scenario.files import load_scenario
from experiments.scenario.supported import require_live
from experiments.simulator.model import Mechanisms, Model, SharedModel, WorkerModel
from experiments.simulator.simulation import Simulation
from experiments.simulator.translation import model_of
from workers.service import Exponential

SERVICE = 0.2
WORKERS = tuple(WorkerModel(f"w{n}", service=Exponential(SERVICE), rtt=0.002) for n in range(10))


def p99(balancers: int, shared: SharedModel | None) -> float:
    """99th percentile in service times at 80 % load, least-in-flight."""
    model = Model(
        WORKERS, {"name": "least-in-flight"}, balancers, mechanisms=Mechanisms(shared=shared), overhead=0.0005
    )
    instants = np.sort(np.random.default_rng(1).uniform(0, 500, 20_000))
    return float(np.percentile(Simulation(model, 1).open(instants).latencies, 99)) / SERVICE


def test_units_that_share_are_nearly_as_good_as_one() -> None:
    one, shared, alone = p99(1, None), p99(4, SharedModel(0.04, 0.001)), p99(4, None)
    assert shared < 1.06 * one
    assert alone > 1.2 * one


def test_scenarios_have_the_key() -> None:
    scenario = load_scenario("many-balancers")
    entry = next(entry for entry in scenario.entries if entry.label == "steelyard (shared)")
    assert model_of(scenario, entry, 1).mechanisms.shared == SharedModel(0.04, 0.001)
    only = scenario.model_copy(update={"balancers": 1, "entries": (entry,)})
    with pytest.raises(BadInputError, match=r"balancer\.shared\.enabled of steelyard \(shared\)"):
        require_live(only)
