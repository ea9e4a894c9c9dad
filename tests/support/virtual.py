"""An event loop without a kernel: callbacks run in order, and time advances by command.

Independent of HTTP and of the balancer. Ready callbacks run in the order of their calls, timers at their instant, and
no time passes in between, so the same calls give the same run. `dial` makes connections. An exception that escapes a
callback is raised by `turn`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from itertools import count
from typing import Any, Protocol, Self, cast


class Due(Protocol):
    """Callback of a timer: a handle of asyncio or a lighter object."""

    def cancelled(self) -> bool: ...
    def _run(self) -> None: ...


Dial = Callable[[Callable[[], asyncio.Protocol], str, int], "asyncio.Future[Any]"]


class Escaped(Exception):
    """An unhandled exception of a callback."""


class VirtualLoop:
    """The part of an event loop that protocols, tasks and `asyncio.timeout` need; also a `Clock`.

    As a context manager it is the running loop for `asyncio.get_running_loop()`.
    """

    def __init__(self, dial: Dial, at: float = 1000.0) -> None:
        self.loop = cast(asyncio.AbstractEventLoop, self)
        self._at = at
        self._dial = dial
        self._ready: deque[Due] = deque()
        self._timers: list[tuple[float, int, Due]] = []
        self._order = count()
        self._faults: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        asyncio._set_running_loop(self.loop)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio._set_running_loop(None)

    # --- running

    def now(self) -> float:
        """Time in seconds, as a `Clock`."""
        return self._at

    def turn(self) -> None:
        """Run ready callbacks, and those that become ready meanwhile. Raises `Escaped`."""
        ready = self._ready
        while ready:
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()
        if self._faults:
            fault = self._faults.pop()
            raise Escaped(fault.get("message")) from fault.get("exception")

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass, and run each timer at its instant. Raises `Escaped`."""
        until = self._at + seconds
        self.turn()
        while self._timers and self._timers[0][0] <= until:
            self._at, _, handle = heappop(self._timers)
            if not handle.cancelled():
                self._ready.append(handle)
            self.turn()
        self._at = until

    # --- the part of asyncio.AbstractEventLoop that is needed

    def time(self) -> float:
        return self._at

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self.loop, context)
        self._ready.append(handle)
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        return self.call_at(self._at + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self.loop, context)
        heappush(self._timers, (when, next(self._order), handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Required by asyncio; a cancelled timer is dropped when it is due."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self.loop)

    def create_task(self, coro: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self.loop, **options)

    async def create_connection(
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int, **options: Any
    ) -> Any:
        return await self._dial(protocol_factory, host, port)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._faults.append(context)


def settle(waiter: asyncio.Future[None]) -> None:
    """Complete the waiter unless it is cancelled."""
    if not waiter.done():
        waiter.set_result(None)
