"""Shared counters: rows of a page, generations, and what a reader sees after a process has ended."""

from __future__ import annotations

import os
from math import inf

from balancer.sharing.shared_counters import CAPACITY, Page, SharedCounters, key_of, page_size
from policies.stats.shared_latency import SharedLatency

MEASURED = SharedLatency(4.0, 2.0, 8.0, 1.0, 0.25, 0.125, 1000.0)


def page(capacity: int = 4) -> Page:
    return Page(memoryview(bytearray(page_size(capacity))), capacity)


def test_rows_are_found_by_key() -> None:
    """Rows are assigned in order and found by key."""
    one = page()
    assert [one.enter(key_of(name)) for name in ("a", "b", "c")] == [0, 1, 2]
    assert one.rows() == {key_of("a"): 0, key_of("b"): 1, key_of("c"): 2}


def test_released_row_is_reused() -> None:
    """Count and latency of the previous row are cleared."""
    one = page()
    for name in ("a", "b"):
        one.enter(key_of(name))
    one.in_flight[0] = 7
    one.tell(0, MEASURED)
    one.leave(0)
    assert (one.in_flight[0], one.rows()) == (0, {key_of("b"): 1})
    assert one.enter(key_of("c")) == 0
    assert (one.in_flight[0], one.latency_of(0)) == (0, SharedLatency())


def test_generation_changes_with_the_rows() -> None:
    """It grows when a row is assigned or released or the page is cleared, not when counts change."""
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


def test_full_page_has_no_row() -> None:
    one = page(2)
    assert [one.enter(key) for key in (1, 2, 3)] == [0, 1, None]
    one.leave(1)
    assert one.enter(3) == 1


def test_latency_is_read_as_published() -> None:
    """Stored as means, so that a mean read beside an older count stays plausible; unmeasured stays unmeasured."""
    one = page()
    one.enter(key_of("a"))
    one.tell(0, MEASURED)
    assert one.latency_of(0) == MEASURED
    one.tell(0, SharedLatency(failures=2.0, at=5.0))
    assert one.latency_of(0) == SharedLatency(0.0, 0.0, 0.0, 2.0, inf, inf, 5.0)


def test_clear_resets_counts_and_latency() -> None:
    one = page()
    one.enter(key_of("a"))
    one.in_flight[0] = 3
    one.tell(0, MEASURED)
    assert one.total_in_flight == 3
    one.clear()
    assert (one.in_flight[0], one.total_in_flight, one.rows()) == (0, 0, {})
    assert one.latency_of(0).successes == one.latency_of(0).failures == 0.0


def test_pages_do_not_overlap() -> None:
    """Writing the last word of a page leaves the next page unchanged."""
    counters = SharedCounters(3, 2)
    for number, each in enumerate(counters.pages, 1):
        for key in (number, -number):
            each.in_flight[each.enter(key) or 0] = number
            each.tell(1, SharedLatency(*[float(number)] * len(SharedLatency._fields)))
    assert [each.in_flight.tolist() for each in counters.pages] == [[1, 1], [2, 2], [3, 3]]
    assert [set(each.rows()) for each in counters.pages] == [{1, -1}, {2, -2}, {3, -3}]


def test_counters_are_shared_with_forked_processes() -> None:
    """The parent reads what a forked child writes."""
    counters = SharedCounters(2)
    child = os.fork()
    if not child:
        counters.pages[1].enter(key_of("a"))
        counters.pages[1].in_flight[0] = 5
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (counters.pages[1].rows(), counters.pages[1].in_flight[0]) == ({key_of("a"): 0}, 5)


def test_keys_are_stable_and_distinct() -> None:
    """Keys do not depend on the interpreter's hash seed."""
    assert key_of("emea-0") == 7964864234008886091
    assert len({key_of(f"worker-{at}") for at in range(CAPACITY)}) == CAPACITY
    assert 0 not in {key_of(f"worker-{at}") for at in range(CAPACITY)}


def test_clear_keeps_the_grace_period() -> None:
    """Clearing a page keeps its process's grace period."""
    counters = SharedCounters(2, 8)
    counters.pages[1].grace = 12.5
    counters.pages[1].clear()
    assert [page.grace for page in counters.pages] == [0.0, 12.5]
