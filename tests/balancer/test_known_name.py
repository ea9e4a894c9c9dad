"""How long an answer serves, and a failure: told by a clock that the test moves."""

from __future__ import annotations

import pytest

from balancer.upstream.resolved_name import CachedName, CacheState, NameRules

RULES = NameRules(shortest=2.0, longest=100.0, stale=50.0, negative=5.0)
HOSTS = ("192.0.2.1",)


def test_nothing_is_known_at_first() -> None:
    """And it is time to ask."""
    name = CachedName()
    assert (name.worth(RULES, 0.0), name.is_due(0.0), name.age(0.0)) == (CacheState.UNKNOWN, True, None)


@pytest.mark.parametrize(
    ("ttl", "fresh_for"), [(0.0, 2.0), (1.0, 2.0), (30.0, 30.0), (100.0, 100.0), (86_400.0, 100.0)]
)
def test_an_answer_is_fresh_for_its_ttl_within_bounds(ttl: float, fresh_for: float) -> None:
    """Then it is due, and stale, and serves on."""
    name = CachedName()
    name.answered(HOSTS, ttl, RULES, now=10.0)
    just_before, then = 10.0 + fresh_for - 0.001, 10.0 + fresh_for
    assert (name.worth(RULES, just_before), name.is_due(just_before)) == (CacheState.FRESH, False)
    assert (name.worth(RULES, then), name.is_due(then)) == (CacheState.STALE, True)
    assert name.worth(RULES, then + 49.9) is CacheState.STALE
    assert name.worth(RULES, then + 50.0) is CacheState.UNKNOWN


def test_a_failure_serves_until_it_is_time_to_ask_again() -> None:
    """A name that does not resolve is not asked for with every request (RFC 2308)."""
    name = CachedName()
    name.failed("no such name", RULES, now=0.0)
    assert (name.worth(RULES, 4.9), name.is_due(4.9), name.fault) == (
        CacheState.FAILED,
        False,
        "no such name",
    )
    assert (name.worth(RULES, 5.0), name.is_due(5.0)) == (CacheState.UNKNOWN, True)


def test_a_failure_does_not_end_what_was_known() -> None:
    """RFC 8767: nobody knows better, so the old answer serves, and the next look waits as long as after any failure."""
    name = CachedName()
    name.answered(HOSTS, 10.0, RULES, now=0.0)
    name.failed("no answer", RULES, now=10.0)
    assert (name.worth(RULES, 12.0), name.is_due(12.0), name.hosts) == (CacheState.STALE, False, HOSTS)
    assert name.is_due(15.0)
    name.failed("no answer", RULES, now=58.0)
    assert name.worth(RULES, 60.0) is CacheState.FAILED


def test_an_answer_ends_a_failure() -> None:
    """And age counts from it."""
    name = CachedName()
    name.failed("no answer", RULES, now=0.0)
    name.answered(HOSTS, 10.0, RULES, now=5.0)
    assert (name.worth(RULES, 6.0), name.fault, name.age(6.0)) == (CacheState.FRESH, None, 1.0)
