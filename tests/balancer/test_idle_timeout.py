"""How long a worker keeps idle connections, learned from made-up ends."""

from __future__ import annotations

from random import Random

import pytest

from balancer.config.pool_limits import IdleTimeoutRules
from balancer.upstream.idle_timeout import (
    CLASSES,
    DEFAULT_IDLE_TIMEOUT,
    MIN_IDLE_AGE,
    IdleTimeout,
    beginning,
    class_of,
)

NOW = 1000.0


def idle_timeout() -> IdleTimeout:
    return IdleTimeout(IdleTimeoutRules(), NOW)


def judged(idle_timeout: IdleTimeout, now: float = NOW) -> tuple[float, float]:
    idle_timeout.judge(now)
    return idle_timeout.age, idle_timeout.strict_age


def test_classes_hold_their_ages() -> None:
    """Each begins where the one before ends, and is 9 % wide."""
    for at in range(1, CLASSES):
        assert class_of(beginning(at) * 1.0001) == at
        assert class_of(beginning(at) * 0.9999) == at - 1
    assert class_of(0.0) == class_of(-1.0) == 0
    assert class_of(1e9) == CLASSES - 1
    assert beginning(2) / beginning(1) == pytest.approx(1.0905, abs=1e-4)


def test_nothing_is_known_at_first() -> None:
    """An unknown worker is trusted for as long as the shortest of the usual times allows."""
    known = idle_timeout()
    assert judged(known) == (DEFAULT_IDLE_TIMEOUT, DEFAULT_IDLE_TIMEOUT)
    assert not known.is_learned


@pytest.mark.parametrize("kept", [0.5, 2.0, 4.0, 5.0, 60.0, 75.0])
def test_one_close_by_a_timer(kept: float) -> None:
    """It is enough: the horizon is a class's width before it at most, longer or shorter than was assumed."""
    known = idle_timeout()
    known.closed(kept * 1.0001)
    age, strict = judged(known)
    assert age == strict
    assert kept / 1.1 <= age <= kept
    assert known.is_learned


def test_what_stood_is_no_evidence_of_a_close() -> None:
    """Leases before a timer's time make nothing shorter, and those beyond what is assumed make it longer."""
    known = idle_timeout()
    for _ in range(1000):
        known.stood(1.0)
    assert judged(known) == (DEFAULT_IDLE_TIMEOUT, DEFAULT_IDLE_TIMEOUT)
    known.stood(20.0)
    age, strict = judged(known)
    assert age == strict
    assert 20 / 1.1 <= age <= 20


def test_censored_ends_count_as_at_risk() -> None:
    """Kaplan and Meier: of 300 that came to 2 s two were closed there, which is less than 1 % and more than 0.1 %; half
    of the others were leased at once, and the timer closes the rest at 8 s."""
    known = idle_timeout()
    for _ in range(2):
        known.closed(2.01)
    for _ in range(149):
        known.stood(2.5)
        known.closed(8.01)
    age, strict = judged(known)
    assert 8 / 1.1 <= age <= 8
    assert 2 / 1.1 <= strict <= 2


def test_young_leases_are_at_risk_too() -> None:
    """A close at once among thousands of leases at once is no rule; among none it is."""
    known = idle_timeout()
    known.stood_young(5000)
    known.closed(0.1)
    assert judged(known) == (DEFAULT_IDLE_TIMEOUT, DEFAULT_IDLE_TIMEOUT)
    known = idle_timeout()
    known.closed(0.1)
    assert judged(known) == (MIN_IDLE_AGE, 0.0)


def test_random_closes_do_not_stop_reuse() -> None:
    """Ages drawn evenly up to 2 s: what may be repeated is leased until half are gone, what may not next to never."""
    drawn, known = Random(3), idle_timeout()
    for _ in range(1000):
        known.closed(drawn.uniform(0.0, 2.0))
    age, strict = judged(known)
    assert age == pytest.approx(1.0, rel=0.1)
    assert strict < MIN_IDLE_AGE


def test_an_announcement() -> None:
    """It is believed at once, and never exceeded; closes well before it are believed more."""
    known = idle_timeout()
    known.announce(15.0)
    assert judged(known) == (15.0, 15.0)
    assert known.is_learned
    known.stood(40.0)
    assert judged(known) == (15.0, 15.0)
    for _ in range(20):
        known.closed(5.01)
    assert max(judged(known)) <= 5.0


def test_a_close_as_announced_says_nothing_new() -> None:
    """An age is known to a class and a period of the sweep: no reason to use less than the worker allows."""
    known = idle_timeout()
    known.announce(4.0)
    for at in (3.76, 3.9, 3.99):
        known.closed(at)
    assert judged(known) == (4.0, 4.0)


def test_evidence_fades() -> None:
    """A worker that kept them for 2 s keeps them for 20 s now: seen within the hour, not within a minute."""
    known = idle_timeout()
    for _ in range(20):
        known.closed(2.01)
    assert judged(known)[0] <= 2.0
    for minute in range(1, 61):
        known.stood(20.0)
        known.judge(NOW + 60.0 * minute)
        if minute == 1:
            assert known.age <= 2.0
    assert known.age > 15.0


def test_old_evidence_alone_is_forgotten() -> None:
    """With nothing new worth half an end, it is as at first."""
    known = idle_timeout()
    known.closed(10.0)
    assert judged(known)[0] > DEFAULT_IDLE_TIMEOUT
    known.stood(0.1)
    assert judged(known, NOW + 3600.0) == (DEFAULT_IDLE_TIMEOUT, DEFAULT_IDLE_TIMEOUT)
