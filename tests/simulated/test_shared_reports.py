"""Balancers that report to each other in virtual time: nearly as good as one, and no herd if reports are late."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.errors import BadInputError
from experiments.scenario.files import load_scenario, packaged
from experiments.scenario.supported import require_live
from experiments.simulator.model import Mechanisms, Model, SharedModel, WorkerModel
from experiments.simulator.simulation import Simulation
from experiments.simulator.translation import model_of
from policies.endpoint.elsewhere import Elsewhere
from workers.service import Exponential

SERVICE = 0.2
WORKERS = tuple(WorkerModel(f"w{n}", service=Exponential(SERVICE), rtt=0.002) for n in range(10))


def p99(balancers: int, shared: SharedModel | None) -> float:
    """99th percentile in service times at 80 % load, least-in-flight."""
    model = Model(
        WORKERS, {"name": "least-in-flight"}, balancers, mechanisms=Mechanisms(shared=shared), overhead=0.0005
    )
    instants = np.sort(np.random.default_rng(1).uniform(0, 200, 8000))
    return float(np.percentile(Simulation(model, 1).open(instants).latencies, 99)) / SERVICE


def test_units_that_share_are_nearly_as_good_as_one() -> None:
    one, shared, alone = p99(1, None), p99(4, SharedModel(0.04, 0.001)), p99(4, None)
    assert shared < 1.06 * one
    assert alone > 1.2 * one


def test_late_reports_do_not_make_a_herd(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report that is five service times late counts as its mean: as it is, it would attract all units at once."""
    late = SharedModel(5 * SERVICE, 5 * SERVICE)
    decayed = p99(8, late)

    def as_it_is(source: Elsewhere, count: int, now: float, age: float, service: float) -> int:
        before, source.believed = source.believed, count
        return count - before

    monkeypatch.setattr(Elsewhere, "update", as_it_is)
    assert p99(8, late) > 1.5 * decayed


def test_scenarios_have_the_key() -> None:
    scenario = load_scenario(packaged()["many-balancers"])
    entry = next(entry for entry in scenario.entries if entry.label == "steelyard (shared)")
    assert model_of(scenario, entry, 1).mechanisms.shared == SharedModel(0.04, 0.001)
    only = scenario.model_copy(update={"balancers": 1, "entries": (entry,)})
    with pytest.raises(BadInputError, match=r"balancer\.shared\.enabled of steelyard \(shared\)"):
        require_live(only)
