"""Verdicts of active checks: a table of results in a row, and when the next one is due."""

from __future__ import annotations

from random import Random

import pytest

from policies.health.active_checks import JITTER, CheckRules, CheckState

RULES = CheckRules(interval=5.0, fast_interval=2.0, rise=2, fall=3)


def verdict_after(results: str) -> tuple[CheckState, str]:
    """The verdict after `results` ("+" passed, "-" failed), one a second, and what it was after each."""
    verdict, seen = CheckState(RULES, Random(1), 0.0), ""
    for at, result in enumerate(results):
        verdict.record(None if result == "+" else "status 500", float(at))
        seen += "U" if verdict.is_healthy else "d"
    return verdict, seen


@pytest.mark.parametrize(
    ("results", "seen"),
    [
        ("++++", "UUUU"),
        ("+---", "UUUd"),  # fall 3
        ("+--+--+---", "UUUUUUUUUd"),  # in a row
        ("+---+", "UUUdd"),
        ("+---++", "UUUddU"),  # rise 2
        ("+---+-++", "UUUddddU"),
        ("-", "d"),  # the first one decides
        ("-+", "dd"),
        ("-++", "ddU"),
    ],
)
def test_a_verdict_takes_several_in_a_row(results: str, seen: str) -> None:
    """Three bad ones end health, two good ones illness; one of the other kind in between starts the count anew."""
    assert verdict_after(results)[1] == seen


def test_record_tells_when_the_verdict_changes() -> None:
    """True once per change, so that the router is told once."""
    verdict = CheckState(RULES, Random(1), 0.0)
    told = [verdict.record(fault, 0.0) for fault in (None, "x", "x", "x", "x", None, None, None)]
    assert told == [False, False, False, True, False, False, True, False]
    assert (verdict.passed, verdict.failed, verdict.last_fault) == (4, 4, "x")


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
def test_checks_come_faster_while_something_changes(results: str, interval: float) -> None:
    """Five seconds while all is well, two from the first doubt on until all is well again."""
    verdict, _ = verdict_after(results)
    waits = verdict.due_at - (len(results) - 1)
    assert interval * (1 - JITTER) <= waits <= interval * (1 + JITTER)


def test_checks_drift_apart() -> None:
    """The first ones are spread over the fast interval, and of those after it no two of twenty are due together."""
    rng = Random(1)
    verdicts = [CheckState(RULES, rng, 0.0) for _ in range(20)]
    assert max(v.due_at for v in verdicts) - min(v.due_at for v in verdicts) > RULES.fast_interval / 2
    for verdict in verdicts:
        verdict.record(None, 100.0)
    assert len({round(verdict.due_at, 3) for verdict in verdicts}) == 20


def test_hastening_only_ever_brings_a_check_forward() -> None:
    """Due in five seconds becomes due in about two; due now stays due now."""
    verdict, _ = verdict_after("+")
    verdict.check_soon(0.0)
    assert verdict.due_at <= RULES.fast_interval * (1 + JITTER)
    verdict.due_at = 0.5
    verdict.check_soon(0.0)
    assert verdict.due_at == 0.5
