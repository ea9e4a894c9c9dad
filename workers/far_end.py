"""The worker's end of a linked connection, in the shape of an asyncio transport.

Rule of this file: nothing that the worker does to its transport happens here and now. Writes, close and abort
enter the line and happen to the client's transport half a round trip later, in their order.

What this process computes is not part of the distance that it emulates. So each end has an instant: when that to which
the worker is reacting was due, the arrival of bytes or the end of a service. What the worker writes enters the line at
that instant, and its computing happens while the bytes are on their way; a real worker's is part of its service time.
Whoever reacts later than PATIENCE has been held up by something else, and that shows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from workers.line import Line

Buffer = bytes | bytearray | memoryview

FAR_END = "far_end"
"""The name by which whatever stands on a far end is asked for it (`get_extra_info`)."""

PATIENCE = 0.005
"""Seconds of the worker's own computing between what it reacts to and what it writes that are not felt: a handshake
takes it two or three."""


class FarEnd(asyncio.Transport):
    """What `protocol` writes to; `near` is the client's transport, `up` and `down` lie between."""

    def __init__(
        self,
        near: asyncio.Transport,
        protocol: asyncio.Protocol,
        up: Line,
        down: Line,
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
        """When that to which the worker is reacting was due; now, if that was long ago."""
        now = time.monotonic()
        return self._reacts_to if 0.0 <= now - self._reacts_to <= PATIENCE else now

    def react_to(self, instant: float) -> None:
        """What comes now is the worker's reaction to something that was due at `instant`."""
        self._reacts_to = instant

    def arrive(self, data: bytes) -> None:
        """Bytes reach the worker; after its close they reach nobody."""
        if not self._is_closing:
            self._reacts_to = self._up.left_at
            self._protocol.data_received(data)

    def arrive_eof(self) -> None:
        """The client's end of stream reaches the worker, which decides whether to go on sending."""
        if not self._is_closing and not self._protocol.eof_received():
            self.close()

    def lose(self, exc: Exception | None) -> None:
        """The connection is gone: tell the worker, once."""
        self._is_closing = True
        if not self.is_lost:
            self.is_lost = True
            self._protocol.connection_lost(exc)

    def write(self, data: Buffer) -> None:
        if not self._is_closing and not self._near.is_closing():
            # Anything but bytes may be changed by its owner while it is on the way.
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
        return self if name == FAR_END else self._near.get_extra_info(name, default)

    def _end(self, act: Callable[[], None]) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._down.enter(act, at=self.instant)
            asyncio.get_running_loop().call_soon(self.lose, None)


def far_end_of(transport: asyncio.BaseTransport | None) -> FarEnd | None:
    """What it stands on; None without a link."""
    found = None if transport is None else transport.get_extra_info(FAR_END)
    return found if isinstance(found, FarEnd) else None
