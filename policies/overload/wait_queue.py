"""Who waits for an endpoint, and whose turn comes next.

Rule of this file: what one request costs does not depend on how many wait. Nobody is searched for: who gives up is
marked, and taken out when its turn comes or when the marked ones are the most.

Turns go by level, the highest first, and within a level by age. So that nobody starves, every `SHARE`th turn of a level
goes to who has waited longest below it, while somebody waits there.

An adaptive line turns round when it stands: when whoever is in front has waited for more than `TARGET` seconds at every
turn for `INTERVAL` seconds, the newest goes first until the line has moved up. First come, first served then serves
everybody late and nobody in time; newest first, most are served at once and some not at all. (Maurer, "Fail at Scale",
ACM Queue 13(8), 2015; the measure of standing is CoDel's, Nichols and Jacobson, RFC 8289 § 3.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import inf
from typing import Final, Generic, TypeVar

from policies.errors import WaitQueueFull
from policies.stats.rate import RateMeter

SHARE: Final = 8
"""One turn in so many goes to those below: a level under flood leaves the others an eighth."""

TARGET: Final = 0.1
"""Seconds of wait that are no sign of anything: a burst that is worked off."""

INTERVAL: Final = 1.0
"""Seconds for which the wait must stay above TARGET: several round trips to a far region."""

SLACK: Final = 64
"""Places that may stand empty in a row whatever its length."""

Waiter = TypeVar("Waiter")


class Ticket(Generic[Waiter]):
    """Where one waits: since `joined_at`, until `deadline` at the latest. `waits`: its turn has not come. A place that
    was given up stands empty for a while, and then has no `waiter`."""

    __slots__ = ("deadline", "joined_at", "level", "waiter", "waits")

    def __init__(self, waiter: Waiter, level: int, joined_at: float, deadline: float) -> None:
        self.waiter: Waiter | None = waiter
        self.level = level
        self.joined_at = joined_at
        self.deadline = deadline
        self.waits = True


class Lane(Generic[Waiter]):
    """Those of one level, the oldest on the left. `waiting` counts who has not given up."""

    __slots__ = ("_places", "turns", "waiting")

    def __init__(self) -> None:
        self._places: deque[Ticket[Waiter]] = deque()
        self.waiting = 0
        self.turns = 0

    def add(self, place: Ticket[Waiter]) -> None:
        """Its place is the newest."""
        self._places.append(place)
        self.waiting += 1

    def remove(self, place: Ticket[Waiter]) -> None:
        """It waits no more, wherever it stands."""
        self._count_out(place)
        place.waiter = None
        if len(self._places) > 2 * self.waiting + SLACK:
            self._places = deque(other for other in self._places if other.waits)

    def take_oldest(self) -> Ticket[Waiter] | None:
        """Its turn has come."""
        return self._count_out(self._places.popleft()) if self.oldest() is not None else None

    def take_newest(self) -> Ticket[Waiter] | None:
        """Its turn has come."""
        return self._count_out(self._places.pop()) if self.newest() is not None else None

    def merge(self, rows: Iterable[Lane[Waiter]]) -> None:
        """Take in those of `rows`, each by its age."""
        for row in rows:
            self._places.extend(row._places)
            self.waiting += row.waiting
        self._places = deque(sorted((place for place in self._places if place.waits), key=_joined_at))

    def number(self, level: int) -> None:
        """This is its level."""
        for place in self._places:
            place.level = level

    def _count_out(self, place: Ticket[Waiter]) -> Ticket[Waiter]:
        place.waits = False
        self.waiting -= 1
        return place

    def oldest(self) -> Ticket[Waiter] | None:
        """Who has waited longest."""
        places = self._places
        while places and not places[0].waits:
            places.popleft()
        return places[0] if places else None

    def newest(self) -> Ticket[Waiter] | None:
        """Who has waited least."""
        places = self._places
        while places and not places[-1].waits:
            places.pop()
        return places[-1] if places else None


class WaitQueue(Generic[Waiter]):
    """A bounded line of `levels` levels, 0 the highest. `pace` is how many turns come per second while it stands."""

    def __init__(self, limit: int, levels: int = 1, is_adaptive: bool = False) -> None:
        self.limit = limit
        self.is_adaptive = is_adaptive
        self.pace = RateMeter()
        self._rows: list[Lane[Waiter]] = [Lane() for _ in range(levels)]
        self._waiting = 0
        self._slow_since = inf

    def __len__(self) -> int:
        return self._waiting

    def waiting(self, level: int) -> int:
        """How many of one level wait."""
        return self._rows[level].waiting

    def ahead(self, level: int) -> int:
        """How many would mostly be served before somebody who joins a level now."""
        return sum(row.waiting for row in self._rows[: level + 1])

    def join(self, waiter: Waiter, level: int, now: float, deadline: float) -> Ticket[Waiter]:
        """Take the last place of a level. Raises `WaitQueueFull`."""
        if self._waiting >= self.limit:
            raise WaitQueueFull(f"{self.limit} wait already")
        if not self._waiting:
            self.pace.begin(now)
            self._slow_since = inf
        level = min(level, len(self._rows) - 1)  # there may have been more when it was given one
        place = Ticket(waiter, level, now, deadline)
        self._rows[level].add(place)
        self._waiting += 1
        return place

    def divide(self, levels: int) -> None:
        """Have so many levels from now on; who stands below the lowest of them joins it."""
        rows = self._rows
        self._rows = rows[:levels] + [Lane() for _ in range(levels - len(rows))]
        self._rows[-1].merge(rows[levels:])
        for level, row in enumerate(self._rows):
            row.number(level)

    def leave(self, place: Ticket[Waiter]) -> None:
        """Give a place up; one that was taken before is nobody's."""
        if place.waits:
            self._rows[place.level].remove(place)
            self._waiting -= 1

    def take(self, now: float) -> Ticket[Waiter] | None:
        """Whose turn it is, who waits no more then; None where nobody waits. It may be too late for who is given."""
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
        """Who would have to give way to `level`: the newest of the lowest level that is lower."""
        for row in reversed(self._rows[level + 1 :]):
            if row.waiting:
                return row.newest()
        return None

    def clear(self) -> None:
        """Nobody waits any more."""
        for level in range(len(self._rows)):
            while (place := self._rows[level].newest()) is not None:
                self.leave(place)

    # --- what can be told of it

    def oldest_wait(self, now: float) -> float:
        """Seconds that whoever came first has waited; 0 where nobody does."""
        fronts = [place for row in self._rows if (place := row.oldest()) is not None]
        return now - min(place.joined_at for place in fronts) if fronts else 0.0

    def is_standing(self, now: float) -> bool:
        """Whether it has been slow for long. To be asked at every turn: it notes what it sees."""
        if self.oldest_wait(now) < TARGET:
            self._slow_since = inf
            return False
        self._slow_since = min(self._slow_since, now)
        return now - self._slow_since >= INTERVAL

    def time_to_clear(self, count: float, now: float) -> float:
        """Seconds until so many turns have come, at the pace of the last seconds. Before the first turn of a line each
        is expected to take as long as the line has stood already."""
        pace = self.pace.read(now)
        return count / pace if pace > 0.0 else count * (now - self.pace.began_at)

    def _row(self) -> Lane[Waiter] | None:
        """The level that is served next."""
        rows = [row for row in self._rows if row.waiting]
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
    """Since when its oldest has waited."""
    place = row.oldest()
    return place.joined_at if place is not None else inf
