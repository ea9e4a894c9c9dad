"""Events on running workers: fault requests, spare processes, and one run with all kinds of events."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import experiments.measured.fleet
from experiments.errors import BadInputError
from experiments.measured.faults import MOST_LATE, LiveEvents, faults_of, listening, same
from experiments.measured.fleet import Fleet, returns_of
from experiments.measured.runner import measure
from experiments.platform.control import balancer_status
from experiments.results.directory import plan_block
from experiments.run_data import Kind
from experiments.scenario.event_kinds import HEALTHY, FaultState, Pause
from experiments.scenario.scenario import Scenario
from experiments.scenario.supported import require_live
from experiments.scenario.timeline import timeline

EVENTS: list[dict[str, Any]] = [
    {"at": 1.0, "lasts": 1.0, "target": "here-0", "kind": "down"},
    {"at": 1.0, "target": "here-1", "kind": "add"},
    {"at": 2.5, "target": "here-1", "kind": "fail"},
    {"at": 2.0, "lasts": 1.0, "target": "here-2", "kind": "restart", "value": 0.2},
    {"at": 0.0, "target": "here-3", "kind": "pause", "value": 0.2, "every": 0.5},
]
RAW: dict[str, Any] = {
    "name": "tiny",
    "question": "What then?",
    "baseline": "round-robin",
    "home_region": "here",
    "warmup": 4,
    "load": {"mode": "open", "rate": 60.0, "duration": 4.0},
    "regions": [{"name": "here", "workers": 4, "rtt": 0.002, "service": "fixed:5ms", "slots": 4}],
    "events": EVENTS,
    "entries": [{"label": "round-robin", "policy": "round-robin"}],
}


def test_a_fault_request_has_the_active_faults_only() -> None:
    assert faults_of(HEALTHY) == {}
    assert faults_of(FaultState(slow=2.0, is_unhealthy=True)) == {"slow": 2.0, "unhealthy": True}
    assert faults_of(FaultState(rtt=0.0)) == {"rtt": 0.0}
    assert faults_of(FaultState(is_draining=True, is_absent=True)) == {}


def test_a_repeated_pause_request_keeps_its_phase() -> None:
    fault_state = FaultState(pause=Pause(length=0.1, every=2.0, since=10.3))
    assert faults_of(fault_state, now=10.0) == {"pause": 0.1, "every": 2.0, "after": pytest.approx(0.3)}
    assert same(faults_of(fault_state, now=10.0), faults_of(fault_state, now=50.0))
    assert not same(faults_of(fault_state), {})


def test_number_of_spare_processes() -> None:
    """One process for each return: of a killed or restarted worker, none for the others."""
    scenario = Scenario.model_validate(RAW)
    assert returns_of(timeline(scenario, 1), 4) == [1, 0, 1, 0]


async def test_an_unreachable_worker_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        address = sock.getsockname()
        await listening(address)
    monkeypatch.setattr("experiments.measured.faults.LISTENS_WITHIN", 0.0)
    with pytest.raises(ConnectionRefusedError):
        await listening(address)


async def test_a_late_change_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the load began so long ago that the first is late, and the second is to come."""

    async def accept(*request: object) -> None:
        pass

    monkeypatch.setattr("experiments.measured.faults.request_worker", accept)
    raw = {**RAW, "events": [{"at": 1.0, "lasts": 1.0, "target": "here-0", "kind": "fail"}]}
    fleet = SimpleNamespace(
        places=range(4), workers=[SimpleNamespace(address=("", 0))] * 4,
        steps=timeline(Scenario.model_validate(raw), 1), first_fault_state=lambda worker: HEALTHY,
    )  # fmt: skip
    events = LiveEvents(cast(Fleet, fleet))
    events.begin(time.monotonic() - 1.0 - 2 * MOST_LATE)
    await asyncio.gather(*events._tasks)
    (described,) = await events.end()
    assert re.fullmatch(r"the change at 1 s was made 0\.\d\d s late, 0\.25 s allowed", described)


@pytest.mark.second_tier
async def test_the_admin_interface_has_answered_before_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first request takes longer than others."""
    raw = {**RAW, "events": [{"at": 0.2, "kind": "drain", "target": "here-0"}]}
    scenario = Scenario.model_validate(raw | {"load": {"mode": "open", "rate": 60.0, "duration": 0.5}})
    order = list[str]()

    async def status(address: tuple[str, int]) -> dict[str, Any]:
        order.append("status")
        return await balancer_status(address)

    monkeypatch.setattr(experiments.measured.fleet, "balancer_status", status)
    (planned,) = plan_block(scenario, 0)
    await asyncio.wait_for(measure(scenario, planned, lambda ledger: order.append("load")), 60)
    assert order == ["status", "load", "status"]


def test_distance_needs_a_link() -> None:
    raw = {**RAW, "regions": [{**RAW["regions"][0], "rtt": 0}]}
    require_live(Scenario.model_validate(raw))
    raw["events"] = [{"at": 1.0, "kind": "rtt", "value": 0.1}]
    with pytest.raises(BadInputError, match=r"events\.0: rtt cannot change where a region's rtt is 0"):
        require_live(Scenario.model_validate(raw))


@pytest.mark.second_tier
async def test_a_run_with_workers_that_come_go_and_fail() -> None:
    """Nothing could not be done; who was added answers only then, who was killed and restarted answers again, and who
    fails is seen by clients. Nothing is said of when, which is the machine's business, but of before and after."""
    scenario = Scenario.model_validate(RAW)
    (planned,) = plan_block(scenario, 0)
    run = await asyncio.wait_for(measure(scenario, planned, lambda ledger: None), 60)
    reasons = " ".join(run.facts.invalid_reasons)
    assert "event" not in reasons
    assert "died" not in reasons
    samples = run.samples
    first, added = samples.worker == 0, samples.worker == 1
    assert len(samples) == 240
    assert np.nanmin(samples.first_byte_at[added]) > 1.0
    assert np.any(samples.first_byte_at[first] < 1.0)
    assert np.any(samples.sent_at[first] > 2.0)
    assert np.any(samples.sent_at[samples.worker == 2] > 3.0)
    failed = samples.status == 500
    assert np.any(failed)
    assert np.all(added[failed])
    assert np.all(samples.kind[failed] == Kind.ERROR_STATUS)
    assert np.nanmin(samples.first_byte_at[failed]) > 2.5
    assert np.nanmax(samples.latency[samples.worker == 3]) > 0.05
