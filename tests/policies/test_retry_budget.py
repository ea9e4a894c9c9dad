"""The retry budget and the limit on attempts.

Retries are a share of recent requests, for any order of events. A request ends after any sequence of failures, and
meets every endpoint where none was reached.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from policies.overload.retry_budget import WINDOW, RetryBudget
from tests.policies.pools import Pool

EVENTS = st.lists(
    st.tuples(st.floats(0.0, 4.0), st.integers(0, 40), st.integers(0, 20)), min_size=1, max_size=60
)
"""Seconds that pass, then numbers of requests and of retries asked for."""


@given(
    events=EVENTS, share=st.sampled_from([0.0, 0.1, 0.2, 1.0]), per_second=st.sampled_from([0.0, 0.3, 2.0])
)
def test_retries_of_any_window_stay_within_share_and_reserve(
    events: list[tuple[float, int, int]], share: float, per_second: float
) -> None:
    """None is denied without need."""
    budget = RetryBudget(share, per_second)
    now, total = 1000.0, 0
    asked: list[tuple[int, int]] = []
    taken: list[int] = []
    budget.note(0, now)
    for seconds, requests, retries in events:
        now += seconds
        budget.note(total, now)
        total += requests
        asked.append((int(now), requests))
        for _ in range(retries):
            oldest = int(now) - WINDOW + 1
            spent = sum(at >= oldest for at in taken)
            put_in = 10.0 * per_second + share * sum(count for at, count in asked if at >= oldest)
            is_allowed = budget.take(total, now)
            assert is_allowed == (put_in - spent >= 1.0 - 1e-9) or abs(put_in - spent - 1.0) < 1e-9
            if is_allowed:
                taken.append(int(now))


def test_reserve_after_an_idle_time() -> None:
    """Ten a second for ten seconds: a hundred retries at once, and then no more."""
    budget = RetryBudget()
    assert [budget.take(100, 1000.0) for _ in range(101)].count(True) == 100
    assert budget.denied == 1
    assert not budget.take(100, 1008.9)
    assert budget.take(100, 1010.0)


def test_retries_are_a_share_of_requests() -> None:
    """Without a reserve, every fifth request may be sent again."""
    budget = RetryBudget(0.2, 0.0)
    budget.note(0, 1000.0)
    allowed = 0
    for number in range(1, 1001):
        allowed += budget.take(number, 1000.0 + number / 1000)
    assert allowed == 200
    assert budget.denied == 800


def test_old_requests_and_retries_do_not_count() -> None:
    """Also if nothing was recorded in between."""
    budget = RetryBudget(0.2, 0.0)
    budget.note(0, 1000.0)
    assert budget.take(10, 1001.0)
    budget.note(10, 1002.0)
    assert budget.take(10, 1009.0)
    assert not budget.take(10, 1013.0)
    assert not budget.take(10, 5000.0)
    assert budget.take(20, 5001.0)


def test_clock_that_steps_back_does_not_refill() -> None:
    """Clocks may differ a little between calls."""
    budget = RetryBudget(0.0, 0.1)
    assert budget.take(0, 1000.0)
    assert not budget.take(0, 999.0)
    assert not budget.take(0, 1000.0)


@given(
    count=st.integers(1, 6),
    limit=st.integers(0, 3),
    was_sent=st.lists(st.booleans(), min_size=12, max_size=12),
    picks=st.lists(st.integers(0, 5), min_size=12, max_size=12),
)
def test_attempts_end(count: int, limit: int, was_sent: list[bool], picks: list[int]) -> None:
    """At most `limit` + 1 attempts are sent, and one per endpoint is not, whichever endpoints are picked."""
    pool, tried = Pool(count).router, set[str]()
    attempts = unsent = 0
    while True:
        tried.add(f"a{picks[attempts] % count}")
        unsent += not was_sent[attempts]
        attempts += 1
        if not pool.has_another_try(limit, attempts, unsent, tried, needs_other=False):
            break
    assert attempts <= (limit + 1 + count if limit else 1)
    assert attempts - unsent <= limit + 1


@given(count=st.integers(2, 9), limit=st.integers(1, 3))
def test_all_endpoints_are_tried_where_none_is_reached(count: int, limit: int) -> None:
    pool = Pool(count).router
    for attempts in range(1, count + 1):
        tried = {f"a{i}" for i in range(attempts)}
        has_another = pool.has_another_try(limit, attempts, attempts, tried, needs_other=False)
        assert has_another == (attempts < count)
