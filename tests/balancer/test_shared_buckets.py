"""Buckets of rate limits in shared memory: several processes in every order of steps, places, floods and restarts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.rate_limits.shared_buckets import WAYS, WORDS, Bucket, Buckets, SharedBuckets
from policies.overload.token_bucket import ALMOST, TokenBucket
from tests.policies.test_token_bucket import BURSTS, EIGHTHS, RATES, Plain

ERROR = 1e-6


@dataclass
class Process:
    """A process that takes tokens in two steps: it reads and decides; it publishes what it has decided."""

    buckets: Buckets
    rule: TokenBucket
    pending: list[tuple[Bucket, float, float]] = field(default_factory=list)

    def decide(self, key: int, now: float) -> bool:
        bucket = self.buckets.read(key)
        since = self.rule.since(bucket.since, bucket.taken, now)
        if self.rule.tokens(since, bucket.taken, now) < ALMOST:
            return False
        self.pending.append((bucket, since, now))
        return True

    def publish(self) -> float:
        bucket, since, now = self.pending.pop()
        return self.buckets.take(bucket, since, self.rule.full_at(since, bucket.taken + 1.0), now)

    def take(self, key: int, now: float) -> bool:
        """Take a token in one step. There must be a place."""
        if not self.decide(key, now):
            return False
        assert self.publish() == 0.0
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
            assert process.publish() == 0.0
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
    definition, or no place."""
    shared = SharedBuckets(3, 1)
    those = [Process(Buckets(shared, index), TokenBucket(burst, rate)) for index in range(3)]
    exact: dict[int, Plain] = {}
    now = 100.0
    for index, key, pause, is_restarted in steps:
        if is_restarted:
            those[index] = Process(Buckets(shared, index), TokenBucket(burst, rate))
        now += pause
        if key not in exact:
            exact[key] = Plain(burst, rate)
        tokens = exact[key].look(now)
        is_admitted = those[index].decide(key, now)
        assert is_admitted == (tokens >= 1.0)
        if is_admitted and those[index].publish() == 0.0:
            exact[key].tokens -= 1.0


def test_lone_bucket_is_as_exact_with_many_processes() -> None:
    """One process takes a minute's requests, the others never see the key."""
    one, *others = processes(8, 10, 100.0)
    admitted = sum(one.take(7, 1000 + at / 1000) for at in range(60_001))
    assert admitted == 10 + 6000
    assert not any(other.decide(7, 1060.0) for other in others)


def test_full_set_refuses_new_keys_and_keeps_the_others() -> None:
    """Until a bucket is full; its place is then given away."""
    (one,) = processes(1, 2, 1.0)
    for key in range(1, WAYS + 1):
        assert one.take(key, 100.0 + key / 16)
    assert one.decide(99, 101.0)
    assert one.publish() == 1 / 16, "the first one is full then"
    assert [one.take(1, 101.0), one.take(1, 101.0)] == [True, False]
    assert one.decide(99, 101.0)
    assert one.publish() == 2 / 16
    assert one.take(99, 101.0 + 2 / 16)
    assert one.buckets.read(2).place == -1, "its place was given away"
    assert [one.take(1, 101.5), one.take(1, 101.5)] == [True, False], "its level is what it was"


def test_bucket_that_another_process_uses_keeps_its_place() -> None:
    """Its own table says that it is full; the other's says that it is not. Its count must not be forgotten."""
    one, other = processes(2, 2, 1.0)
    for key in range(1, WAYS + 1):
        assert one.take(key, 100.0)
    for key in range(1, WAYS + 1):
        assert other.take(key, 101.0)
    assert one.decide(99, 101.5)
    assert one.publish() > 0.0
    assert other.take(5, 101.5)
    assert not other.take(5, 101.5)
    assert one.decide(99, 102.5)
    assert one.publish() == 0.0


def test_numbers_of_a_place_that_was_given_away_are_ignored() -> None:
    """Between the search for the key and the reading of the numbers."""
    shared = SharedBuckets(1, 1)
    one = Process(Buckets(shared), TokenBucket(2, 1.0))
    assert one.take(5, 100.0)
    [table] = shared.tables
    place = table.find(0, 5)
    for key, taken in ((5, 1.0), (7, 0.0)):
        bucket = Bucket(key, 0, place)
        table.add_to(bucket, place)
        assert bucket.taken == taken


def flood(keys: int) -> None:
    """A client uses up its bucket, sends a request under each of many other keys, and is still refused."""
    shared = SharedBuckets(1, 64)
    one = Process(Buckets(shared), TokenBucket(5, 0.001))
    assert [one.take(4711, 100.0) for _ in range(6)] == [True] * 5 + [False]
    admitted = 0
    for key in range(1 << 20, (1 << 20) + keys):
        admitted += one.decide(key, 100.0) and one.publish() == 0.0
    assert not one.take(4711, 100.0)
    [table] = shared.tables
    used = sum(
        WAYS - table.keys[first : first + WAYS].tolist().count(0) for first in range(0, 64 * WORDS, WORDS)
    )
    assert admitted == used - 1 == 64 * WAYS - 1
    assert len(table.numbers) == 64 * WORDS


def test_flood_of_keys_neither_resets_a_bucket_nor_grows_the_table() -> None:
    flood(20_000)


@pytest.mark.second_tier
def test_flood_of_a_million_keys() -> None:
    flood(1_000_000)


def test_flood_of_the_table_as_it_is_served() -> None:
    """With 100,000 buckets that are not full, one new key in 1,600 has no place."""
    shared = SharedBuckets()
    one = Process(Buckets(shared), TokenBucket(5, 0.001))
    refused = 0
    for key in range(100_000):
        digest = blake2b(b"%d" % key, digest_size=8).digest()
        assert one.decide(int.from_bytes(digest, "little", signed=True), 100.0)
        refused += one.publish() > 0.0
    assert 0 < refused < 100_000 / 1600
