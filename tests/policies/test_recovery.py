"""Phases of an endpoint's recovery, and its trials."""

from __future__ import annotations

from itertools import product
from math import inf

import pytest

from policies import EndpointState
from policies.endpoint.available import Available
from policies.endpoint.state import TRIAL_AFTER
from policies.steelyard.recovery import (
    MOST_ROOM,
    NORMAL_AFTER_S,
    Event,
    Phase,
    Recovery,
    Trials,
)
from tests.support.documentation import cells_of
from tests.support.steelyard_routers import endpoint

DOCUMENTED = {
    (phase, event): next_phase
    for phase, event, next_phase in cells_of("docs/policies.md", "| phase | event | next phase |")
}


def in_phase(phase: Phase) -> Recovery:
    """Since five seconds, with something of everything."""
    recovery = Recovery()
    recovery.phase, recovery.since, recovery.room, recovery.evidence, recovery.trial_at = (
        phase,
        5.0,
        3.0,
        2.0,
        7.0,
    )
    return recovery


@pytest.mark.parametrize(("phase", "event"), [*product(Phase, Event)])
def test_each_event_in_each_phase(phase: Phase, event: Event) -> None:
    """As documented, and otherwise nothing changes. A doubt plans a trial, a recovery limits requests."""
    recovery, documented = in_phase(phase), DOCUMENTED.get((phase.value, event.value))
    room = 4.0 if documented == "recovering" else inf
    recovery.note(event, 10.0, room)
    if documented is None:
        before = in_phase(phase)
        assert all(
            getattr(recovery, name) == getattr(before, name)
            for name in ("evidence", "phase", "room", "since", "trial_at")
        )
    else:
        is_doubted = documented in ("suspect", "failing")
        assert (recovery.phase.value, recovery.since, recovery.evidence) == (documented, 10.0, 0.0)
        assert recovery.trial_at == (10.0 + TRIAL_AFTER if is_doubted else inf)
        assert recovery.room == room


def test_no_other_transition_is_documented() -> None:
    assert set(DOCUMENTED) <= {(phase.value, event.value) for phase, event in product(Phase, Event)}
    assert set(DOCUMENTED.values()) <= {phase.value for phase in Phase}


@pytest.mark.parametrize("phase", Phase)
def test_phase_lasts_for_more_than_its_time(phase: Phase) -> None:
    recovery = in_phase(phase)
    recovery.note_time(5.0 + NORMAL_AFTER_S)
    assert recovery.phase is phase
    recovery.note_time(5.1 + NORMAL_AFTER_S)
    ends = phase in (Phase.SUSPECT, Phase.RECOVERING)
    assert recovery.phase is (Phase.NORMAL if ends else phase)


def test_recovering_endpoint_gets_one_more_with_each_answer_and_is_normal_with_many() -> None:
    recovery = in_phase(Phase.RECOVERING)
    for answers in range(1, int(MOST_ROOM) - 2):
        recovery.answered(6.0)
        assert (recovery.phase, recovery.room) == (Phase.RECOVERING, 3.0 + answers)
    recovery.answered(6.0)
    assert (recovery.phase, recovery.room) == (Phase.NORMAL, inf)


def test_recovery_brings_the_trials_of_its_region_forward() -> None:
    trials, states = Trials(0.0, 0.0), [EndpointState(endpoint(n, n[0])) for n in ("a1", "a2", "b")]
    for state in states:
        state.is_selectable, recovery = True, Recovery()
        recovery.note(Event.FAILED, 0.0)
        trials.doubt(state, recovery)
    available = Available(states)
    assert trials.take(available, 0.5) is None
    trials.trust(states[0], 0.5)
    assert [trials.take(available, 0.5) for _ in range(2)] == [states[1], None]
    assert set(trials.doubtful) == {"a2", "b"}
