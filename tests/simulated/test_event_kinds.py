"""Every kind of event takes effect in both worlds: in the simulator, and in what live workers are sent."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args

import pytest

from experiments.measured.faults import faults_of
from experiments.results.directory import plan_block
from experiments.run_data import Run
from experiments.scenario.events import VALUES, Kind
from experiments.scenario.scenario import Scenario
from experiments.scenario.timeline import FaultState, timeline
from experiments.simulator.run import simulate

BY_THE_FLEET = {"is_gone", "is_graceful", "is_draining", "is_absent"}
"""Fields of a fault state that are applied by signals and admin requests, not by a request to the worker."""


def scenario(*events: dict[str, Any]) -> Scenario:
    return Scenario.model_validate(
        {
            "name": "tiny",
            "question": "Does the event take effect?",
            "baseline": "round-robin",
            "home_region": "near",
            "load": {"mode": "open", "duration": 20.0, "rate": 20.0},
            "balancer": {"health_checks": {"path": "/healthz"}},
            "regions": [{"name": "near", "workers": 2, "rtt": 0.01}],
            "entries": [{"label": "round-robin", "policy": "round-robin"}],
            "events": list(events),
        }
    )


def event(kind: Kind) -> dict[str, Any]:
    least, most, _ = VALUES.get(kind, (0.0, 0.0, None))
    value = {"value": min(most, max(least, 0.5))} if kind in VALUES else {}
    return {"at": 4.0, "lasts": 6.0, "target": "near-0", "kind": kind, **value}


def simulated(given: Scenario) -> Run:
    return simulate(given, given.entries[0], 0, 0, plan_block(given, 0)[0].seed)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_an_event_changes_the_simulated_run(kind: Kind) -> None:
    without, with_event = simulated(scenario()).samples, simulated(scenario(event(kind))).samples
    assert without.latency.tolist() != with_event.latency.tolist()


@pytest.mark.parametrize("kind", get_args(Kind))
def test_an_event_reaches_a_live_worker(kind: Kind) -> None:
    """As a body for its fault interface, or as a change that the fleet applies."""
    states = [step.fault_state for step in timeline(scenario(event(kind)), 1) if step.worker == 0]
    healthy = FaultState()
    changed = {
        field.name
        for state in states
        for field in fields(state)
        if getattr(state, field.name) != getattr(healthy, field.name)
    }
    assert changed
    assert changed & BY_THE_FLEET or any(faults_of(state) for state in states)
