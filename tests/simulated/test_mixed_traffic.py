"""Cheap and expensive requests: equal workers get equal shares."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.scenario.files import load_scenario
from experiments.simulator.run import simulate


@pytest.mark.second_tier
@pytest.mark.parametrize(("workers", "slots", "rate"), [(3, 1, 150.0), (4, 4, 1000.0)])
def test_cheap_and_expensive_requests_do_not_upset_shares(workers: int, slots: int, rate: float) -> None:
    """Nine of ten requests take 1 ms, one 100 ms. Over 30,000 requests the shares are within 10 % of equal."""
    scenario = load_scenario("homogeneous")
    region = scenario.regions[0].model_copy(
        update={"workers": workers, "slots": slots, "service": "mixed:1ms,100ms,0.1"}
    )
    load = scenario.load.model_copy(update={"rate": rate, "duration": 30_000 / rate})
    entry = next(entry for entry in scenario.entries if entry.label == "steelyard")
    scenario = scenario.model_copy(update={"regions": (region,), "load": load, "entries": (entry,)})
    served = simulate(scenario, entry, 0, 0, 1).samples.worker
    shares = np.bincount(served, minlength=workers) * workers / len(served)
    assert len(served) == pytest.approx(30_000, rel=0.02)
    assert shares == pytest.approx(np.ones(workers), abs=0.1)
