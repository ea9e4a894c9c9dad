"""Balancers that report to each other in virtual time are nearly as good as one."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.errors import BadInputError
from experiments.scenario.files import load_scenario
from experiments.scenario.mechanisms import SharedTable
from experiments.scenario.supported import require_live
from experiments.simulator.model import Model, WorkerModel, mechanisms
from experiments.simulator.simulation import Simulation
from experiments.simulator.translation import model_of
from workers.service import Exponential

SERVICE = 0.2
SHARED, ALONE = SharedTable(enabled=True, every=0.02, delay=0.001), SharedTable()
WORKERS = tuple(WorkerModel(f"w{n}", service=Exponential(SERVICE), rtt=0.002) for n in range(10))


def p99(balancers: int, shared: SharedTable, policy: str = "least-in-flight") -> float:
    """99th percentile in service times at 80 % load."""
    model = Model(WORKERS, {"name": policy}, balancers, mechanisms=mechanisms(shared=shared), overhead=0.0005)
    instants = np.sort(np.random.default_rng(1).uniform(0, 500, 20_000))
    return float(np.percentile(Simulation(model, 1).open(instants).latencies, 99)) / SERVICE


@pytest.mark.second_tier
@pytest.mark.parametrize("policy", ["least-in-flight", "steelyard"])
def test_units_that_share_are_nearly_as_good_as_one(policy: str) -> None:
    one, shared = p99(1, ALONE, policy), p99(4, SHARED, policy)
    assert shared < 1.06 * one
    assert p99(4, ALONE, policy) > 1.2 * one


def test_scenarios_have_the_key() -> None:
    scenario = load_scenario("many-balancers")
    entry = next(entry for entry in scenario.entries if entry.label == "steelyard (shared)")
    assert model_of(scenario, entry, 1).mechanisms.shared == SHARED
    only = scenario.model_copy(update={"balancers": 1, "entries": (entry,)})
    with pytest.raises(BadInputError, match=r"balancer\.shared\.enabled of steelyard \(shared\)"):
        require_live(only)
