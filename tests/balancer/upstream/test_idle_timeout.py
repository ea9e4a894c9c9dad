"""Estimate of a worker's idle timeout from given ends of connections."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import cast

import pytest

from balancer.config.schema.pool import PoolConfig
from balancer.upstream.http1.connection import UpstreamConnection
from balancer.upstream.http1.idle_connections import IdleConnections
from balancer.upstream.http1.idle_timeout import (
    CLASSES,
    DEFAULT_IDLE_TIMEOUT,
    MIN_IDLE_AGE,
    IdleTimeout,
    beginning,
    class_of,
)

NOW = 1000.0


def idle_timeout() -> IdleTimeout:
    return IdleTimeout(PoolConfig().risk, NOW)


def estimates(idle_timeout: IdleTimeout, now: float = NOW) -> tuple[float, float]:
    idle_timeout.judge(now)
    return idle_timeout.age, idle_timeout.strict_age


def test_bounds_of_age_classes() -> None:
    """Each class begins where the previous one ends and is 9 % wide."""
    for at in range(1, CLASSES):
        assert class_of(beginning(at) * 1.0001) == at
        assert class_of(beginning(at) * 0.9999) == at - 1
    assert class_of(0.0) == class_of(-1.0) == 0
    assert class_of(1e9) == CLASSES - 1
    assert beginning(2) / beginning(1) == pytest.approx(1.0905, abs=1e-4)


def test_initial_estimate() -> None:
    """The initial estimate is below the shortest common idle timeout."""
    known = idle_timeout()
    assert estimates(known) == (DEFAULT_IDLE_TIMEOUT, DEFAULT_IDLE_TIMEOUT)
    assert not known.is_learned


@pytest.mark.parametrize("kept", [0.5, 2.0, 4.0, 5.0, 60.0, 75.0])
def test_one_observed_timeout(kept: float) -> None:
    """One observation suffices: the estimate is at most a class's width below it."""
    known = idle_timeout()
    known.closed(kept * 1.0001)
    age, strict = estimates(known)
    assert age == strict
    assert kept / 1.1 <= age <= kept
    assert known.is_learned


def test_leases_are_censored_observations() -> None:
    """Leases before the timeout do not shorten the estimate; later ones lengthen it."""
    known = idle_timeout()
    for _ in range(1000):
        known.stood(1.0)
    assert estimates(known) == (DEFAULT_IDLE_TIMEOUT, DEFAULT_IDLE_TIMEOUT)
    known.stood(20.0)
    age, strict = estimates(known)
    assert age == strict
    assert 20 / 1.1 <= age <= 20


def test_censored_ends_count_as_at_risk() -> None:
    """Kaplan-Meier estimate with leases as censored ends.

    Of 300 connections that reached 2 s two were closed there, less than 1 % and more than 0.1 %; half of the others
    were leased at once, and the timer closes the rest at 8 s.
    """
    known = idle_timeout()
    for _ in range(2):
        known.closed(2.01)
    for _ in range(149):
        known.stood(2.5)
        known.closed(8.01)
    age, strict = estimates(known)
    assert 8 / 1.1 <= age <= 8
    assert 2 / 1.1 <= strict <= 2


def test_immediate_leases_count_as_at_risk() -> None:
    """A close at age 0 is significant among few leases, not among thousands."""
    known = idle_timeout()
    known.stood_young(5000)
    known.closed(0.1)
    assert estimates(known) == (DEFAULT_IDLE_TIMEOUT, DEFAULT_IDLE_TIMEOUT)
    known = idle_timeout()
    known.closed(0.1)
    assert estimates(known) == (MIN_IDLE_AGE, 0.0)


def test_random_closes_do_not_stop_reuse() -> None:
    """Uniform ages up to 2 s: idempotent requests reuse until half are closed, others almost never."""
    drawn, known = Random(3), idle_timeout()
    for _ in range(1000):
        known.closed(drawn.uniform(0.0, 2.0))
    age, strict = estimates(known)
    assert age == pytest.approx(1.0, rel=0.1)
    assert strict < MIN_IDLE_AGE


@pytest.mark.parametrize("number", [1, 2, 8])
def test_connections_that_became_idle_together_are_one_observation(number: int) -> None:
    """Batches of requests to a worker that closes after 2 s."""
    at, known = [0.0], idle_timeout()
    connections = IdleConnections(known, lambda: at[0], 60.0)
    for _ in range(20):
        batch = [cast(UpstreamConnection, SimpleNamespace(idle_since=at[0])) for _ in range(number)]
        at[0] += 2.0
        for upstream in batch:
            connections.lost(upstream)
        at[0] += 1.0
    assert [*estimates(known)] == pytest.approx([1.68, 1.68], abs=0.01)


def test_restart_of_a_worker_is_one_close() -> None:
    """Of twenty connections of other ages that close at once, one shows an idle timeout of at least its age."""
    known = idle_timeout()
    connections = IdleConnections(known, lambda: 20.0, 60.0)
    for idle_since in range(20):
        connections.lost(cast(UpstreamConnection, SimpleNamespace(idle_since=float(idle_since))))
    age, strict = estimates(known)
    assert min(age, strict) > 15.0


def test_announced_timeout() -> None:
    """Keep-Alive applies at once and is the upper bound; earlier closes override it."""
    known = idle_timeout()
    known.announce(15.0)
    assert estimates(known) == (15.0, 15.0)
    assert known.is_learned
    known.stood(40.0)
    assert estimates(known) == (15.0, 15.0)
    for _ in range(20):
        known.closed(5.01)
    assert max(estimates(known)) <= 5.0


def test_close_at_the_announced_time() -> None:
    """Ages are known only to a class and a sweep: no reason to use less than announced."""
    known = idle_timeout()
    known.announce(4.0)
    for at in (3.76, 3.9, 3.99):
        known.closed(at)
    assert estimates(known) == (4.0, 4.0)


def test_old_observations_decay() -> None:
    """A timeout that changed from 2 s to 20 s is noticed within the hour, not within a minute."""
    known = idle_timeout()
    for _ in range(20):
        known.closed(2.01)
    assert estimates(known)[0] <= 2.0
    for minute in range(1, 61):
        known.stood(20.0)
        known.judge(NOW + 60.0 * minute)
        if minute == 1:
            assert known.age <= 2.0
    assert known.age > 15.0


def test_old_observations_expire() -> None:
    """Without new evidence worth half an end the initial estimate returns."""
    known = idle_timeout()
    known.closed(10.0)
    assert estimates(known)[0] > DEFAULT_IDLE_TIMEOUT
    known.stood(0.1)
    assert estimates(known, NOW + 3600.0) == (DEFAULT_IDLE_TIMEOUT, DEFAULT_IDLE_TIMEOUT)
