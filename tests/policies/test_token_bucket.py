"""Token bucket arithmetic beside the obvious implementation with a level, in exact virtual time."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from policies.overload.token_bucket import ALMOST_ONE_TOKEN, TokenBucket
from tests.support.token_bucket import BURSTS, EIGHTHS, RATES, Plain


@given(BURSTS, RATES, st.lists(EIGHTHS, max_size=60))
def test_agrees_with_the_definition(burst: int, rate: float, pauses: list[float]) -> None:
    """At every request of any sequence, with times and rates that floating point holds exactly."""
    bucket, plain = TokenBucket(burst, rate), Plain(burst, rate)
    since, taken, now = -inf, 0.0, 0.0
    for pause in pauses:
        now += pause
        since = bucket.since(since, taken, now)
        tokens = bucket.tokens(since, taken, now)
        assert tokens == plain.look(now)
        assert bucket.full_at(since, taken) == now + (burst - tokens) / rate
        if tokens >= 1.0:
            taken += 1.0
            plain.tokens -= 1.0


@given(
    st.floats(1e-4, 1e6), st.integers(1, 1000), st.integers(0, 10**10), st.floats(0, 1e7), st.floats(0, 1e4)
)
def test_wait_is_long_enough(rate: float, burst: int, taken: int, start: float, pause: float) -> None:
    """After the wait there is a token, whatever the rounding errors of long uptimes and large counts."""
    bucket = TokenBucket(burst, rate)
    since = bucket.since(-inf, taken, start)
    now = start + pause
    wait = bucket.wait(bucket.tokens(since, taken + burst, now))
    later = now + max(1.0, wait)
    assert bucket.tokens(bucket.since(since, taken + burst, later), taken + burst, later) >= min(
        1.0, ALMOST_ONE_TOKEN - 1e-6 * rate
    )
