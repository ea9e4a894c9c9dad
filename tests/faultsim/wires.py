"""Connections over a network that delays, cuts and resets: the balancer's end is a transport, the other an `End`.

Bytes keep their order within a direction. They arrive later; a cut holds them until it is healed, as TCP would repeat
them; a reset destroys what has not been read. Bytes in flight are bounded per side, so a side that does not read
stops the sender.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Final, cast
from zlib import crc32

from tests.faultsim.timeline import Timeline
from tests.support import wireless
from tests.support.wireless import QUIET, Peer

FIN: Final = b""
RST: Final = None
Piece = bytes | None

READ: Final = 65_536
"""Maximum bytes of one read: at most a quarter of what the event loop asks the kernel for."""

_draw = Random(8).random
JITTER: Final = tuple(0.25 + 1.5 * _draw() if _draw() < 0.9 else 2 + 3 * _draw() for _ in range(1021))
"""Factors of the delay: mostly near 1, sometimes far above."""

READABLE, _writable = os.pipe()
os.write(_writable, b"x")


def hung_up() -> int:
    """A descriptor whose other end is closed."""
    left, right = os.pipe()
    os.close(right)
    return left


GONE: Final = tuple(hung_up() for _ in range(16))


class Route:
    """The route between the balancer and one machine: its delay, and the directions that pass."""

    def __init__(self, delay: float) -> None:
        self.delay = delay
        self.passes_in = self.passes_out = True  # to the balancer, from the balancer
        self._waiting: list[Callable[[], None]] = []

    def cut(self, directions: str) -> None:
        """Stop a direction: "in", "out" or "both"."""
        self.passes_in &= directions == "out"
        self.passes_out &= directions == "in"

    def heal(self) -> None:
        """Let both directions pass again, first what was held."""
        self.passes_in = self.passes_out = True
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            go_on()

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call after `heal`."""
        self._waiting.append(go_on)


class Socket(wireless.Socket):
    """The descriptor by which the balancer asks the kernel about a connection."""

    def __init__(self) -> None:
        super().__init__()
        self.descriptor = QUIET

    def fileno(self) -> int:
        return self.descriptor


class Wire(wireless.Wire):
    """The balancer's end. `room` is the number of bytes in flight before the transport buffers."""

    def __init__(
        self, timeline: Timeline, end: End, protocol: asyncio.Protocol, address: tuple[str, int], room: int
    ) -> None:
        super().__init__(timeline, cast(Peer, end), protocol, address)
        self._end = end
        self._room = room
        self._failure: OSError | None = None
        self._has_sent_fin = False
        self._socket = Socket()
        self._extra["socket"] = self._socket

    # --- asyncio.Transport

    def _put(self, data: bytes) -> None:
        self._end.written(data)
        if self._failure is not None:
            self._lose(self._failure)
        elif not self._buffer and len(data) <= self._room:
            self._room -= len(data)
            self._end.carry(data)
        else:
            self._buffer += data
            self.drain(0)

    def drain(self, size: int) -> None:
        """Send from the buffer as far as the kernel has room."""
        self._room += size
        buffer = self._buffer
        if buffer and self._room and not self._is_lost:
            taken = bytes(buffer[: self._room])
            self._room -= len(taken)
            del buffer[: len(taken)]
            self._end.carry(taken)
        self._resume_writing()
        if not buffer and self._is_ended and not self._has_sent_fin:
            self._has_sent_fin = True
            self._end.carry(FIN)
        if not buffer and self._is_closing:
            self._lose(None)

    # --- the network

    @property
    def is_lost(self) -> bool:
        """Whether the balancer has closed it or seen its end."""
        return self._is_lost

    @property
    def is_stuffed(self) -> bool:
        """Whether the kernel holds as many unread bytes as it may."""
        return len(self._inbox) > 1

    def arrive(self, data: bytes) -> None:
        super().arrive(data)
        if self._inbox:
            self._socket.descriptor = READABLE

    def fail(self, error: OSError) -> None:
        """A reset arrives. A side that neither reads nor writes notices it when it does."""
        if self._is_reading or self._buffer:
            self._lose(error)
        elif not self._is_lost:
            self._failure = error
            self._socket.descriptor = GONE[self._end.number % len(GONE)]

    def _deliver(self) -> None:
        super()._deliver()
        if self._inbox:
            return
        if self._failure is not None and self._is_reading:
            self._lose(self._failure)
            return
        if self._failure is None:
            self._socket.descriptor = QUIET
        self._end.make_room()

    def _lose(self, error: OSError | None) -> None:
        if self._is_lost:
            return
        if error is None:  # closing with unread bytes resets, and so does SO_LINGER
            if self._socket.is_abortive or self._failure is not None or any(self._inbox):
                self._end.carry(RST)
            elif not self._has_sent_fin:
                self._end.carry(FIN)
        super()._lose(error)


