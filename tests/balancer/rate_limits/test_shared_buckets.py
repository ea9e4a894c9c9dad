"""Buckets of rate limits in shared memory: several processes in every order of steps, places, floods and restarts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.rate_limits.shared_buckets import (
    WAYS,
    WORDS,
    Buckets,
    BucketState,
    SharedBuckets,
    key_of_bucket,
    owner_of,
)
from policies.overload.token_bucket import ALMOST_ONE_TOKEN, TokenBucket
from tests.support.token_bucket import BURSTS, EIGHTHS, RATES, Plain

ERROR = 1e-6


@dataclass
class Process:
    """A process that takes tokens in two steps: it reads and decides; it publishes what it has decided."""

    buckets: Buckets
    rule: TokenBucket
    pending: list[tuple[BucketState, float, float]] = field(default_factory=list)

    def decide(self, key: int, now: float) -> bool:
        bucket = self.buckets.read(key)
        since = self.rule.since(bucket.since, bucket.taken, now)
        if self.rule.tokens(since, bucket.taken, now) < ALMOST_ONE_TOKEN:
            return False
        self.pending.append((bucket, since, now))
        return True

    def publish(self) -> bool:
        """Publish the last decision. Returns whether a bucket that was not full was given away for it."""
        bucket, since, now = self.pending.pop()
        return self.buckets.take(bucket, since, self.rule.full_at(since, bucket.taken + 1.0), now)

    def take(self, key: int, now: float) -> bool:
        """Take a token in one step. No other bucket must have to be given away."""
        if not self.decide(key, now):
            return False
        assert not self.publish()
        return True


def processes(number: int, burst: float, rate: float, sets: int = 1) -> list[Process]:
    shared = SharedBuckets(number, sets)
    return [Process(Buckets(shared, index), TokenBucket(burst, rate)) for index in range(number)]


STEPS = st.lists(st.tuples(st.integers(0, 3), EIGHTHS.map(lambda pause: pause / 8)), max_size=120)


@given(st.integers(1, 4), BURSTS, RATES, STEPS)
def test_error_is_below_one_token_for_each_other_process(
    number: int, burst: int, rate: float, steps: Sequence[tuple[int, float]]
) -> None:
    """However their steps interleave, also where a process sleeps between its decision and its publication.

    A step of a process is a decision, or the publication of the last one. `exact` is the bucket that misses nothing.
    """
    those = processes(number, burst, rate)
    exact = Plain(burst, rate)
    now = 100.0
    exact.look(now)
    for index, pause in steps:
        process = those[index % number]
        now += pause
        if process.pending:
            assert not process.publish()
        elif process.decide(7, now):
            exact.look(now)
            exact.tokens -= 1.0
            assert exact.tokens >= -(number - 1) - ERROR, "more was given out than the bound"
        else:
            assert exact.look(now) < number + ERROR, "refused with more tokens than the bound"


@given(st.integers(2, 4), BURSTS, RATES, STEPS)
def test_errors_do_not_add_up(
    number: int, burst: int, rate: float, steps: Sequence[tuple[int, float]]
) -> None:
    """Once everything is published and the bucket has been full, what is given out is what the definition says."""
    those = processes(number, burst, rate)
    now = 100.0
    for index, pause in steps:
        process = those[index % number]
        now += pause
        if process.pending:
            process.publish()
        else:
            process.decide(7, now)
    for process in those:
        if process.pending:
            process.publish()
    now += burst / rate + number / rate  # full again
    assert sum(those[at % number].take(7, now) for at in range(burst + number)) == burst
    for _ in range(200):
        now += 1 / rate
        assert [process.take(7, now) for process in those].count(True) == 1


KEYS = st.integers(1, WAYS + 4).map(lambda number: number << 31 | number)
"""More keys than places in a set; two at a time have the same first place."""

ATOMIC = st.lists(st.tuples(st.integers(0, 2), KEYS, EIGHTHS, st.booleans()), max_size=150)


@given(BURSTS, RATES, ATOMIC)
def test_places_change_hands_without_an_error(
    burst: int, rate: float, steps: Sequence[tuple[int, int, float, bool]]
) -> None:
    """More keys than places, and three processes that are restarted now and then: each key has the bucket of the
    definition, or a fuller one after buckets were given away."""
    shared = SharedBuckets(3, 1)
    those = [Process(Buckets(shared, index), TokenBucket(burst, rate)) for index in range(3)]
    exact: dict[int, Plain] = {}
    now = 100.0
    is_exact = True
    for index, key, pause, is_restarted in steps:
        if is_restarted:
            those[index] = Process(Buckets(shared, index), TokenBucket(burst, rate))
        now += pause
        if key not in exact:
            exact[key] = Plain(burst, rate)
        tokens = exact[key].look(now)
        is_admitted = those[index].decide(key, now)
        assert is_admitted == (tokens >= 1.0) or (is_admitted and not is_exact)
        if is_admitted:
            is_exact = not those[index].publish() and is_exact
            exact[key].tokens -= 1.0


def test_lone_bucket_is_as_exact_with_many_processes() -> None:
    """One process takes a minute's requests, the others never see the key."""
    one, *others = processes(8, 10, 100.0)
    admitted = sum(one.take(7, 1000 + at / 1000) for at in range(60_001))
    assert admitted == 10 + 6000
    assert not any(other.decide(7, 1060.0) for other in others)


