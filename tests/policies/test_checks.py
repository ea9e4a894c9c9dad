"""Health by active checks: rise and fall, and when the next check is due."""

from __future__ import annotations

from random import Random

import pytest

from policies.health.active_checks import JITTER, CheckRules, CheckState

RULES = CheckRules(interval=5.0, fast_interval=2.0, rise=2, fall=3)


def state_after(results: str) -> tuple[CheckState, str]:
    """The state after `results` ("+" passed, "-" failed), one a second, and its health after each."""
    state, seen = CheckState(RULES, Random(1), 0.0), ""
    for at, result in enumerate(results):
        state.record(None if result == "+" else "status 500", float(at))
        seen += "U" if state.is_healthy else "d"
    return state, seen


@pytest.mark.parametrize(
    ("results", "seen"),
    [
        ("++++", "UUUU"),
        ("+---", "UUUd"),  # fall 3
        ("+--+--+---", "UUUUUUUUUd"),  # in a row
        ("+---+", "UUUdd"),
        ("+---++", "UUUddU"),  # rise 2
        ("+---+-++", "UUUddddU"),
        ("-", "d"),  # the first check decides
        ("-+", "dd"),
        ("-++", "ddU"),
    ],
)
def test_health_changes_after_several_results_in_a_row(results: str, seen: str) -> None:
    """Three failures or two successes; a result of the other kind starts the count anew. The first check decides."""
    assert state_after(results)[1] == seen


def test_record_returns_whether_health_changed() -> None:
    """True once per change."""
    state = CheckState(RULES, Random(1), 0.0)
    changed = [state.record(fault, 0.0) for fault in (None, "x", "x", "x", "x", None, None, None)]
    assert changed == [False, False, False, True, False, False, True, False]
    assert (state.passed, state.failed, state.last_fault) == (4, 4, "x")


@pytest.mark.parametrize(
    ("results", "interval"),
    [
        ("+", 5.0),
        ("++", 5.0),
        ("+-", 2.0),
        ("+-+", 5.0),
        ("+---", 2.0),
        ("+---+", 2.0),
        ("+---++", 5.0),
        ("-", 2.0),
    ],
)
def test_interval_is_shorter_while_results_change(results: str, interval: float) -> None:
    """5 s while all pass; 2 s from the first failure until healthy again."""
    state, _ = state_after(results)
    waits = state.due_at - (len(results) - 1)
    assert interval * (1 - JITTER) <= waits <= interval * (1 + JITTER)


def test_checks_are_spread_over_time() -> None:
    """First checks over the fast interval; of later ones no two of twenty are due together."""
    rng = Random(1)
    states = [CheckState(RULES, rng, 0.0) for _ in range(20)]
    assert max(v.due_at for v in states) - min(v.due_at for v in states) > RULES.fast_interval / 2
    for state in states:
        state.record(None, 100.0)
    assert len({round(state.due_at, 3) for state in states}) == 20


def test_check_soon_never_delays_a_check() -> None:
    """Due in 5 s becomes due in about 2 s; due in 0.5 s stays."""
    state, _ = state_after("+")
    state.check_soon(0.0)
    assert state.due_at <= RULES.fast_interval * (1 + JITTER)
    state.due_at = 0.5
    state.check_soon(0.0)
    assert state.due_at == 0.5