class End:
    """The other end of a connection: a client, or a worker that the balancer has connected to.

    `pace` is the time to read a piece here, in seconds; `is_over`: nothing more can happen to it.
    """

    def __init__(self, timeline: Timeline, route: Route, number: int, pace: float = 0.0) -> None:
        self.timeline = timeline
        self.route = route
        self.number = number
        self.note: Callable[[str], None] | None = None  # journal of pieces received
        self.wire: Wire | None = None
        self.ending: str | None = None  # how the balancer ended its side, seen here or not
        self.is_over = self.is_reading_stopped = False
        self._pace = pace
        self._draws = number * 131
        self._out: deque[tuple[Piece, float]] = deque()
        self._coming: deque[Piece] = deque()
        self._is_pushing = self._is_arriving = self._is_waiting_for_room = False

    # --- for subclasses

    def received(self, data: bytes) -> None:
        """Bytes have arrived from the balancer."""

    def ended(self, by_reset: bool) -> None:
        """The balancer sends no more."""

    def written(self, data: bytes) -> None:
        """The balancer has written this; from now on a part of it may have been received."""

    def send(self, piece: Piece, after: float = 0.0) -> None:
        """Send bytes, an end or a reset, `after` seconds after the last piece."""
        if self.is_over:
            return
        self._out.append((piece, after))
        if not self._is_pushing:
            self._is_pushing = True
            self.timeline.after(self._delay() + after, self._push)

    def reset(self) -> None:
        """Reset at once; unsent bytes are dropped."""
        if not self.is_over:
            self._out.clear()
            self.send(RST)
            self.is_over = True

    def leave(self) -> None:
        """Close in good order; later bytes are rejected."""
        self.send(FIN)
        self.is_over = True

    def slam(self) -> None:
        """End the connection as soon as it is open, which the balancer sees at once."""
        self.is_over = True
        if self.wire is not None and self.number % 3:
            self.wire.fail(ConnectionResetError(104, "Connection reset by peer"))
        elif self.wire is not None:
            self.wire.arrive(FIN)

    def resume_reading(self) -> None:
        self.is_reading_stopped = False
        if self._coming and not self._is_arriving:
            self._is_arriving = True
            self.timeline.after(self._delay(), self._arrive)

    # --- to the balancer

    def _delay(self) -> float:
        self._draws += 1
        return self.route.delay * JITTER[self._draws % len(JITTER)]

    def _push(self) -> None:
        wire = self.wire
        if not self._out or wire is None:
            self._is_pushing = False
        elif not self.route.passes_in:
            self.route.wait(self._push)
        elif wire.is_stuffed and self._out[0][0] is not RST:
            self._is_waiting_for_room = True
        else:
            piece, _ = self._out.popleft()
            if self._out:
                self.timeline.after(self._delay() * 0.1 + self._out[0][1], self._push)
            else:
                self._is_pushing = False
            self._meet(wire, piece)

    def _meet(self, wire: Wire, piece: Piece) -> None:
        if wire.is_lost:
            if piece and not self.is_over:  # the kernel there has no such connection
                self._out.clear()
                self.carry(RST)
        elif piece is RST:
            wire.fail(ConnectionResetError(104, "Connection reset by peer"))
        else:
            wire.arrive(piece)

    def make_room(self) -> None:
        """The balancer has read its bytes."""
        if self._is_waiting_for_room:
            self._is_waiting_for_room = False
            self.timeline.after(0.0, self._push)

    # --- from the balancer

    def carry(self, piece: Piece) -> None:
        """The balancer's kernel sends a piece."""
        if piece is RST and self.number % 2:  # it overtakes the bytes before it
            self._coming.clear()
        self._coming.append(piece)
        if not self._is_arriving and (not self.is_reading_stopped or piece is RST):
            self._is_arriving = True
            self.timeline.after(self._delay() + self._pace, self._arrive)

    def _arrive(self) -> None:
        if not self._coming:
            self._is_arriving = False
            return
        if not self.route.passes_out:
            self.route.wait(self._arrive)
            return
        if self.is_reading_stopped and RST not in self._coming:
            self._is_arriving = False
            return
        piece = self._coming.popleft()
        if self._coming:
            self.timeline.after(self._delay() * 0.1 + self._pace, self._arrive)
        else:
            self._is_arriving = False
        self._take(piece)

    def _take(self, piece: Piece) -> None:
        wire = cast(Wire, self.wire)
        if self.is_over:
            if piece:
                wire.fail(ConnectionResetError(104, "Connection reset by peer"))
        elif piece:
            if self.note is not None:
                self.note(f"{self} takes {len(piece)} bytes, {crc32(piece):08x}")
            self.received(piece)
            if not wire.is_lost:
                wire.drain(len(piece))
        else:
            self.ended(by_reset=piece is RST)
