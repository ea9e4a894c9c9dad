"""Emulated wide-area link in front of a worker, in the worker's process, per direction.

Every event of a connection crosses the link and takes half a round trip: bytes, end of stream, close and reset. So
remote behaviour is reproduced, the keep-alive race included: a worker's close is on the way for half a round trip, and
requests that meet it are lost.

The kernel completes the handshake of a loopback connection before the process sees it. A client across the link could
send its first byte only one round trip after its SYN, so nothing counts as sent earlier than that. With R the round
trip and S the service time, a GET on a new connection takes 2R + S, on an idle one R + S. TLS ends at the worker's end,
so that its flights cross the link too; TCP's slow start is not emulated: a flight of any size is one.

    client ── kernel ── LinkedConnection ══ line up ══▶ protocol (HTTP)
                                         ◀═ line down ══ WorkerTransport, its transport
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from workers.alarm import DeadlineTimer
from workers.faults import Faults

Act = Callable[..., object]


class DelayLine:
    """One direction of a link, which delivers events in order after a fixed delay: a queue of (due, act, arguments,
    bytes) with one timer, for its head.

    A line is bounded. It reports when it holds more bytes than its window, so that its sender pauses; it can be held,
    and what is due then waits. Together that is TCP's flow control, hop by hop.

    `on_full` is called when more than `window` bytes are on the way, `on_room` when half of it is free again. `left_at`
    is the due time of the last event delivered; it may be delivered somewhat later. `delay`, in seconds, may be
    changed.
    """

    def __init__(self, timer: DeadlineTimer, delay: float, window: int, on_full: Act, on_room: Act) -> None:
        self._timer = timer
        self.delay = delay
        self._window = window
        self._on_full = on_full
        self._on_room = on_room
        self._entries: deque[tuple[float, Act, tuple[Any, ...], int]] = deque()
        self.size = 0
        self.left_at = 0.0
        self._due_at = 0.0  # of the last entry
        self._is_full = self.is_held = self._is_armed = False

    def enter(
        self, act: Act, *args: Any, size: int = 0, at: float | None = None, not_before: float = 0.0
    ) -> None:
        """Call `act(*args)` one delay after `at` (None: now), or after `not_before`, behind all earlier entries.

        `size` is its size in the window, in bytes.
        """
        entered_at = time.monotonic() if at is None else at
        self._due_at = max(self._due_at, max(entered_at, not_before) + self.delay)
        self._entries.append((self._due_at, act, args, size))
        self.size += size
        if self.size > self._window and not self._is_full:
            self._is_full = True
            self._on_full()
        self._arm()

    def hold(self) -> None:
        """Stop delivery, because the receiver does not read."""
        self.is_held = True

    def release(self) -> None:
        """Resume delivery after `hold`, in order."""
        self.is_held = False
        self._arm()

    def bypass(self) -> None:
        """Set the delay to 0 and deliver all entries at once."""
        self.delay = self._due_at = 0.0
        self._is_armed = False  # the timer may be set far ahead; ringing then is harmless
        self._leave_until(float("inf"))

    def clear(self) -> None:
        """Drop all entries without delivering them."""
        self._entries.clear()
        self.size = 0

    def _arm(self) -> None:
        # Due times never decrease along a line, so one timer for the head is enough.
        if self._entries and not self._is_armed and not self.is_held:
            self._is_armed = True
            self._timer.schedule(self._entries[0][0], self._fall_due)

    def _fall_due(self) -> None:
        self._is_armed = False
        self._leave_until(time.monotonic())
        self._arm()

    def _leave_until(self, now: float) -> None:
        entries = self._entries
        while entries and not self.is_held and entries[0][0] <= now:
            self.left_at, act, args, size = entries.popleft()
            self.size -= size
            act(*args)
        if self._is_full and self.size <= self._window // 2:
            self._is_full = False
            self._on_room()


Buffer = bytes | bytearray | memoryview

WORKER_TRANSPORT = "worker_transport"
"""Key of `get_extra_info` that returns the far end under a transport."""

PATIENCE = 0.005
"""Seconds of the worker's own computing between an event and its reaction that are hidden: a handshake takes two or
three milliseconds of it."""


class WorkerTransport(asyncio.Transport):
    """The worker's end of a link, the transport that `protocol` writes to; `near` is the client's transport, `up` and
    `down` are delay lines, through which writes, close and abort happen to `near` half a round trip later.

    The computing time of this process is not part of the distance that it emulates. So each end has an `instant`: the
    due time of the event that the worker is reacting to, the arrival of bytes or the end of a service. What the worker
    writes enters the line at that time, and its computing happens while the bytes are on their way; a real worker's is
    part of its service time. A reaction later than PATIENCE was delayed by something else, and that delay is not
    hidden.
    """

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

    def pause_reading(self) -> None:
        if not self._near.is_closing():
            self._up.hold()

    def resume_reading(self) -> None:
        self._up.release()

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


ProtocolFactory = Callable[[], asyncio.Protocol]

WINDOW = 1 << 20
"""Bytes on the way per direction before its sender must pause: at most WINDOW / (R/2) bytes per second."""

is_control = re.compile(rb"[A-Z]+ /-/").match


class Link:
    """Puts `round_trip` seconds between clients and the protocols that `factory` makes."""

    def __init__(self, timer: DeadlineTimer, round_trip: float) -> None:
        self.timer = timer
        self.round_trip = self._usual = round_trip
        self._connections: set[LinkedConnection] = set()
        self._is_empty = asyncio.Event()

    def before(self, factory: ProtocolFactory) -> ProtocolFactory:
        """Return a factory for `loop.create_server`; without a round trip it is `factory` itself, at no cost."""
        if self.round_trip == 0:
            return factory
        return lambda: LinkedConnection(self, factory())

    def apply(self, faults: Faults) -> None:
        """Apply the round trip of the faults, or the configured one. Events on the way keep their time of arrival."""
        self.round_trip = self._usual if faults.rtt is None else faults.rtt
        for connection in self._connections:
            connection.stretch(self.round_trip)

    async def drain(self) -> None:
        """Wait until events on the way have arrived, one round trip at most; then reset remaining connections."""
        if not self._connections:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._is_empty.wait(), max(self.round_trip, self._usual))
        for connection in list(self._connections):
            connection.abort()

    def join(self, connection: LinkedConnection) -> None:
        self._connections.add(connection)
        self._is_empty.clear()

    def leave(self, connection: LinkedConnection) -> None:
        """Remove a connection that has ended at the client's side."""
        self._connections.discard(connection)
        if not self._connections:
            self._is_empty.set()


