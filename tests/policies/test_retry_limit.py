"""Limit on attempts: a request ends after any sequence of failures, and meets every endpoint where none was reached."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.policies.pools import Pool


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
