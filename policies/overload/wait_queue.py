"""Bounded wait queue with priority lanes for requests that wait for an endpoint.

The cost of a request must not depend on the length of the queue. There is no search: tickets are keys of ordered
dictionaries, from which any is removed at once, and whose first key is found at once.

Lanes are served by level, the highest first. To prevent starvation, every `SHARE`th turn of a level goes to the oldest
ticket below it, if there is one. Within a lane the sources of requests, which are clients, take turns, and each source
is served by age: one that waits with thousands of requests delays another's by one turn each. A lane whose requests all
have one source is served by age.

An adaptive queue switches to last in, first out while it is standing: when the oldest ticket has waited for more than
`TARGET` seconds at every turn for `INTERVAL` seconds. First in, first out then serves every request late; last in,
first out serves most at once and some not at all. (Maurer, "Fail at Scale", ACM Queue 13(8), 2015; the test for a
standing queue is CoDel's, Nichols and Jacobson, RFC 8289 § 3.)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from math import inf
from operator import attrgetter
from typing import Final, Generic, TypeVar

from policies.errors import WaitQueueFull
from policies.stats.load import RateMeter

SHARE: Final = 8
"""Number of turns of a level of which one goes to lower levels: a level under flood leaves the others an eighth."""

TARGET: Final = 0.1
"""Wait in seconds that is normal: a burst that is worked off."""

INTERVAL: Final = 1.0
"""Seconds for which the wait must stay above TARGET: several round trips to a far region."""

Waiter = TypeVar("Waiter")


class Ticket(Generic[Waiter]):
    """Ticket of one waiter, valid from `joined_at` to `deadline`.

    `waits` is true until it is served or cancelled; a cancelled one has no `waiter`. `source` is whose turn it takes.
    """

    __slots__ = ("deadline", "joined_at", "level", "source", "waiter", "waits")

    def __init__(
        self, waiter: Waiter, level: int, joined_at: float, deadline: float, source: object = None
    ) -> None:
        self.waiter: Waiter | None = waiter
        self.level = level
        self.joined_at = joined_at
        self.deadline = deadline
        self.source = source
        self.waits = True


class Lane(Generic[Waiter]):
    """Tickets of one level: `every` of them by age, and those of each source, which take turns.

    `_by_length` has the sources by the number of their tickets, up to the largest, so that the longest row is found
    without a search.
    """

    def __init__(self) -> None:
        self.every: OrderedDict[Ticket[Waiter], None] = OrderedDict()
        self.turns = 0
        # first the row of the source whose turn it is
        self._rows: OrderedDict[object, OrderedDict[Ticket[Waiter], None]] = OrderedDict()
        self._by_length: list[OrderedDict[object, None]] = [OrderedDict()]

    def oldest(self) -> Ticket[Waiter] | None:
        """Return the ticket that has waited longest."""
        return next(iter(self.every), None)

    def newest(self) -> Ticket[Waiter] | None:
        """Return the ticket that has waited least."""
        return next(reversed(self.every), None)

    def add(self, place: Ticket[Waiter], *, is_first: bool = False) -> None:
        """Add a ticket as the newest of its source; if it `is_first`, as the next one of the lane and as old as the one
        before which it comes, whose wait tells whether the queue is standing."""
        source, every = place.source, self.every
        oldest = self.oldest()
        if is_first and oldest is not None:
            place.joined_at = min(place.joined_at, oldest.joined_at)
        row = self._rows.get(source)
        if row is None:
            row = self._rows[source] = OrderedDict()
        every[place] = row[place] = None
        self._sort(source, len(row) - 1, len(row))
        if is_first:
            every.move_to_end(place, last=False)
            row.move_to_end(place, last=False)
            self._rows.move_to_end(source, last=False)

    def remove(self, place: Ticket[Waiter]) -> None:
        """Remove a ticket at any position."""
        place.waits = False
        row = self._rows[place.source]
        self._sort(place.source, len(row), len(row) - 1)
        del self.every[place], row[place]
        if not row:
            del self._rows[place.source]

    def take(self, *, is_newest: bool) -> Ticket[Waiter] | None:
        """Remove and return the oldest or the newest ticket of the source whose turn it is."""
        for source, row in self._rows.items():
            place = next(reversed(row)) if is_newest else next(iter(row))
            self.remove(place)
            if row:
                self._rows.move_to_end(source)
            return place
        return None

    def last_of_longest(self, source: object) -> Ticket[Waiter] | None:
        """Return the newest ticket of the source that has most, if those are at least two more than `source` has."""
        if len(self._by_length) <= 2 + len(self._rows.get(source, ())):
            return None
        for longest in self._by_length[-1]:
            return next(reversed(self._rows[longest]))
        return None

    def merge(self, lanes: Iterable[Lane[Waiter]]) -> None:
        """Add the tickets of other lanes, ordered by age."""
        places = [*self.every, *(place for lane in lanes for place in lane.every)]
        self.every, self._rows, self._by_length = OrderedDict(), OrderedDict(), [OrderedDict()]
        for place in sorted(places, key=attrgetter("joined_at")):
            self.add(place)

    def _sort(self, source: object, before: int, after: int) -> None:
        """Note that a source has one ticket more or less than `before`."""
        lengths = self._by_length
        if after == len(lengths):
            lengths.append(OrderedDict())
        if before:
            del lengths[before][source]
        if after:
            lengths[after][source] = None
        if len(lengths) > 1 and not lengths[-1]:
            lengths.pop()


class WaitQueue(Generic[Waiter]):
    """A bounded wait queue of `levels` lanes, 0 the highest.

    `pace` measures turns per second while the queue is not empty.
    """

    def __init__(self, limit: int, levels: int = 1, is_adaptive: bool = False) -> None:
        self.limit = limit
        self.is_adaptive = is_adaptive
        self.pace = RateMeter()
        self._lanes: list[Lane[Waiter]] = [Lane() for _ in range(levels)]
        self._waiting = 0
        self._slow_since = inf

    def __len__(self) -> int:
        return self._waiting

    def waiting(self, level: int) -> int:
        """Return the number of tickets waiting in one lane."""
        return len(self._lanes[level].every)

    def ahead(self, level: int) -> int:
        """Return how many tickets would normally be served before one that joins a level now."""
        return sum(len(row.every) for row in self._lanes[: level + 1])

    def join(
        self,
        waiter: Waiter,
        level: int,
        now: float,
        deadline: float,
        source: object = None,
        *,
        is_first: bool = False,
    ) -> Ticket[Waiter]:
        """Add a ticket to a lane: behind those of its source, or as the next one if it `is_first`.

        Raises WaitQueueFull.
        """
        if self._waiting >= self.limit:
            raise WaitQueueFull(f"{self.limit} wait already")
        if not self._waiting:
            self.pace.begin(now)
            self._slow_since = inf
        level = min(level, len(self._lanes) - 1)  # there may have been more lanes when the level was assigned
        place = Ticket(waiter, level, now, deadline, source)
        self._lanes[level].add(place, is_first=is_first)
        self._waiting += 1
        return place

    def set_levels(self, levels: int) -> None:
        """Change the number of lanes; tickets below the new lowest level are merged into it."""
        rows = self._lanes
        self._lanes = rows[:levels] + [Lane() for _ in range(levels - len(rows))]
        self._lanes[-1].merge(rows[levels:])
        for level, row in enumerate(self._lanes):
            for place in row.every:
                place.level = level

    def leave(self, place: Ticket[Waiter]) -> None:
        """Cancel a ticket; no effect if it was served or cancelled before."""
        if place.waits:
            self._lanes[place.level].remove(place)
            place.waiter = None
            self._waiting -= 1

    def take(self, now: float) -> Ticket[Waiter] | None:
        """Remove and return the next ticket, or None if none waits. Its deadline may have passed."""
        row = self._row()
        if row is None:
            return None
        place = row.take(is_newest=self.is_adaptive and self.is_standing(now))
        if place is not None:
            self._waiting -= 1
            if now <= place.deadline:
                self.pace.count(now)
        return place

    def last_below(self, level: int) -> Ticket[Waiter] | None:
        """Return the ticket to evict in favour of `level`: the newest of the lowest lane below it."""
        for row in reversed(self._lanes[level + 1 :]):
            if row.every:
                return row.newest()
        return None

    def last_of_longest(self, level: int, source: object) -> Ticket[Waiter] | None:
        """Return the ticket to evict in favour of one of `source`: the newest of the source that has most in its
        lane."""
        return self._lanes[min(level, len(self._lanes) - 1)].last_of_longest(source)

    def clear(self) -> None:
        """Cancel all tickets of all lanes."""
        for level in range(len(self._lanes)):
            while (place := self._lanes[level].newest()) is not None:
                self.leave(place)

    # --- measurements

    def oldest_wait(self, now: float) -> float:
        """Return the seconds that the oldest ticket has waited; 0 if none waits."""
        fronts = [place for row in self._lanes if (place := row.oldest()) is not None]
        return now - min(place.joined_at for place in fronts) if fronts else 0.0

    def is_standing(self, now: float) -> bool:
        """Whether the wait has stayed above TARGET for INTERVAL. Call at every turn: it updates the measurement."""
        if self.oldest_wait(now) < TARGET:
            self._slow_since = inf
            return False
        self._slow_since = min(self._slow_since, now)
        return now - self._slow_since >= INTERVAL

    def time_to_clear(self, count: float, now: float) -> float:
        """Return the expected seconds until `count` more turns, at the current rate.

        Before the first turn each is expected to take as long as the queue has existed."""
        pace = self.pace.read(now)
        return count / pace if pace > 0.0 else count * (now - self.pace.began_at)

    def _row(self) -> Lane[Waiter] | None:
        """Return the lane to serve next."""
        rows = [row for row in self._lanes if row.every]
        if len(rows) < 2:
            return rows[0] if rows else None
        first = rows[0]
        first.turns += 1
        if first.turns % SHARE:
            return first
        return min(rows[1:], key=_age)


def _age(row: Lane[Waiter]) -> float:
    """Return when its oldest ticket joined."""
    place = row.oldest()
    return place.joined_at if place is not None else inf
