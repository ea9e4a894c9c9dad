"""Turns of an event loop in virtual time, and what happens between them.

Rule of this file: as in a real loop, a turn runs what was ready when it began, and then everything that the kernel has
meanwhile. `grain` is how long a turn takes: all that falls due within it is met in the same turn, so that events of
different connections meet each other and the callbacks that the first of them asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from tests.balancer.virtual import Dial, Escaped, VirtualLoop


class Event:
    """Something that the outside does; leaner than a handle."""

    __slots__ = ("_act", "_arguments")

    def __init__(self, act: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self._act = act
        self._arguments = arguments

    def cancelled(self) -> bool:
        """What was sent is sent."""
        return False

    def _run(self) -> None:
        self._act(*self._arguments)


class Timeline(VirtualLoop):
    """The loop of a simulation. `turns` counts."""

    def __init__(self, dial: Dial, grain: float) -> None:
        super().__init__(dial, at=1000.0)
        self._grain = grain
        self.turns = 0

    @property
    def is_calm(self) -> bool:
        """Whether nothing is left to be run at this instant."""
        return not self._ready

    def after(self, delay: float, act: Callable[..., None], *arguments: Any) -> None:
        """Let this happen."""
        heappush(self._timers, (self._at + delay, next(self._order), Event(act, arguments)))

    def forget(self) -> None:
        """Nothing more is to happen."""
        self._timers.clear()

    def run_until(self, until: float, look: Callable[[], None]) -> None:
        """Turn until then, and `look` after each turn. Raises `Escaped`, and whatever a protocol raises."""
        timers, ready = self._timers, self._ready
        while ready or (timers and timers[0][0] <= until):
            if not ready:
                self._at = max(self._at, timers[0][0])
            self._turn(min(self._at + self._grain, until))
            look()
        self._at = max(self._at, until)

    def _turn(self, horizon: float) -> None:
        timers, ready = self._timers, self._ready
        self.turns += 1
        for _ in range(len(ready)):
            due = ready.popleft()
            if not due.cancelled():
                due._run()
        while timers and timers[0][0] <= horizon:
            at, _, due = heappop(timers)
            if at > self._at:
                self._at = at
            if not due.cancelled():
                due._run()
        if self._faults:
            fault = self._faults.pop()
            raise Escaped(fault.get("message")) from fault.get("exception")

    async def create_connection(
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int, **options: Any
    ) -> Any:
        """As uvloop does: who is cancelled while the connection is being made closes it."""
        connecting = self._dial(protocol_factory, host, port)
        try:
            return await connecting
        except BaseException:
            if connecting.done() and not connecting.cancelled() and connecting.exception() is None:
                connecting.result()[0].close()
            raise
