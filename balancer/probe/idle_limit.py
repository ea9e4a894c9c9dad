"""How long a server keeps an idle connection, as several of them tell together.

Rule of this file: pure; seconds. Each trial is one connection that was left alone for as long as its rung says. A
server that closes says so, at its own instant, to all that still stand; one behind a middlebox may forget a connection
without a word, and then only the next request finds out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

SHORTEST = 0.5
"""Seconds of the first rung; each further one is twice as long."""

FINER = 3
"""Rungs of the second round, between what was kept and what was not."""

RANDOM = 1.25
"""Times the shortest, from which on lives that end are no fixed time."""


class Ending(Enum):
    """What became of a connection: `ANSWERED` when it was used again, `CLOSED` by the server before, or `LOST`: it
    seemed to stand, and the request came to nothing."""

    ANSWERED = "answered"
    CLOSED = "closed"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Trial:
    """One connection, and for how long it was idle."""

    idle: float
    ending: Ending


@dataclass(frozen=True, slots=True)
class IdleLimit:
    """What they come to. `kept`: the longest that was answered, before any was gone; `closed`: the shortest after which
    one was gone, None where none was within `waited`; `closed_longest`: the longest. `is_silent`: they were not
    closed, they did not answer."""

    waited: float
    kept: float
    closed: float | None = None
    closed_longest: float | None = None
    is_silent: bool = False

    @property
    def is_random(self) -> bool:
        """Whether the server closes now sooner, now later."""
        if self.closed is None or self.closed_longest is None or self.is_silent:
            return False
        return self.closed_longest > self.closed * RANDOM + 1.0

    @property
    def safe(self) -> float:
        """A time after which a connection is there still."""
        if self.closed is None:
            return self.waited
        return self.kept if self.is_silent else self.closed


def rungs(limit: float) -> list[float]:
    """How long each connection of the first round is left alone: 0.5, 1, 2, 4 … and `limit`."""
    found, next_one = [], SHORTEST
    while next_one < limit:
        found.append(next_one)
        next_one *= 2
    return [*found, limit]


def finer_rungs(limit: IdleLimit) -> list[float]:
    """Those of a second round: where connections are lost in silence, nobody has said when."""
    if not limit.is_silent or limit.closed is None:
        return []
    step = (limit.closed - limit.kept) / (FINER + 1)
    return [limit.kept + step * number for number in range(1, FINER + 1)]


def limit_of(trials: Sequence[Trial], waited: float) -> IdleLimit:
    """What the trials come to. `waited` is the longest rung."""
    closed = [trial.idle for trial in trials if trial.ending is Ending.CLOSED]
    gone = closed or [trial.idle for trial in trials if trial.ending is Ending.LOST]
    answered = [trial.idle for trial in trials if trial.ending is Ending.ANSWERED]
    if not gone:
        return IdleLimit(waited, max(answered, default=0.0))
    kept = max((idle for idle in answered if idle < min(gone)), default=0.0)
    return IdleLimit(waited, kept, min(gone), max(gone), is_silent=not closed)
