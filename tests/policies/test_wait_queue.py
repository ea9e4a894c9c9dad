"""The wait queue: bounded, in order, without starvation, at a cost that does not depend on the number waiting."""

from __future__ import annotations

import gc
from collections import Counter
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.errors import WaitQueueFull
from policies.overload.wait_queue import INTERVAL, SHARE, TARGET, Ticket, WaitQueue
from policies.stats.load import RateMeter
from tests.support.example_counts import examples


def filled(*levels: int, limit: int = 1000, is_adaptive: bool = False) -> WaitQueue[str]:
    """One waiter for each level given, named after it and its number, a second after the last."""
    queue: WaitQueue[str] = WaitQueue(limit, 3, is_adaptive)
    for number, level in enumerate(levels):
        queue.join(f"{'abc'[level]}{number}", level, float(number), inf)
    return queue


def served(queue: WaitQueue[str], now: float = 1e3, turns: int = 1000) -> list[str]:
    """Waiters in the order of being taken."""
    taken = [queue.take(now) for _ in range(min(turns, len(queue)))]
    return [ticket.waiter for ticket in taken if ticket is not None and ticket.waiter is not None]


def test_leaving_twice_has_no_effect() -> None:
    queue: WaitQueue[str] = WaitQueue(2)
    ticket = queue.join("a", 0, 0.0, inf)
    for _ in range(2):
        queue.leave(ticket)
    assert (len(queue), queue.waiting(0)) == (0, 0)


def test_higher_levels_go_first() -> None:
    assert served(filled(2, 1, 0, 1, 0)) == ["a2", "a4", "b1", "b3", "c0"]


def test_lower_levels_keep_their_share_under_a_flood() -> None:
    """Every eighth turn goes to the oldest ticket of any lower level."""
    queue = filled(2, 1, *[0] * 40)
    turns = served(queue, turns=3 * SHARE)
    assert [turns.index(name) + 1 for name in ("c0", "b1")] == [SHARE, 2 * SHARE]
    assert turns[-1].startswith("a")  # no lower level waits any more


def test_newest_of_the_lowest_level_is_displaced() -> None:
    """Never one of the same level."""
    queue = filled(0, 1, 2, 2)
    for level, expected in ((0, "c3"), (1, "c3"), (2, None)):
        ticket = queue.last_below(level)
        assert (ticket and ticket.waiter) == expected


def test_adaptive_queue_is_newest_first_while_it_is_standing() -> None:
    """Oldest first while waits are short or long only for a moment; then newest first; and back."""
    queue = filled(*[0] * 6, is_adaptive=True)
    start = 5.0 + TARGET
    order = [queue.take(start + after) for after in (0.0, INTERVAL - 0.01, INTERVAL, INTERVAL + 0.1)]
    assert [ticket and ticket.waiter for ticket in order] == ["a0", "a1", "a5", "a4"]
    assert served(queue, start + INTERVAL + 0.2) == ["a3", "a2"]
    later = start + INTERVAL + 1
    for name in "xy":
        queue.join(name, 0, later, inf)
    assert served(queue, later + TARGET) == ["x", "y"]


def test_a_retry_at_the_front_does_not_end_a_standing_queue() -> None:
    """It is as old as the ticket before which it comes."""
    queue = filled(*[0] * 6, is_adaptive=True)
    start = 5.0 + TARGET
    assert not queue.is_standing(start)
    queue.join("retry", 0, start + INTERVAL - 0.01, inf, is_first=True)
    assert queue.is_standing(start + INTERVAL)
    assert served(queue, start + INTERVAL + 0.1)[-1:] == ["retry"]


def test_one_short_wait_ends_a_standing_queue() -> None:
    queue: WaitQueue[int] = WaitQueue(10, is_adaptive=True)
    for number in range(40):
        now = number * INTERVAL / 4
        queue.join(number, 0, now, inf)
        queue.join(-number, 0, now, inf)
        for _ in range(2):
            queue.take(now + (TARGET * 1.5 if number % 2 else 0.0))
        assert not queue.is_standing(now)


class Waiter:
    def __init__(self, name: str) -> None:
        self.name = name


def test_tickets_that_left_do_not_pile_up() -> None:
    """Neither they nor their waiters use memory, though no ticket is taken."""
    queue: WaitQueue[Waiter] = WaitQueue(10)
    queue.join(Waiter("first"), 0, 0.0, inf)
    for _ in range(5000):
        queue.leave(queue.join(Waiter("left"), 0, 1.0, inf))
    kept = gc.get_objects()
    assert sum(isinstance(one, Ticket) for one in kept) == 1
    assert [one.name for one in kept if isinstance(one, Waiter)] == ["first"]
    assert queue.oldest_wait(3.0) == 3.0


def test_clear() -> None:
    queue = filled(0, 1, 2)
    queue.clear()
    assert (len(queue), queue.take(9.0), queue.oldest_wait(9.0)) == (0, None, 0.0)


def test_time_to_clear_follows_the_rate() -> None:
    """Ten turns a second: fifty take five seconds. Before the first turn, each counts as long as the queue has
    waited."""
    queue: WaitQueue[int] = WaitQueue(1000)
    for number in range(500):
        queue.join(number, 0, 0.0, inf)
    assert queue.time_to_clear(3, 2.0) == 6.0
    for turn in range(100):
        queue.take(turn / 10)
    assert queue.time_to_clear(50, 10.0) == pytest.approx(5.0, rel=0.05)


