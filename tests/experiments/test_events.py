"""Events: validation, and the fault state of each worker over time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from pydantic import ValidationError

from experiments.errors import BadInputError
from experiments.scenario.event_kinds import HEALTHY, FaultState, Pause
from experiments.scenario.events import Event
from experiments.scenario.scenario import Scenario
from experiments.scenario.supported import require_live
from experiments.scenario.timeline import Step, timeline

RAW: dict[str, Any] = {
    "name": "tiny",
    "question": "What then?",
    "baseline": "random",
    "home_region": "near",
    "load": {"mode": "open", "rate": 100.0, "duration": 40.0},
    "regions": [{"name": "near", "workers": 2, "rtt": 0.01}, {"name": "far", "workers": 1, "rtt": 0.1}],
    "entries": [{"label": "random", "policy": "random"}],
}


def scenario(*events: dict[str, Any], **keys: Any) -> Scenario:
    return Scenario.model_validate({**RAW, **keys, "events": list(events)})


def pauses(made: Scenario) -> list[tuple[float, int, float]]:
    """(instant, worker, length) of every single pause, ascending."""
    found = []
    for worker in range(len(made.workers)):
        for (at, state), (end, _) in pairwise(troubles(made, worker)):
            pause = state.pause
            while pause is not None and pause.since < end:
                if pause.since >= at:
                    found.append((pause.since, worker, pause.length))
                pause = replace(pause, since=pause.since + pause.every) if pause.every else None
    return sorted(found)


def troubles(made: Scenario, worker: int, seed: int = 1) -> list[tuple[float, FaultState]]:
    return [(step.at, step.fault_state) for step in timeline(made, seed) if step.worker == worker]


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"kind": "slow"}, "value: needed by kind = 'slow'"),
        ({"kind": "slow", "value": 0}, "value: must be from 0.001"),
        ({"kind": "fail", "value": 1.5}, "value: must be from 1e-06 to 1 "),
        ({"kind": "down", "value": 1}, "value: 'down' has none"),
        ({"kind": "fail", "every": 2}, "every: only a pause"),
        ({"kind": "pause", "value": 0.5, "every": 0.5}, "every: must be longer than the pause of 0.5 s"),
        ({"kind": "restart"}, "lasts: a restart needs more than the 1 s"),
        ({"kind": "add", "at": 0}, "at: who is added at 0"),
        ({"kind": "explode"}, "kind"),
        ({"kind": "down", "at": -1}, "at"),
    ],
)
def test_invalid_events_are_rejected(event: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Event.model_validate({"at": 1.0, **event})


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (
            {"target": "mars"},
            r"events\.0\.target: unknown 'mars'; known: all, near, far, near-0, near-1, far-0",
        ),
        ({"at": 40.0}, r"events\.0\.at: the load ends at 40 s"),
    ],
)
def test_an_event_needs_a_known_target_and_an_instant_within_the_run(
    event: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        scenario({"at": 1.0, "kind": "down", **event})


@pytest.mark.parametrize(("target", "struck"), [("all", {0, 1, 2}), ("near", {0, 1}), ("far-0", {2})])
def test_a_target_is_a_worker_a_region_or_everybody(target: str, struck: set[int]) -> None:
    steps = timeline(scenario({"at": 1.0, "lasts": 2.0, "kind": "hang", "target": target}), 1)
    assert {step.worker for step in steps} == struck
    assert {step.at for step in steps} == {1.0, 3.0}


def test_an_event_begins_and_ends() -> None:
    made = scenario({"at": 10, "lasts": 5, "kind": "slow", "value": 4, "target": "near-1"})
    assert timeline(made, 1) == (Step(10.0, 1, FaultState(slow=4.0)), Step(15.0, 1, HEALTHY))


def test_overlapping_events_combine() -> None:
    """Factors multiply, the greater share counts, and the end of one leaves the other in force."""
    made = scenario(
        {"at": 10, "lasts": 10, "kind": "slow", "value": 2, "target": "near"},
        {"at": 15, "lasts": 10, "kind": "slow", "value": 3, "target": "near-0"},
        {"at": 15, "kind": "fail", "value": 0.5, "target": "near-0"},
        {"at": 16, "lasts": 1, "kind": "fail", "value": 0.2, "target": "near-0"},
    )
    assert troubles(made, 0) == [
        (10.0, FaultState(slow=2.0)),
        (15.0, FaultState(slow=6.0, fail=0.5)),
        (20.0, FaultState(slow=3.0, fail=0.5)),
        (25.0, FaultState(fail=0.5)),
    ]


def test_an_added_worker_is_absent_before_and_after() -> None:
    made = scenario({"at": 10, "lasts": 20, "kind": "add", "target": "far"})
    absent = FaultState(is_absent=True)
    assert troubles(made, 2) == [(0.0, absent), (10.0, HEALTHY), (30.0, absent)]
    assert troubles(made, 0) == []


def test_a_rolling_restart_takes_one_worker_after_the_other() -> None:
    """Each drains for its second, is gone for two, and is back before the next one goes."""
    made = scenario({"at": 5, "lasts": 3, "kind": "restart", "target": "near", "stagger": 4})
    draining = FaultState(is_draining=True, is_graceful=True)
    gone = FaultState(is_draining=True, is_graceful=True, is_gone=True)
    assert troubles(made, 0) == [(5.0, draining), (6.0, gone), (8.0, HEALTHY)]
    assert troubles(made, 1) == [(9.0, draining), (10.0, gone), (12.0, HEALTHY)]


def test_periodic_pauses_have_a_random_phase_by_worker_and_seed() -> None:
    """They repeat every second until the event ends."""
    made = scenario({"at": 10, "lasts": 5, "kind": "pause", "value": 0.1, "every": 1.0})
    steps = timeline(made, 1)
    assert steps == timeline(made, 1)
    assert steps != timeline(made, 2)
    single = pauses(made)
    assert single == sorted(single)
    for worker in range(3):
        begins = [at for at, struck, length in single if struck == worker]
        assert len(begins) == 5
        assert 10 <= begins[0] < 11
        assert [round(at - begins[0], 9) for at in begins] == [0, 1, 2, 3, 4]
    assert len({round(at % 1, 6) for at, *_ in single}) == 3


def test_another_event_does_not_move_the_pauses() -> None:
    pause = {"at": 10, "lasts": 10, "kind": "pause", "value": 0.1, "every": 1.0, "target": "far"}
    slow = {"at": 12.5, "lasts": 1, "kind": "slow", "value": 2, "target": "far"}
    assert pauses(scenario(pause, slow)) == pauses(scenario(pause))


def test_duration_of_a_single_pause() -> None:
    made = scenario({"at": 10, "kind": "pause", "value": 2, "target": "far"})
    assert troubles(made, 2) == [(10.0, FaultState(pause=Pause(2.0, 0.0, 10.0))), (12.0, HEALTHY)]
    assert pauses(made) == [(10.0, 2, 2.0)]


def test_a_quick_run_keeps_the_events_in_proportion() -> None:
    made = scenario({"at": 10, "lasts": 20, "kind": "down", "target": "far", "stagger": 4}).quickened()
    (event,) = made.events
    assert (event.at, event.lasts, event.stagger) == (1.25, 2.5, 0.5)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"staleness": 0.5}, "staleness = 0.5: only the simulator"),
        ({"balancers": 3}, "balancers = 3: only the simulator"),
        (
            {"regions": [{**RAW["regions"][0], "discipline": "sharing"}]},
            "discipline = 'sharing': only the sim",
        ),
        (
            {"regions": [{**RAW["regions"][0], "setup_rtts": 4}]},
            "setup_rtts = 4: real processes take 1, 2 or 3",
        ),
    ],
)
def test_what_only_the_simulator_can_do_is_refused(keys: dict[str, Any], message: str) -> None:
    require_live(scenario())
    with pytest.raises(BadInputError, match=message):
        require_live(scenario(**keys))
