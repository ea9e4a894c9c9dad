"""Bounded wait queue with priority lanes for requests that wait for an endpoint.

The cost of a request must not depend on the length of the queue. There is no search: a cancelled ticket is marked, and
removed when it reaches the front or when marked ones are the majority.

Lanes are served by level, the highest first, and each lane by age. To prevent starvation, every `SHARE`th turn of a
level goes to the oldest ticket below it, if there is one.

An adaptive queue switches to last in, first out while it is standing: when the oldest ticket has waited for more than
`TARGET` seconds at every turn for `INTERVAL` seconds. First in, first out then serves every request late; last in,
first out serves most at once and some not at all. (Maurer, "Fail at Scale", ACM Queue 13(8), 2015; the test for a
standing queue is CoDel's, Nichols and Jacobson, RFC 8289 § 3.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import inf
from typing import Final, Generic, TypeVar

from policies.errors import WaitQueueFull
from policies.stats.rate import RateMeter

SHARE: Final = 8
"""Number of turns of a level of which one goes to lower levels: a level under flood leaves the others an eighth."""

TARGET: Final = 0.1
"""Wait in seconds that is normal: a burst that is worked off."""

INTERVAL: Final = 1.0
"""Seconds for which the wait must stay above TARGET: several round trips to a far region."""

SLACK: Final = 64
"""Cancelled tickets that a lane may hold whatever its length."""

Waiter = TypeVar("Waiter")


class Ticket(Generic[Waiter]):
    """Ticket of one waiter, valid from `joined_at` to `deadline`.

    `waits` is true until it is served or cancelled. A cancelled ticket stays in its lane for a while, without `waiter`.
    """

    __slots__ = ("deadline", "joined_at", "level", "waiter", "waits")

    def __init__(self, waiter: Waiter, level: int, joined_at: float, deadline: float) -> None:
        self.waiter: Waiter | None = waiter
        self.level = level
        self.joined_at = joined_at
        self.deadline = deadline
        self.waits = True


class Lane(Generic[Waiter]):
    """Tickets of one level, the oldest on the left. `waiting` counts those not cancelled."""

    __slots__ = ("_places", "turns", "waiting")

    def __init__(self) -> None:
        self._places: deque[Ticket[Waiter]] = deque()
        self.waiting = 0
        self.turns = 0

    def add(self, place: Ticket[Waiter]) -> None:
        """Append a ticket to the lane."""
        self._places.append(place)
        self.waiting += 1

    def remove(self, place: Ticket[Waiter]) -> None:
        """Cancel a ticket at any position."""
        self._count_out(place)
        place.waiter = None
        if len(self._places) > 2 * self.waiting + SLACK:
            self._places = deque(other for other in self._places if other.waits)

    def take_oldest(self) -> Ticket[Waiter] | None:
        """Remove and return the oldest ticket."""
        return self._count_out(self._places.popleft()) if self.oldest() is not None else None

    def take_newest(self) -> Ticket[Waiter] | None:
        """Remove and return the newest ticket."""
        return self._count_out(self._places.pop()) if self.newest() is not None else None

    def merge(self, rows: Iterable[Lane[Waiter]]) -> None:
        """Add the tickets of the lanes `rows`, ordered by age."""
        for row in rows:
            self._places.extend(row._places)
            self.waiting += row.waiting
        self._places = deque(sorted((place for place in self._places if place.waits), key=_joined_at))

    def number(self, level: int) -> None:
        """Set the level of all tickets."""
        for place in self._places:
            place.level = level

    def _count_out(self, place: Ticket[Waiter]) -> Ticket[Waiter]:
        place.waits = False
        self.waiting -= 1
        return place

    def oldest(self) -> Ticket[Waiter] | None:
        """Return the ticket that has waited longest."""
        places = self._places
        while places and not places[0].waits:
            places.popleft()
        return places[0] if places else None

    def newest(self) -> Ticket[Waiter] | None:
        """Return the ticket that has waited least."""
        places = self._places
        while places and not places[-1].waits:
            places.pop()
        return places[-1] if places else None


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
        return self._lanes[level].waiting

    def ahead(self, level: int) -> int:
        """Return how many tickets would normally be served before one that joins a level now."""
        return sum(row.waiting for row in self._lanes[: level + 1])

    def join(self, waiter: Waiter, level: int, now: float, deadline: float) -> Ticket[Waiter]:
        """Append a ticket to a lane. Raises WaitQueueFull."""
        if self._waiting >= self.limit:
            raise WaitQueueFull(f"{self.limit} wait already")
        if not self._waiting:
            self.pace.begin(now)
            self._slow_since = inf
        level = min(level, len(self._lanes) - 1)  # there may have been more lanes when the level was assigned
        place = Ticket(waiter, level, now, deadline)
        self._lanes[level].add(place)
        self._waiting += 1
        return place

    def set_levels(self, levels: int) -> None:
        """Change the number of lanes; tickets below the new lowest level are merged into it."""
        rows = self._lanes
        self._lanes = rows[:levels] + [Lane() for _ in range(levels - len(rows))]
        self._lanes[-1].merge(rows[levels:])
        for level, row in enumerate(self._lanes):
            row.number(level)

    def leave(self, place: Ticket[Waiter]) -> None:
        """Cancel a ticket; no effect if it was served or cancelled before."""
        if place.waits:
            self._lanes[place.level].remove(place)
            self._waiting -= 1

    def take(self, now: float) -> Ticket[Waiter] | None:
        """Remove and return the next ticket, or None if none waits. Its deadline may have passed."""
        row = self._row()
        if row is None:
            return None
        place = row.take_newest() if self.is_adaptive and self.is_standing(now) else row.take_oldest()
        if place is not None:
            self._waiting -= 1
            if now <= place.deadline:
                self.pace.count(now)
        return place

    def last_below(self, level: int) -> Ticket[Waiter] | None:
        """Return the ticket to evict in favour of `level`: the newest of the lowest lane below it."""
        for row in reversed(self._lanes[level + 1 :]):
            if row.waiting:
                return row.newest()
        return None

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
        rows = [row for row in self._lanes if row.waiting]
        if len(rows) < 2:
            return rows[0] if rows else None
        first = rows[0]
        first.turns += 1
        if first.turns % SHARE:
            return first
        return min(rows[1:], key=_age)


def _joined_at(place: Ticket[Waiter]) -> float:
    return place.joined_at


def _age(row: Lane[Waiter]) -> float:
    """Return when its oldest ticket joined."""
    place = row.oldest()
    return place.joined_at if place is not None else inf