def test_full_set_gives_the_bucket_nearest_to_full_away() -> None:
    """A full one first, which loses nothing; then the one that lacks least. No new key is refused."""
    (one,) = processes(1, 2, 1.0)
    for key in range(1, WAYS + 1):
        assert one.take(key, 100.0 + key / 16)
    assert one.take(1, 100.0 + 17 / 16), "its second token"
    assert one.take(99, 101.0 + 2 / 16), "in the place of 2, which is full"
    assert one.buckets.read(2).place == -1
    assert one.decide(98, 101.0 + 2 / 16)
    assert one.publish(), "in the place of 3, which lacks a sixteenth"
    assert one.buckets.read(3).place == -1
    assert all(one.buckets.read(key).place >= 0 for key in (1, *range(4, WAYS + 1), 98, 99))


def test_bucket_that_another_process_uses_keeps_its_place() -> None:
    """Its own table says that it is full; the other's says that it is not. Its count must not be forgotten."""
    one, other = processes(2, 2, 1.0)
    for key in range(1, WAYS + 1):
        assert one.take(key, 100.0)
    for key in range(1, WAYS + 1):
        assert other.take(key, 101.0)
    assert other.take(1, 101.5)
    assert other.take(2, 101.5)
    assert one.decide(99, 101.5)
    assert one.publish()
    assert one.buckets.read(3).place == -1, "the others say that 1 and 2 lack more"
    assert other.take(5, 101.5)
    assert not other.take(5, 101.5)
    assert one.take(98, 102.5), "in a place whose bucket is full for both"


def test_numbers_of_a_place_that_was_given_away_are_ignored() -> None:
    """Between the search for the key and the reading of the numbers."""
    shared = SharedBuckets(1, 1)
    one = Process(Buckets(shared), TokenBucket(2, 1.0))
    assert one.take(5, 100.0)
    [table] = shared.tables
    place = table.find(0, 5)
    for key, taken in ((5, 1.0), (7, 0.0)):
        bucket = BucketState(key, 0, place)
        table.add_to(bucket, place)
        assert bucket.taken == taken


SCATTER = 0x9E3779B97F4A7C15
"""Multiples of it are spread over all bits."""


@pytest.mark.parametrize(
    ("keys", "seconds"), [(20_000, 45.0), pytest.param(1_000_000, 95.0, marks=pytest.mark.second_tier)]
)
def test_flood_of_keys_neither_resets_a_bucket_nor_grows_the_table(keys: int, seconds: float) -> None:
    """A client uses up its bucket, sends a request under each of many other keys, and has only what flows in."""
    shared = SharedBuckets(1, 64)
    one = Process(Buckets(shared), TokenBucket(5, 0.1))
    assert [one.take(4711, 100.0) for _ in range(6)] == [True] * 5 + [False]
    now = 100.0
    again = 0
    for key in range(1 << 20, (1 << 20) + keys):
        now += seconds / keys
        assert one.decide(key, now), "each new key has a bucket"
        one.publish()
        if one.decide(4711, now):
            again += 1
            one.publish()
    assert again == int(seconds * 0.1)
    [table] = shared.tables
    assert len(table.numbers) == 64 * WORDS


def test_reset_of_a_bucket_takes_fifteen_times_its_tokens() -> None:
    """A client that invents keys to get its own bucket back has sent more under them than it gets."""
    one = Process(Buckets(SharedBuckets(1, 1)), TokenBucket(5, 0.001))
    assert [one.take(4711, 100.0) for _ in range(5)] == [True] * 5
    sent = 0
    for key in range(1, 100):
        for _ in range(5):
            assert one.decide(key, 100.0 + key)
            one.publish()
            sent += 1
        if one.buckets.read(4711).place == -1:
            break
    assert sent >= (WAYS - 1) * 5


def test_flood_of_one_limit_takes_no_place_from_another() -> None:
    """As long as the other has fewer: its used buckets stay used, and its new clients have theirs."""
    one = Process(Buckets(SharedBuckets(1, 64)), TokenBucket(2, 0.001))
    clients = [key_of_bucket(1, at * SCATTER) for at in range(200)]
    for key in clients[:100] * 2:
        assert one.take(key, 100.0)
    for at in range(20_000):
        assert one.decide(key_of_bucket(2, at * SCATTER), 100.0)
        one.publish()
    assert [one.decide(key, 100.0) for key in clients] == [False] * 100 + [True] * 100


def test_keys_tell_owners_and_sources_apart() -> None:
    """None of them is a key with a meaning of its own."""
    keys = {key_of_bucket(owner_of(at), of) for at in (-7, 0, 1, 4094 - 1) for of in (-(1 << 63), -1, 0, 1)}
    assert len(keys) == 4 * 3, "the least number has the bits of 0"
    assert all(0 < key < 1 << 62 for key in keys)
