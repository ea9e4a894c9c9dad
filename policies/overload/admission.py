"""Which requests are refused first when there is more to do than can be done.

Rule of this file: values and one question. A level is refused while the pressure is at or above its own threshold, so
the lower ones make room for the higher before anything is full.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple


class Level(NamedTuple):
    """How important a request is: `queue` and `in_flight` are the shares (0..1) of the wait queue and of what the
    endpoints may hold at which it is refused; 1 means not before they are full."""

    name: str
    queue: float = 1.0
    in_flight: float = 1.0


class Pressure(NamedTuple):
    """How full everything is: requests that wait and that are at endpoints, and how many may be."""

    waiting: int
    queue_limit: int
    in_flight: int
    capacity: float = inf


def is_refused(level: Level, pressure: Pressure) -> bool:
    """Whether a request of this level has to go."""
    is_busy = level.in_flight < 1.0 and pressure.in_flight >= level.in_flight * pressure.capacity
    return is_busy or excess(level, pressure) > 0.0


def excess(level: Level, pressure: Pressure) -> float:
    """How many turns must come before the queue has room for one of this level again; 0 where it has."""
    over = pressure.waiting - level.queue * pressure.queue_limit
    return over + 1.0 if level.queue < 1.0 and pressure.waiting and over >= 0.0 else 0.0
