"""Load shedding in a simulated pool: above its capacity, just below it, and where a worker hangs."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.scenario.scenario import Scenario
from experiments.simulator.run import simulate
from experiments.sweep.outcome import numbers_of

pytestmark = pytest.mark.second_tier

CAPACITY = 400.0
SLOW = {"at": 20.0, "lasts": 6.0, "target": "home", "kind": "slow"}
HANG = {"at": 20.0, "lasts": 10.0, "target": "home-0", "kind": "hang", "value": 1.0}


def both(
    load: float, *events: dict[str, Any], balancers: int = 1, seed: int = 0, **timeouts: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Numbers of a run with and one without shedding; `load` is relative to the capacity."""
    waits = {"label": "waits", "policy": {"name": "steelyard", "shed": False}}
    document: dict[str, Any] = {
        **{"name": "pool", "question": "Which are answered?", "baseline": "sheds", "home_region": "home"},
        **{"slo": 0.2, "timeout": 2.0, "blocks": 1, "balancers": balancers, "events": events},
        "load": {"mode": "open", "rate": load * CAPACITY, "duration": 60.0},
        "entries": [{"label": "sheds", "policy": "steelyard"}, waits],
        "regions": [{"name": "home", "workers": 4, "slots": 2, "rtt": 0.001, "service": "exponential:20ms"}],
        "balancer": {"timeouts": timeouts},
    }
    scenario = Scenario.model_validate(document)
    first, second = (
        numbers_of(simulate(scenario, entry, 1, 0, seed), scenario) for entry in scenario.entries
    )
    return first, second


@pytest.mark.parametrize("load", [1.1, 1.5])
def test_above_capacity_most_of_it_is_used_for_answers_in_time(load: float) -> None:
    """The first seconds are lost: nothing is rejected until clients have given up."""
    sheds, waits = both(load)
    assert sheds["goodput"] * load > 0.6
    assert sheds["ok"] / sheds["requests"] * load > 0.85
    assert waits["goodput"] * load < 0.1


def test_balancers_that_share_nothing_shed_as_well() -> None:
    runs = [both(1.1, balancers=4, seed=seed) for seed in range(4)]
    assert sum(sheds["goodput"] for sheds, _ in runs) / 4 * 1.1 > 0.5
    assert max(waits["goodput"] for _, waits in runs) * 1.1 < 0.1


def test_pool_recovers_from_a_queue_that_outlasts_its_cause() -> None:
    """At 96 % of the capacity a queue of timed-out requests stays after the slowdown that made it."""
    sheds, waits = both(0.96, SLOW | {"value": 4.0})
    assert sheds["goodput"] > 0.65
    assert waits["goodput"] < 0.5


@pytest.mark.parametrize(
    ("event", "timeouts"), [(SLOW | {"value": 1.6}, {}), (HANG, {"attempt": 1.0})], ids=["queue", "hang"]
)
def test_nothing_is_rejected_where_no_request_fails_in_a_queue(
    event: dict[str, Any], timeouts: dict[str, Any]
) -> None:
    """A queue of 0.5 s or more, or a worker that answers nothing until attempts time out."""
    sheds, waits = both(0.7, event, **timeouts)
    assert waits["max"] > 0.5
    assert sheds["ok"] == waits["ok"] == sheds["requests"]


def test_retries_of_attempts_that_time_out_do_not_keep_the_pool_overloaded() -> None:
    """At 70 % of the capacity: retried after 1 s in a queue of a short slowdown, they would be more than it serves."""
    sheds, waits = both(0.7, SLOW | {"value": 2.0}, attempt=1.0)
    assert sheds["goodput"] > 0.6
    assert waits["goodput"] < 0.45
