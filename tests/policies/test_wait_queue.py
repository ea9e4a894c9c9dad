"""The line: bounded, in order, nobody starved, and what one costs does not depend on how many wait."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.errors import WaitQueueFull
from policies.overload.wait_queue import INTERVAL, SHARE, SLACK, TARGET, Ticket, WaitQueue
from policies.stats.rate import RateMeter
from tests.balancer.example_counts import examples


def filled(*levels: int, limit: int = 1000, is_adaptive: bool = False) -> WaitQueue[str]:
    """One waiter for each level given, named after it and its number, a second after the one before."""
    line: WaitQueue[str] = WaitQueue(limit, 3, is_adaptive)
    for number, level in enumerate(levels):
        line.join(f"{'abc'[level]}{number}", level, float(number), inf)
    return line


def served(line: WaitQueue[str], now: float = 1e3, turns: int = 1000) -> list[str]:
    """Whose turns come, one after the other."""
    taken = [line.take(now) for _ in range(min(turns, len(line)))]
    return [place.waiter for place in taken if place is not None and place.waiter is not None]


def test_first_come_first_served() -> None:
    line = filled(0, 0, 0)
    assert served(line) == ["a0", "a1", "a2"]
    assert line.take(9.0) is None


def test_the_line_is_bounded() -> None:
    """One more than the limit is told so, and changes nothing; who leaves makes room at once."""
    line = filled(0, 0, limit=2)
    with pytest.raises(WaitQueueFull):
        line.join("c", 0, 2.0, inf)
    place = line.last_below(-1)
    assert place is not None
    line.leave(place)
    line.join("d", 0, 3.0, inf)
    assert served(line) == ["a0", "d"]


def test_leaving_twice_is_leaving_once() -> None:
    line: WaitQueue[str] = WaitQueue(2)
    place = line.join("a", 0, 0.0, inf)
    for _ in range(2):
        line.leave(place)
    assert (len(line), line.waiting(0)) == (0, 0)


def test_higher_levels_go_first() -> None:
    assert served(filled(2, 1, 0, 1, 0)) == ["a2", "a4", "b1", "b3", "c0"]


def test_a_flood_leaves_those_below_their_share() -> None:
    """Every eighth turn goes to who has waited longest below, whatever its level."""
    line = filled(2, 1, *[0] * 40)
    turns = served(line, turns=3 * SHARE)
    assert [turns.index(name) + 1 for name in ("c0", "b1")] == [SHARE, 2 * SHARE]
    assert turns[-1].startswith("a")  # nobody waits below any more


def test_who_gives_way() -> None:
    """The newest of the lowest level that is lower; among equals nobody."""
    line = filled(0, 1, 2, 2)
    for level, expected in ((0, "c3"), (1, "c3"), (2, None)):
        place = line.last_below(level)
        assert (place and place.waiter) == expected


def test_an_adaptive_line_turns_round_while_it_stands() -> None:
    """Oldest first as long as waits are short or have been long for a moment only; then newest first; and back."""
    line = filled(*[0] * 6, is_adaptive=True)
    start = 5.0 + TARGET
    order = [line.take(start + after) for after in (0.0, INTERVAL - 0.01, INTERVAL, INTERVAL + 0.1)]
    assert [place and place.waiter for place in order] == ["a0", "a1", "a5", "a4"]
    assert served(line, start + INTERVAL + 0.2) == ["a3", "a2"]
    later = start + INTERVAL + 1
    for name in "xy":
        line.join(name, 0, later, inf)
    assert served(line, later + TARGET) == ["x", "y"]


def test_a_line_that_moves_up_is_not_standing() -> None:
    """One short wait at the front ends what was counted."""
    line: WaitQueue[int] = WaitQueue(10, is_adaptive=True)
    for number in range(40):
        now = number * INTERVAL / 4
        line.join(number, 0, now, inf)
        line.join(-number, 0, now, inf)
        for _ in range(2):
            line.take(now + (TARGET * 1.5 if number % 2 else 0.0))
        assert not line.is_standing(now)


def test_places_that_were_given_up_do_not_pile_up() -> None:
    """A million who come and go cost no memory, though nobody is served."""
    line: WaitQueue[int] = WaitQueue(10)
    line.join(0, 0, 0.0, inf)
    for number in range(5000):
        line.leave(line.join(number, 0, 1.0, inf))
    places = line._lanes[0]._places
    assert len(places) <= 2 + SLACK
    assert [place.waiter for place in places][1:] == [None] * (len(places) - 1)
    assert line.oldest_wait(3.0) == 3.0


def test_clearing() -> None:
    line = filled(0, 1, 2)
    line.clear()
    assert (len(line), line.take(9.0), line.oldest_wait(9.0)) == (0, None, 0.0)


def test_the_time_to_clear_goes_by_the_pace() -> None:
    """Ten turns a second: fifty take five seconds. Before the first turn, as long as the line has stood, for each."""
    line: WaitQueue[int] = WaitQueue(1000)
    for number in range(500):
        line.join(number, 0, 0.0, inf)
    assert line.time_to_clear(3, 2.0) == 6.0
    for turn in range(100):
        line.take(turn / 10)
    assert line.time_to_clear(50, 10.0) == pytest.approx(5.0, rel=0.05)


def test_turns_that_come_too_late_are_no_pace() -> None:
    line: WaitQueue[int] = WaitQueue(10)
    line.join(0, 0, 0.0, 1.0)
    line.take(2.0)
    assert line.pace.read(2.0) == 0.0


# --- pace


@pytest.mark.parametrize("rate", [0.5, 20.0, 3000.0])
@pytest.mark.parametrize("seconds", [2.0, 10.0])
def test_a_steady_pace(rate: float, seconds: float) -> None:
    """From the first seconds on, it is what it is, give or take an event."""
    pace = RateMeter()
    pace.begin(100.0)
    events = int(rate * seconds)
    for number in range(1, events + 1):
        pace.count(100.0 + number / rate)
    assert pace.read(100.0 + seconds) == pytest.approx(rate, rel=0.02, abs=0.35)


def test_a_pace_forgets() -> None:
    pace = RateMeter()
    pace.begin(0.0)
    for number in range(1000):
        pace.count(number / 100)
    assert pace.read(10.0) > 90
    assert pace.read(25.0) < 1
    pace.begin(30.0)
    assert pace.read(31.0) == 0.0


# --- whatever happens

Event = tuple[str, int]
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.integers(0, 2)),
        st.tuples(st.just("take"), st.just(0)),
        st.tuples(st.just("leave"), st.integers(0, 30)),
    ),
    max_size=120,
)


@examples(200)
@given(EVENTS, st.integers(0, 8))
def test_the_rules_hold_whatever_happens(events: list[Event], limit: int) -> None:
    """Never more than the limit; refused only when full; first come, first served within a level; who left or was
    taken never comes again; and a turn finds somebody whenever somebody waits."""
    line: WaitQueue[int] = WaitQueue(limit, 3)
    waiting: list[Ticket[int]] = []
    for at, (what, number) in enumerate(events):
        now = float(at)
        if what == "join":
            try:
                waiting.append(line.join(at, number, now, inf))
            except WaitQueueFull:
                assert len(waiting) == limit
        elif what == "leave" and waiting:
            line.leave(waiting.pop(number % len(waiting)))
        elif what == "take":
            place = line.take(now)
            assert (place is None) == (not waiting)
            if place is not None:
                assert place is next(other for other in waiting if other.level == place.level)
                waiting.remove(place)
        assert len(line) == len(waiting) <= limit
        assert [line.waiting(level) for level in range(3)] == [
            sum(place.level == level for place in waiting) for level in range(3)
        ]
        assert line.oldest_wait(now) == (now - min(p.joined_at for p in waiting) if waiting else 0.0)


@examples(100)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=60))
def test_nobody_starves(levels: list[int]) -> None:
    """Though a newcomer of the highest level comes before every turn, everybody's turn comes: `SHARE` turns for each
    of those who waited before, and for itself."""
    line = filled(*levels, limit=10_000)
    names = {f"{'abc'[level]}{number}" for number, level in enumerate(levels)}
    for turn in range(SHARE * (len(levels) + 1)):
        line.join("new", 0, 100.0 + turn, inf)
        place = line.take(100.0 + turn)
        if place is not None and place.waiter is not None:
            names.discard(place.waiter)
    assert not names
