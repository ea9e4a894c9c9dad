"""The memory that processes share: rows, generations, what a reader makes of them, and what is left of the dead."""

from __future__ import annotations

import os
from math import inf

from balancer.shared_counters import CAPACITY, Page, SharedCounters, key_of, page_size
from policies.stats.shared_latency import SharedLatency

MEASURED = SharedLatency(4.0, 2.0, 8.0, 1.0, 0.25, 0.125, 1000.0)


def page(capacity: int = 4) -> Page:
    return Page(memoryview(bytearray(page_size(capacity))), capacity)


def test_a_row_is_found_by_its_key() -> None:
    """Rows are given in order, and a reader finds them by what they stand for."""
    one = page()
    assert [one.enter(key_of(name)) for name in ("a", "b", "c")] == [0, 1, 2]
    assert one.rows() == {key_of("a"): 0, key_of("b"): 1, key_of("c"): 2}


def test_a_row_that_is_left_is_given_again() -> None:
    """And means nothing of what it meant: neither its count nor its latency."""
    one = page()
    for name in ("a", "b"):
        one.enter(key_of(name))
    one.in_flight[0] = 7
    one.tell(0, MEASURED)
    one.leave(0)
    assert (one.in_flight[0], one.rows()) == (0, {key_of("b"): 1})
    assert one.enter(key_of("c")) == 0
    assert (one.in_flight[0], one.latency_of(0)) == (0, SharedLatency())


def test_the_generation_tells_that_rows_have_changed() -> None:
    """With every row that is given or left, and when the page is cleared; not with what is counted in it."""
    one = page()
    seen = [one.generation]
    one.enter(key_of("a"))
    seen.append(one.generation)
    one.leave(0)
    seen.append(one.generation)
    one.clear()
    seen.append(one.generation)
    one.in_flight[0] = 1
    assert seen == sorted(set(seen))
    assert one.generation == seen[-1]


def test_a_full_page_has_no_row() -> None:
    one = page(2)
    assert [one.enter(key) for key in (1, 2, 3)] == [0, 1, None]
    one.leave(1)
    assert one.enter(3) == 1


def test_latency_arrives_as_it_was_told() -> None:
    """Written as means, so that a mean read beside an older count is a mean still; nothing measured stays nothing."""
    one = page()
    one.enter(key_of("a"))
    one.tell(0, MEASURED)
    assert one.latency_of(0) == MEASURED
    one.tell(0, SharedLatency(failures=2.0, at=5.0))
    assert one.latency_of(0) == SharedLatency(0.0, 0.0, 0.0, 2.0, inf, inf, 5.0)


def test_what_a_dead_process_had_in_flight_is_cleared() -> None:
    one = page()
    one.enter(key_of("a"))
    one.in_flight[0] = 3
    one.tell(0, MEASURED)
    assert one.total_in_flight == 3
    one.clear()
    assert (one.in_flight[0], one.total_in_flight, one.rows()) == (0, 0, {})
    assert one.latency_of(0).successes == one.latency_of(0).failures == 0.0


def test_pages_do_not_overlap() -> None:
    """The last word of one is not the first of the next, whatever is written."""
    board = SharedCounters(3, 2)
    for number, each in enumerate(board.pages, 1):
        for key in (number, -number):
            each.in_flight[each.enter(key) or 0] = number
            each.tell(1, SharedLatency(*[float(number)] * len(SharedLatency._fields)))
    assert [each.in_flight.tolist() for each in board.pages] == [[1, 1], [2, 2], [3, 3]]
    assert [set(each.rows()) for each in board.pages] == [{1, -1}, {2, -2}, {3, -3}]


def test_a_board_is_shared_by_those_who_are_forked_after_it() -> None:
    """What a child writes the parent reads."""
    board = SharedCounters(2)
    child = os.fork()
    if not child:
        board.pages[1].enter(key_of("a"))
        board.pages[1].in_flight[0] = 5
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (board.pages[1].rows(), board.pages[1].in_flight[0]) == ({key_of("a"): 0}, 5)


def test_keys_are_the_same_everywhere_and_apart() -> None:
    """They do not hang on the interpreter's seed for hashes."""
    assert key_of("emea-0") == 7964864234008886091
    assert len({key_of(f"worker-{at}") for at in range(CAPACITY)}) == CAPACITY
    assert 0 not in {key_of(f"worker-{at}") for at in range(CAPACITY)}


def test_grace() -> None:
    """How long a process may take to end outlives it: the next one begins as it did."""
    board = SharedCounters(2, 8)
    board.pages[1].grace = 12.5
    board.pages[1].clear()
    assert [page.grace for page in board.pages] == [0.0, 12.5]
