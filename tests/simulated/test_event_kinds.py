"""Every kind of event takes effect in both worlds: in the simulator, and in what live workers are sent."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

import numpy as np
import pytest
from annotated_types import Le

from experiments.measured.faults import faults_of
from experiments.results.directory import plan_block
from experiments.run_data import Run
from experiments.scenario.event_kinds import KINDS, FaultState
from experiments.scenario.oracles import BOUNDS
from experiments.scenario.scenario import Scenario
from experiments.scenario.timeline import timeline
from experiments.simulator.run import simulate
from workers.faults import Faults

BY_THE_FLEET = {"is_gone", "is_graceful", "is_draining", "is_absent"}
"""Fields of a fault state that are applied by signals and admin requests, not by a request to the worker."""


UNITLESS = {"worker", "slow"} | {name for name, one in Faults.model_fields.items() if Le(1) in one.metadata}


def scenario(*events: dict[str, Any], policy: str = "round-robin") -> Scenario:
    return Scenario.model_validate(
        {
            "name": "tiny",
            "question": "Does the event take effect?",
            "baseline": policy,
            "home_region": "near",
            "load": {"mode": "open", "duration": 20.0, "rate": 20.0},
            "balancer": {
                "health_checks": {"path": "/healthz"},
                "outlier_detection": {"failures": 0},
                "retries": 0,
            },
            "regions": [{"name": "near", "workers": 2, "rtt": 0.01}],
            "entries": [{"label": policy, "policy": policy}],
            "events": list(events),
        }
    )


def event(kind: str, value: float = 0.5) -> dict[str, Any]:
    allowed = KINDS[kind].value
    stated = {} if allowed is None else {"value": min(allowed.most, max(allowed.least, value))}
    return {"at": 4.0, "lasts": 6.0, "target": "near-0", "kind": kind, **stated}


def simulated(given: Scenario) -> Run:
    return simulate(given, given.entries[0], 0, 0, plan_block(given, 0)[0].seed)


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_changes_the_simulated_run(kind: str) -> None:
    without, with_event = simulated(scenario()).samples, simulated(scenario(event(kind))).samples
    assert without.latency.tolist() != with_event.latency.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_reaches_a_live_worker(kind: str) -> None:
    """Each field that it changes: in a body for its fault interface, or as a change that the fleet applies."""
    states = [step.fault_state for step in timeline(scenario(event(kind)), 1) if step.worker == 0]
    healthy = FaultState()
    changed = {
        field.name
        for state in states
        for field in fields(state)
        if getattr(state, field.name) != getattr(healthy, field.name)
    }
    assert changed
    sent = {name for state in states for name in faults_of(state)}
    assert {name.removeprefix("is_") for name in changed - BY_THE_FLEET} <= sent


@pytest.mark.parametrize("kind", KINDS)
def test_the_time_scale_halves_all_that_is_no_share_factor_or_flag(kind: str) -> None:
    given = scenario({**event(kind), "every": 2.0 if kind == "pause" else None})
    whole, halved = (timeline(given.model_copy(update={"time_scale": scale}), 1) for scale in (1.0, 0.5))
    assert whole
    assert [asdict(step) for step in halved] == [half_of(asdict(step)) for step in whole]


def half_of(value: Any, name: str = "") -> Any:
    """Half of each number in a nested dictionary, unless it has no unit."""
    if isinstance(value, dict):
        return {name: half_of(one, name) for name, one in value.items()}
    return value if value is None or isinstance(value, bool) or name in UNITLESS else value / 2


@pytest.mark.parametrize("oracle", BOUNDS)
@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if not kind.is_seen])
def test_the_oracles_that_know_faults_avoid_a_worker_that_has_one(kind: str, oracle: str) -> None:
    """It gets a lesser part of the requests, and none fails, without ejection and retries."""

    def part(*events: dict[str, Any]) -> float:
        samples = simulated(scenario(*events, policy=oracle)).samples
        lasting = (samples.scheduled_at > 4.2) & (samples.scheduled_at < 9.8)
        assert samples.ok[lasting].all()
        return float((samples.worker[lasting] == 0).mean())

    assert part(event(kind, 2.0)) < part() - 0.2


@pytest.mark.parametrize("kind", ["drain", "add"])
def test_requests_that_come_while_no_worker_is_an_endpoint_are_answered_503(kind: str) -> None:
    samples = simulated(scenario({**event(kind), "target": "all"})).samples
    is_without = (samples.scheduled_at >= 4.0) & (samples.scheduled_at < 10.0)
    is_without = is_without if kind == "drain" else ~is_without
    assert (samples.status == np.where(is_without, 503, 200)).all()


def test_no_simulated_request_succeeds_after_the_deadline() -> None:
    """Which the overhead, half a millisecond, is part of; what times out ends at the deadline."""
    regions = [{"name": "near", "workers": 2, "rtt": 0.01, "service": "fixed:989.8ms", "slots": 99}]
    given = scenario().model_dump() | {"regions": regions, "timeout": 1.0}
    samples = simulated(Scenario.model_validate(given)).samples
    assert not samples.ok.any()
    np.testing.assert_allclose(samples.latency, 1.0, atol=1e-9)
