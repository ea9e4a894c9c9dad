"""The worker's end of an emulated link, as an asyncio transport.

Nothing that the worker does to its transport takes effect at once. Writes, close and abort enter the delay line and
happen to the client's transport half a round trip later, in order.

The computing time of this process is not part of the distance that it emulates. So each end has an `instant`: the due
time of the event that the worker is reacting to, the arrival of bytes or the end of a service. What the worker writes
enters the line at that time, and its computing happens while the bytes are on their way; a real worker's is part of its
service time. A reaction later than PATIENCE was delayed by something else, and that delay is not hidden.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from workers.delay_line import DelayLine

Buffer = bytes | bytearray | memoryview

WORKER_TRANSPORT = "worker_transport"
"""Key of `get_extra_info` that returns the far end under a transport."""

PATIENCE = 0.005
"""Seconds of the worker's own computing between an event and its reaction that are hidden: a handshake takes two or
three milliseconds of it."""


class WorkerTransport(asyncio.Transport):
    """The transport that `protocol` writes to; `near` is the client's transport, `up` and `down` delay lines."""

    def __init__(
        self,
        near: asyncio.Transport,
        protocol: asyncio.Protocol,
        up: DelayLine,
        down: DelayLine,
    ) -> None:
        super().__init__()
        self._near = near
        self._protocol = protocol
        self._up = up
        self._down = down
        self._is_closing = False
        self._is_reading = True
        self._reacts_to = 0.0
        self.is_lost = False

    @property
    def instant(self) -> float:
        """Due time of the event that the worker is reacting to; now, if that is longer ago than PATIENCE."""
        now = time.monotonic()
        return self._reacts_to if 0.0 <= now - self._reacts_to <= PATIENCE else now

    def set_event_time(self, instant: float) -> None:
        """Set the due time of the event that the worker reacts to next."""
        self._reacts_to = instant

    def arrive(self, data: bytes) -> None:
        """Deliver bytes to the worker, unless it has closed."""
        if not self._is_closing:
            self._reacts_to = self._up.left_at
            self._protocol.data_received(data)

    def arrive_eof(self) -> None:
        """Deliver the client's end of stream to the worker, which decides whether to go on sending."""
        if not self._is_closing and not self._protocol.eof_received():
            self.close()

    def lose(self, exc: Exception | None) -> None:
        """Report the loss of the connection to the worker, once."""
        self._is_closing = True
        if not self.is_lost:
            self.is_lost = True
            self._protocol.connection_lost(exc)

    def write(self, data: Buffer) -> None:
        if not self._is_closing and not self._near.is_closing():
            # A mutable buffer may be changed by its owner before it is delivered.
            self._down.enter(self._near.write, bytes(data), size=len(data), at=self.instant)

    def close(self) -> None:
        self._end(self._near.close)

    def abort(self) -> None:
        self._end(self._near.abort)

    def is_closing(self) -> bool:
        return self._is_closing

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._down.enter(self._near.write_eof, at=self.instant)

    def get_write_buffer_size(self) -> int:
        return self._down.size

    def pause_reading(self) -> None:
        self._is_reading = False
        if not self._near.is_closing():
            self._up.hold()

    def resume_reading(self) -> None:
        self._is_reading = True
        self._up.release()

    def is_reading(self) -> bool:
        return self._is_reading

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == WORKER_TRANSPORT else self._near.get_extra_info(name, default)

    def _end(self, act: Callable[[], None]) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._down.enter(act, at=self.instant)
            asyncio.get_running_loop().call_soon(self.lose, None)


def worker_transport_of(transport: asyncio.BaseTransport | None) -> WorkerTransport | None:
    """Return the far end under a transport; None without a link."""
    found = None if transport is None else transport.get_extra_info(WORKER_TRANSPORT)
    return found if isinstance(found, WorkerTransport) else None
