"""Requests that wait because every endpoint is full.

Rule of this file: one queue for the whole unit, first come, first served. A request is bound to an endpoint only
when one has room, so nobody waits behind a slow endpoint while a fast one is free. The queue is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from balancer.errors import NoEndpoint, QueueFull
from policies.router import Router


class Waiter(Protocol):
    """Who waits; `is_finished` once it no longer wants its turn."""

    @property
    def is_finished(self) -> bool: ...
    def attempt(self) -> None: ...


class WaitQueue:
    """The line before a router whose endpoints are full."""

    def __init__(self, router: Router, limit: int) -> None:
        self._router = router
        self._limit = limit
        self._line: deque[Waiter] = deque()
        self._leave: Callable[[], Waiter] = self._line.popleft
        router.on_available = self.serve

    def __len__(self) -> int:
        return sum(not waiter.is_finished for waiter in self._line)

    def join(self, waiter: Waiter) -> None:
        """Wait for an endpoint. Raises `NoEndpoint` where none is fit to serve, `QueueFull`."""
        if not any(state.is_fit for state in self._router.states):
            raise NoEndpoint("no endpoint is up")
        if len(self._line) >= self._limit:
            self._forget_finished()
            if len(self._line) >= self._limit:
                raise QueueFull(f"every endpoint is full and {self._limit} requests wait already")
        self._line.append(waiter)

    def serve(self) -> None:
        """An endpoint has room again: let those go whose turn it is."""
        while self._line and self._router.has_room:
            waiter = self._leave()
            if not waiter.is_finished:
                waiter.attempt()

    def close(self) -> None:
        """Nobody's turn comes any more: their connections are being ended."""
        self._line.clear()

    def _forget_finished(self) -> None:
        waiting = [waiter for waiter in self._line if not waiter.is_finished]
        self._line.clear()
        self._line.extend(waiting)
