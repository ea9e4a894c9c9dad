"""An event loop in virtual time, with events of the network between its iterations.

As in a real loop, an iteration runs what was ready when it began, then takes everything that has arrived meanwhile.
`grain` is the duration of an iteration: all that falls due within it is handled in the same iteration, so that events
of different connections interleave with the callbacks that they cause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from tests.support.virtual import Dial, Escaped, VirtualLoop


class Event:
    """An event of the network; cheaper than a handle."""

    __slots__ = ("_act", "_arguments")

    def __init__(self, act: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self._act = act
        self._arguments = arguments

    def cancelled(self) -> bool:
        """Never: sent bytes stay sent."""
        return False

    def _run(self) -> None:
        self._act(*self._arguments)


class Timeline(VirtualLoop):
    """The loop of a simulation. `turns` counts its iterations."""

    def __init__(self, dial: Dial, grain: float) -> None:
        super().__init__(dial, at=1000.0)
        self._grain = grain
        self.turns = 0

    @property
    def is_calm(self) -> bool:
        """Whether nothing is left to run at this instant."""
        return not self._ready

    def after(self, delay: float, act: Callable[..., None], *arguments: Any) -> None:
        """Call `act` after `delay` seconds."""
        heappush(self._timers, (self._at + delay, next(self._order), Event(act, arguments)))

    def forget(self) -> None:
        self._timers.clear()

    def run_until(self, until: float, look: Callable[[], None]) -> None:
        """Iterate until then, and call `look` after each iteration. Raises `Escaped`, and whatever a protocol
        raises."""
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
        """As in uvloop: a caller that is cancelled while connecting closes the connection."""
        connecting = self._dial(protocol_factory, host, port)
        try:
            return await connecting
        except BaseException:
            if connecting.done() and not connecting.cancelled() and connecting.exception() is None:
                connecting.result()[0].close()
            raise
