"""Admission control: which requests are rejected first under overload.

A level is rejected while the pressure is at or above its own threshold, so that lower levels make room for higher ones
before anything is full.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple


class Level(NamedTuple):
    """Priority level of a request.

    `queue` and `in_flight` are the shares (0..1) of the wait queue and of the endpoints' capacity at which it is
    rejected; 1 means not before they are full."""

    name: str
    queue: float = 1.0
    in_flight: float = 1.0


class Pressure(NamedTuple):
    """Load of the proxy: requests waiting and in flight, with their limits."""

    waiting: int
    queue_limit: int
    in_flight: int
    capacity: float = inf


def is_refused(level: Level, pressure: Pressure) -> bool:
    """Whether a request of this level must be rejected."""
    is_busy = level.in_flight < 1.0 and pressure.in_flight >= level.in_flight * pressure.capacity
    return is_busy or excess(level, pressure) > 0.0


def excess(level: Level, pressure: Pressure) -> float:
    """Return how many requests must leave the queue before it has room for this level again; 0 if it has."""
    over = pressure.waiting - level.queue * pressure.queue_limit
    return over + 1.0 if level.queue < 1.0 and pressure.waiting and over >= 0.0 else 0.0
