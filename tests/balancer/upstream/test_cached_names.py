"""Cached DNS answers and failures: fresh, stale, and when to resolve again; on a manual clock."""

from __future__ import annotations

import pytest

from balancer.config.schema.names import NamesConfig
from balancer.upstream.dial.names import CachedName, CacheState

RULES = NamesConfig(min_ttl=2.0, max_ttl=100.0, max_stale=50.0, negative_ttl=5.0)
HOSTS = ("192.0.2.1",)


def test_unknown_name() -> None:
    """A look-up is due."""
    name = CachedName()
    assert (name.worth(RULES, 0.0), name.is_due(0.0), name.age(0.0)) == (CacheState.UNKNOWN, True, None)


@pytest.mark.parametrize(
    ("ttl", "fresh_for"), [(0.0, 2.0), (1.0, 2.0), (30.0, 30.0), (100.0, 100.0), (86_400.0, 100.0)]
)
def test_ttl_within_bounds(ttl: float, fresh_for: float) -> None:
    """Then a look-up is due, and the stale answer is still used."""
    name = CachedName()
    name.answered(HOSTS, ttl, RULES, now=10.0)
    just_before, then = 10.0 + fresh_for - 0.001, 10.0 + fresh_for
    assert (name.worth(RULES, just_before), name.is_due(just_before)) == (CacheState.FRESH, False)
    assert (name.worth(RULES, then), name.is_due(then)) == (CacheState.STALE, True)
    assert name.worth(RULES, then + 49.9) is CacheState.STALE
    assert name.worth(RULES, then + 50.0) is CacheState.UNKNOWN


def test_failure_is_cached() -> None:
    """A name that does not resolve is not looked up for every request (RFC 2308)."""
    name = CachedName()
    name.failed("no such name", RULES, now=0.0)
    assert (name.worth(RULES, 4.9), name.is_due(4.9), name.fault) == (
        CacheState.FAILED,
        False,
        "no such name",
    )
    assert (name.worth(RULES, 5.0), name.is_due(5.0)) == (CacheState.UNKNOWN, True)


def test_failure_keeps_the_stale_answer() -> None:
    """RFC 8767: the stale answer is used, and the next look-up waits as after any failure."""
    name = CachedName()
    name.answered(HOSTS, 10.0, RULES, now=0.0)
    name.failed("no answer", RULES, now=10.0)
    assert (name.worth(RULES, 12.0), name.is_due(12.0), name.hosts) == (CacheState.STALE, False, HOSTS)
    assert name.is_due(15.0)
    name.failed("no answer", RULES, now=58.0)
    assert name.worth(RULES, 60.0) is CacheState.FAILED


def test_answer_replaces_a_failure() -> None:
    """The age counts from it."""
    name = CachedName()
    name.failed("no answer", RULES, now=0.0)
    name.answered(HOSTS, 10.0, RULES, now=5.0)
    assert (name.worth(RULES, 6.0), name.fault, name.age(6.0)) == (CacheState.FRESH, None, 1.0)