class LinkedConnection(asyncio.Protocol):
    """The client's end of one connection: the protocol of the kernel's transport."""

    def __init__(self, link: Link, protocol: asyncio.Protocol) -> None:
        self._link = link
        self._protocol = protocol
        self._is_first = True
        self._is_control = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        link, half = self._link, self._link.round_trip / 2
        self._up = DelayLine(link.timer, half, WINDOW, self._transport.pause_reading, self._resume_client)
        self._down = DelayLine(link.timer, half, WINDOW, self._protocol.pause_writing, self._resume_worker)
        link.join(self)
        self._connected_at = time.monotonic() + self._link.round_trip
        self._worker_transport = WorkerTransport(self._transport, self._protocol, self._up, self._down)
        self._up.enter(self._protocol.connection_made, self._worker_transport, not_before=self._connected_at)

    def data_received(self, data: bytes) -> None:
        if self._is_first:
            self._recognise_control(data)
        self._up.enter(self._worker_transport.arrive, data, size=len(data), not_before=self._connected_at)

    def eof_received(self) -> bool:
        self._up.enter(self._worker_transport.arrive_eof, not_before=self._connected_at)
        return True  # the worker may still be sending its response

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.leave(self)
        self._down.clear()
        if self._up.is_held:
            # A reset discards what the worker had not read, which must not delay the report of the loss.
            self._up.clear()
            self._up.release()
        self._up.enter(self._worker_transport.lose, exc)

    def pause_writing(self) -> None:
        self._down.hold()

    def resume_writing(self) -> None:
        self._down.release()

    def stretch(self, round_trip: float) -> None:
        """Use half of `round_trip` as delay from now on, except for a control connection."""
        if not self._is_control:
            self._up.delay = self._down.delay = round_trip / 2

    def abort(self) -> None:
        """Reset the connection now, without the delay of the link."""
        self._transport.abort()

    def _recognise_control(self, first_bytes: bytes) -> None:
        # Control requests bypass the link: an experiment's fault must not start a round trip late.
        self._is_first = False
        if is_control(first_bytes):
            self._is_control = True
            self._connected_at = 0.0
            self._up.bypass()
            self._down.bypass()

    def _resume_client(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _resume_worker(self) -> None:
        if not self._worker_transport.is_lost:
            self._protocol.resume_writing()
