"""Emulated wide-area link in front of a worker, in the worker's process, per direction.

Every event of a connection crosses the link and takes half a round trip: bytes, end of stream, close and reset. So
remote behaviour is reproduced, the keep-alive race included: a worker's close is on the way for half a round trip, and
requests that meet it are lost.

The kernel completes the handshake of a loopback connection before the process sees it. A client across the link could
send its first byte only one round trip after its SYN, so nothing counts as sent earlier than that. With R the round
trip and S the service time, a GET on a new connection takes 2R + S, on an idle one R + S. TLS ends at the worker's end,
so that its flights cross the link too; TCP's slow start is not emulated: a flight of any size is one.

    client ── kernel ── LinkedConnection ══ line up ══▶ protocol (HTTP)
                                         ◀═ line down ══ FarEnd, its transport
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable
from typing import cast

from workers.delay_line import DelayLine
from workers.delayed_transport import WorkerTransport
from workers.faults import Faults
from workers.timer import DeadlineTimer

ProtocolFactory = Callable[[], asyncio.Protocol]

WINDOW = 1 << 20
"""Bytes on the way per direction before its sender must pause: at most WINDOW / (R/2) bytes per second."""

is_control = re.compile(rb"[A-Z]+ /-/").match


class Link:
    """Puts `round_trip` seconds between clients and the protocols that `factory` makes."""

    def __init__(self, timer: DeadlineTimer, round_trip: float, window: int = WINDOW) -> None:
        self.timer = timer
        self.round_trip = self._usual = round_trip
        self.window = window
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
        """Register a new connection of the link."""
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
        half = link.round_trip / 2
        self._up = DelayLine(link.timer, half, link.window, self._pause_client, self._resume_client)
        self._down = DelayLine(link.timer, half, link.window, self._pause_worker, self._resume_worker)
        self._is_first = True
        self._is_control = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._link.join(self)
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

    def _pause_client(self) -> None:
        self._transport.pause_reading()

    def _resume_client(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _pause_worker(self) -> None:
        self._protocol.pause_writing()

    def _resume_worker(self) -> None:
        if not self._worker_transport.is_lost:
            self._protocol.resume_writing()
