"""Service profiles against their moments, slots by hand; without clock and sockets.

The simulator's tests compare slots with queueing theory.
"""

from __future__ import annotations

import math
from random import Random
from statistics import fmean, pstdev

import pytest

from workers.durations import format_duration, parse_counts, parse_duration, parse_span
from workers.service import (
    ColdStart,
    Exponential,
    Fixed,
    LoadReport,
    Lognormal,
    Mixed,
    Profile,
    Uniform,
    parse_profile,
)
from workers.slots import NO_ROOM, Slots


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("350ms", 0.35), ("1.5s", 1.5), ("2m", 120.0), ("0.25", 0.25), (" 20 ms ", 0.02), ("500us", 0.0005)],
)
def test_duration_is_read_in_its_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "ms", "-1s", "nan", "inf", "1 year", "1e3", "1..2s", "9" * 400])
def test_invalid_duration_is_rejected_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="350ms"):
        parse_duration(text)


def test_span_shares_the_unit_of_its_end() -> None:
    """`19-21ms` is 19 ms to 21 ms; an en dash works too."""
    assert parse_span("19-21ms") == parse_span("19ms–21ms") == pytest.approx((0.019, 0.021))
    with pytest.raises(ValueError, match="ends before it begins"):
        parse_span("21-19ms")


@pytest.mark.parametrize(("text", "span"), [("100", (100, 100)), ("50-150", (50, 150)), (" 7–9 ", (7, 9))])
def test_counts_and_spans_of_counts(text: str, span: tuple[int, int]) -> None:
    assert parse_counts(text) == span


@pytest.mark.parametrize("text", ["", "0", "9-7", "1.5", "many", "-3"])
def test_invalid_count_is_rejected_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="50-150"):
        parse_counts(text)


def test_format_of_durations() -> None:
    """Milliseconds below ten seconds, seconds above."""
    assert [format_duration(s) for s in (0.35, 0.0005, 75.0)] == ["350 ms", "0.5 ms", "75 s"]


@pytest.mark.parametrize(
    ("text", "profile"),
    [
        ("fixed:20ms", Fixed(0.02)),
        ("19-21ms", Uniform(0.019, 0.021)),
        ("uniform:19-21ms", Uniform(0.019, 0.021)),
        ("exponential:20ms", Exponential(0.02)),
        ("lognormal:20ms,0.5", Lognormal(0.02, 0.5)),
        ("mixed:1ms,100ms,0.1", Mixed(0.001, 0.1, 0.1)),
    ],
)
def test_profile_is_read_from_text(text: str, profile: Profile) -> None:
    assert parse_profile(text) == profile


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gamma:20ms",
        "fixed:",
        "lognormal:20ms",
        "lognormal:20ms,x",
        "mixed:1ms,2ms",
        "mixed:1ms,2ms,2",
        "20ms",
    ],
)
def test_unknown_profile_names_the_known_ones(text: str) -> None:
    with pytest.raises(ValueError, match=r"fixed:20ms.*exponential:20ms.*lognormal:20ms,0\.5, mixed"):
        parse_profile(text)


@pytest.mark.parametrize(
    ("profile", "deviation"),
    [
        (Fixed(0.02), 0.0),
        (Uniform(0.01, 0.03), 0.02 / math.sqrt(12)),
        (Exponential(0.02), 0.02),
        (Lognormal(0.02, 0.5), 0.02 * math.sqrt(math.exp(0.25) - 1)),
        (Mixed(0.001, 0.1, 0.1), 0.099 * 0.3),
    ],
)
def test_draws_have_the_moments_of_the_distribution(profile: Profile, deviation: float) -> None:
    """Mean and standard deviation of 50 000 draws are within 2 % of the closed forms."""
    rng = Random(1)
    draws = [profile.draw(rng) for _ in range(50_000)]
    assert fmean(draws) == pytest.approx(profile.mean, rel=0.02)
    assert pstdev(draws) == pytest.approx(deviation, rel=0.02, abs=1e-12)
    assert profile.scaled(3).mean == pytest.approx(3 * profile.mean)


def test_slots_serve_first_come_first_served() -> None:
    """Three arrivals at once at two slots: two start now, the third when the first slot is free."""
    slots = Slots(2, queue=1)
    assert [slots.admit(0.0, seconds) for seconds in (5.0, 3.0, 1.0)] == [5.0, 3.0, 4.0]
    assert slots.waiting(0.0) == 1
    assert slots.waiting(3.0) == 0


def test_full_queue_rejects_until_one_starts() -> None:
    """`room_at` is when the first of the queue starts."""
    slots = Slots(1, queue=1)
    slots.admit(0.0, 2.0)
    slots.admit(0.0, 2.0)
    assert slots.admit(1.0, 2.0) == NO_ROOM
    assert slots.room_at(1.0) == 2.0
    assert slots.admit(2.0, 2.0) == 6.0


def test_without_a_queue_only_free_slots_count() -> None:
    """A loss system."""
    slots = Slots(1, queue=0)
    slots.admit(0.0, 2.0)
    assert slots.admit(1.0, 1.0) == NO_ROOM
    assert slots.room_at(1.0) == 2.0
    assert slots.admit(2.0, 1.0) == 3.0


def test_requests_that_wait_for_an_instant_keep_their_slots_busy() -> None:
    """Two slots serve from 3 on; the third request waits for the first of them, and there is no room for a fourth."""
    slots = Slots(2, queue=3)
    ends = [slots.admit_later(1.0, seconds, 3.0) for seconds in (1.0, 2.0, 1.0, 1.0)]
    assert ends == [4.0, 5.0, 5.0, NO_ROOM]
    assert slots.room_at(1.0) == 3.0
    assert [slots.busy_seconds(now) for now in (1.0, 2.0, 5.0)] == [0.0, 2.0, 8.0]
    assert slots.error() == 0.0


def test_busy_seconds_are_exact_at_any_instant() -> None:
    """Work counts as it is done, not when it is admitted."""
    slots = Slots(2, 10)
    slots.admit(0.0, 4.0)
    slots.admit(1.0, 1.0)
    assert [slots.busy_seconds(now) for now in (1.0, 1.5, 3.0, 9.0)] == [1.0, 2.0, 4.0, 5.0]


def test_utilization_converges_to_the_share_in_use() -> None:
    """A worker busy 300 ms of every second reports 0.3, however often it is read."""
    slots = Slots(1, 10)
    load = LoadReport("emea-0", "emea", slots, now=0.0)
    for second in range(20):
        slots.admit(float(second), 0.3)
        last = [load.utilization(second + part / 10) for part in range(1, 11)]
    assert fmean(last) == pytest.approx(0.3, abs=0.02)


def test_sleeping_worker_wakes_once_for_all_waiting_requests() -> None:
    """Requests that arrive during the wake-up wait for the same instant."""
    cold_start = ColdStart(sleep_after=10.0, wake_time=3.0, now=0.0)
    assert cold_start.awake_at(5.0) <= 5.0
    assert cold_start.is_asleep(15.5)
    assert [cold_start.awake_at(now) for now in (20.0, 21.0, 22.9)] == [23.0] * 3
    assert not cold_start.is_asleep(33.0)


def test_worker_may_start_asleep() -> None:
    """Even if it never falls asleep later."""
    cold_start = ColdStart(sleep_after=math.inf, wake_time=3.0, now=0.0, starts_asleep=True)
    assert [cold_start.awake_at(1.0), cold_start.awake_at(1e6)] == [4.0, 4.0]