def test_turns_after_the_deadline_do_not_count_as_rate() -> None:
    queue: WaitQueue[int] = WaitQueue(10)
    queue.join(0, 0, 0.0, 1.0)
    queue.take(2.0)
    assert queue.pace.read(2.0) == 0.0


# --- rate


@pytest.mark.parametrize("rate", [0.5, 20.0, 3000.0])
@pytest.mark.parametrize("seconds", [2.0, 10.0])
def test_rate_meter_measures_a_steady_rate(rate: float, seconds: float) -> None:
    """From the first seconds on, within an event."""
    pace = RateMeter()
    pace.begin(100.0)
    events = int(rate * seconds)
    for number in range(1, events + 1):
        pace.count(100.0 + number / rate)
    assert pace.read(100.0 + seconds) == pytest.approx(rate, rel=0.02, abs=0.35)


def test_rate_meter_forgets() -> None:
    pace = RateMeter()
    pace.begin(0.0)
    for number in range(1000):
        pace.count(number / 100)
    assert pace.read(10.0) > 90
    assert pace.read(25.0) < 1
    pace.begin(30.0)
    assert pace.read(31.0) == 0.0


# --- properties

Event = tuple[str, int]


def lists_of(**most: int) -> st.SearchStrategy[list[Event]]:
    """Events of these kinds, with numbers up to the given ones."""
    kinds = (st.tuples(st.just(what), st.integers(0, number)) for what, number in most.items())
    return st.lists(st.one_of(*kinds), max_size=120)


@examples(50)
@given(lists_of(join=2, take=0, leave=30), st.integers(0, 8))
def test_invariants_hold_after_any_event(events: list[Event], limit: int) -> None:
    """Never beyond the limit; rejected only when full; in order within a level; a ticket that left or was taken does
    not return; take finds one if any waits."""
    queue: WaitQueue[int] = WaitQueue(limit, 3)
    waiting: list[Ticket[int]] = []
    for at, (what, number) in enumerate(events):
        now = float(at)
        if what == "join":
            try:
                waiting.append(queue.join(at, number, now, inf))
            except WaitQueueFull:
                assert len(waiting) == limit
        elif what == "leave" and waiting:
            queue.leave(waiting.pop(number % len(waiting)))
        elif what == "take":
            ticket = queue.take(now)
            assert (ticket is None) == (not waiting)
            if ticket is not None:
                assert ticket is next(other for other in waiting if other.level == ticket.level)
                waiting.remove(ticket)
        assert len(queue) == len(waiting) <= limit
        assert [queue.waiting(level) for level in range(3)] == [
            sum(ticket.level == level for ticket in waiting) for level in range(3)
        ]
        assert queue.oldest_wait(now) == (now - min(p.joined_at for p in waiting) if waiting else 0.0)


@examples(50)
@given(lists_of(join=3, take=0, leave=30, evict=3))
def test_sources_take_turns(events: list[Event]) -> None:
    """Each source is served by age, none twice while another waits that was there, and the source that has most gives
    its newest ticket away to one that has at least two fewer."""
    queue: WaitQueue[int] = WaitQueue(1000)
    waiting: list[Ticket[int]] = []
    served_since: dict[object, set[object]] = {}  # by source that waits, since it joined or was served
    for at, (what, number) in enumerate(events):
        counts = Counter(ticket.source for ticket in waiting)
        if what == "join":
            served_since.setdefault(number, set())
            waiting.append(queue.join(at, 0, float(at), inf, number))
        elif what == "leave" and waiting:
            queue.leave(waiting.pop(number % len(waiting)))
        elif what == "take" and (ticket := queue.take(float(at))) is not None:
            assert ticket is next(other for other in waiting if other.source == ticket.source)
            waiting.remove(ticket)
            for source, served in served_since.items():
                assert source == ticket.source or ticket.source not in served
                served.add(ticket.source)
            served_since[ticket.source] = set()
        elif what == "evict":
            victim = queue.last_of_longest(0, number)
            most = max(counts.values(), default=0)
            assert (victim is None) == (most < counts[number] + 2)
            if victim is not None:
                assert counts[victim.source] == most
                assert victim is [other for other in waiting if other.source == victim.source][-1]
                queue.leave(victim)
                waiting.remove(victim)
        left = {ticket.source for ticket in waiting}
        served_since = {source: served for source, served in served_since.items() if source in left}
        assert len(queue) == len(waiting)


def test_a_ticket_that_returns_is_the_next() -> None:
    queue: WaitQueue[str] = WaitQueue(10)
    queue.join("third", 0, 0.0, inf, "b")
    queue.join("second", 0, 0.0, inf, "a")
    queue.join("first", 0, 1.0, inf, "a", is_first=True)
    assert served(queue) == ["first", "third", "second"]


@examples(25)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=60))
def test_no_level_starves(levels: list[int]) -> None:
    """A newcomer of the highest level joins before every turn, and still each ticket is taken within `SHARE` turns
    for each before it and itself."""
    queue = filled(*levels, limit=10_000)
    names = {f"{'abc'[level]}{number}" for number, level in enumerate(levels)}
    for turn in range(SHARE * (len(levels) + 1)):
        queue.join("new", 0, 100.0 + turn, inf)
        ticket = queue.take(100.0 + turn)
        if ticket is not None and ticket.waiter is not None:
            names.discard(ticket.waiter)
    assert not names
