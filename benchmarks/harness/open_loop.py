"""Open-loop load generator that is cheap enough to run beside what it measures: raw sockets, epoll, arrays.

A request may cost no more than a few microseconds, so there is no event loop, no parser and no object per request. A
request is a number that indexes arrays of results. A free connection takes the next due request, the last used
connection first. A request without a free connection waits, and its latency still counts from its due instant.
"""

from __future__ import annotations

import re
import select
import socket
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from errno import EINPROGRESS

import numpy as np

from experiments.errors import FleetFailedError
from experiments.run_data import Flags, Floats, Ints, Kind
from workers.alarm import Timerfd

HEAD_START = 0.02
"""Seconds from the last connection made to the first instant."""

SWEEP = 0.1
"""Seconds between two sweeps for overdue requests."""

LOOK = 50e-6
"""Maximum seconds of a poll that counts as idle; a longer one was preempted by another process on the core."""

OPEN_WITHIN = 5.0
READ = 4096
"""Bytes per read: a small response fits, and a larger buffer would be allocated and freed for each response."""

OK = b"HTTP/1.1 200 "
LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)[ \t]*\r\n", re.IGNORECASE)
FREE, OPENING = -1, -2
"""Value of `ConnectionSlot.number` without a request."""


@dataclass(frozen=True, slots=True)
class Record:
    """A row per request: instants in seconds of `time.monotonic()`, nan where there is none; `kind` as in `Kind`."""

    due: Floats
    sent: Floats
    ended: Floats
    kind: Ints
    has_waited: Flags
    """Whether no connection was free when the request was due."""

    def since(self, instant: float) -> Record:
        """Rows that were due from `instant` on."""
        rows = self.due >= instant
        return Record(
            self.due[rows], self.sent[rows], self.ended[rows], self.kind[rows], self.has_waited[rows]
        )


class ConnectionSlot:
    """A reusable connection slot, and the number of the request on it."""

    __slots__ = ("came", "number", "recv", "send", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.take(sock, FREE)

    def take(self, sock: socket.socket, number: int) -> None:
        """Use a new socket, with request `number` or `FREE` or `OPENING`."""
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock, self.send, self.recv = sock, sock.sendall, sock.recv
        self.number = number
        self.came = b""
        """Bytes received of an incomplete response."""


class OpenLoop:
    """Sends one request at every instant and records its result. `timeout` in seconds from the due instant."""

    slot = ConnectionSlot

    def __init__(
        self, port: int, request: bytes, connections: int, timeout: float, spins: bool = False
    ) -> None:
        self._address = ("127.0.0.1", port)
        self._request = request
        self._timeout = timeout
        self._spins = spins
        self.idle = 0.0
        """Seconds of spinning in which nothing arrived and nothing was due."""

        self._size = -1
        """Bytes of a complete response, taken from the first one; -1 before it."""

        self._short_until = 0.0
        """Instant at which a connection became free after there had been none."""

        self._next = 0
        self._is_set_for = -1
        self._epoll = select.epoll()
        self._timer = Timerfd()
        # Edge-triggered: the timer stays readable but is reported once.
        self._epoll.register(self._timer.fd, select.EPOLLIN | select.EPOLLET)
        self._lanes: dict[int, ConnectionSlot] = {}
        self._down: list[ConnectionSlot] = []
        try:
            for _ in range(connections):
                self._watch(self.slot(self._connected()), select.EPOLLIN)
        except FleetFailedError:
            self.close()
            raise
        self._free = list(self._lanes.values())

    def _connected(self) -> socket.socket:
        try:
            return socket.create_connection(self._address, OPEN_WITHIN)
        except OSError as error:
            raise FleetFailedError(f"no connection to {self._address[1]}: {error.strerror}") from None

    def _watch(self, lane: ConnectionSlot, mask: int) -> None:
        self._lanes[lane.sock.fileno()] = lane
        self._epoll.register(lane.sock.fileno(), mask)

    def run(self, instants: Sequence[float]) -> Record:
        """Send at `instants`, in seconds from now and ascending, at least one; returns when all have ended."""
        start, count = time.monotonic() + HEAD_START, len(instants)
        self._due = [start + instant for instant in instants]
        self._left = count
        self._sent, self._ended = array("d", [np.nan]) * count, array("d", [np.nan]) * count
        self._kind, self._has_waited = array("b", [Kind.UNFINISHED]) * count, array("b", [0]) * count
        give_up_at = self._due[-1] + self._timeout
        self._due.append(float("inf"))  # sentinel after the last instant
        self._requests = self.requests(count)
        self._turns(give_up_at)
        self._give_up(give_up_at)
        return self._record()

    def requests(self, count: int) -> Sequence[bytes]:
        """Bytes of each request; the same for all unless a subclass has others."""
        return [self._request] * count

    def close(self) -> None:
        """Close all sockets and the timer and epoll descriptors."""
        for lane in [*self._lanes.values(), *self._down]:
            lane.sock.close()
        self._timer.close()
        self._epoll.close()

    def _turns(self, give_up_at: float) -> None:
        """Main loop: wait for data or the next due instant and handle it."""
        clock, due, lanes = time.monotonic, self._due, self._lanes
        wait = self._look if self._spins else self._sleep
        now = sweep_at = clock()
        while self._left and now < give_up_at:
            events = wait()
            now = clock()  # data read after this had arrived by now, except the rest of a fragmented response
            for fd, _ in events:
                if (lane := lanes.get(fd)) is not None:
                    self._hear(lane, now)
                if self._free and due[self._next] <= clock():
                    self._send_due()
            if now >= sweep_at:
                sweep_at = now + SWEEP
                self._sweep(now)

    def _sleep(self) -> list[tuple[int, int]]:
        """Wait with epoll until data arrives, or the next request is due and can be sent."""
        if self._free and self._is_set_for < self._next < len(self._due) - 1:
            self._is_set_for = self._next
            self._timer.set(self._due[self._next])
        return self._epoll.poll(SWEEP)

    def _look(self) -> list[tuple[int, int]]:
        """Busy-poll instead of sleeping in `_sleep`. Returns without events at times, for the sweep."""
        clock, poll, due = time.monotonic, self._epoll.poll, self._due
        began_at = now = clock()
        while not (events := poll(0)) and now < began_at + SWEEP:
            if self._free and due[self._next] <= now:
                self._send_due()
                began_at = now = clock()
                continue
            later = clock()
            if later - now < LOOK:
                self.idle += later - now
            now = later
        return events

    def _send_due(self) -> None:
        """Send all due requests for which a connection is free."""
        clock, free, due, requests = time.monotonic, self._free, self._due, self._requests
        while free and due[self._next] <= (now := clock()):
            lane = free.pop()
            number = lane.number = self._next
            self._next = number + 1
            self._sent[number] = now
            if due[number] < self._short_until:
                self._has_waited[number] = 1
            try:
                lane.send(requests[number])
            except OSError:
                self._end_broken(lane, Kind.RESET, now)

    def _hear(self, lane: ConnectionSlot, now: float) -> None:
        """Read from a connection; nearly always one complete response of the usual size."""
        try:
            data = lane.recv(READ)
        except BlockingIOError:
            return self._opened(lane, now)
        except OSError:
            data = b""
        if len(data) == self._size and lane.number >= 0 and not lane.came and data.startswith(OK):
            return self._end(lane, Kind.OK, now)
        return self._hear_piece(lane, data, now)

    def _hear_piece(self, lane: ConnectionSlot, data: bytes, now: float) -> None:
        """Handle an unusual read: the first response, a fragment, an error status, or the end of the connection."""
        if lane.number == OPENING:
            return self._go_down(lane)
        if not data or lane.number == FREE:
            return self._end_broken(lane, Kind.RESET, now)
        lane.came += data
        size = size_of(lane.came)
        if len(lane.came) < size or size < 0:
            return None
        if len(lane.came) > size:
            return self._end_broken(lane, Kind.RESET, now)
        is_ok = lane.came.startswith(OK)
        self._size = size if is_ok else self._size
        lane.came = b""
        return self._end(lane, Kind.OK if is_ok else Kind.ERROR_STATUS, now)

    def _end(self, lane: ConnectionSlot, kind: Kind, now: float) -> None:
        self._write_down(lane, kind, now)
        self._set_free(lane, now)

    def _set_free(self, lane: ConnectionSlot, now: float) -> None:
        lane.number = FREE
        if not self._free:
            self._short_until = now
        self._free.append(lane)

    def _write_down(self, lane: ConnectionSlot, kind: Kind, now: float) -> None:
        number = lane.number
        self._ended[number] = now
        self._kind[number] = kind
        self._left -= 1

    def _end_broken(self, lane: ConnectionSlot, kind: Kind, now: float) -> None:
        """Replace a broken connection, ending the request that it carried."""
        if lane.number >= 0:
            self._write_down(lane, kind, now)
        elif lane.number == FREE:
            self._free.remove(lane)
        self._drop(lane)
        self._open(lane, now)

    def _drop(self, lane: ConnectionSlot) -> None:
        del self._lanes[lane.sock.fileno()]
        lane.sock.close()

    def _open(self, lane: ConnectionSlot, now: float) -> None:
        """Open a new connection. On the loopback it is mostly established at once."""
        lane.take(socket.socket(), OPENING)
        error = lane.sock.connect_ex(self._address)
        if error == EINPROGRESS:
            self._watch(lane, select.EPOLLOUT)
        elif error:
            lane.sock.close()
            self._down.append(lane)
        else:
            self._watch(lane, select.EPOLLIN)
            self._set_free(lane, now)

    def _opened(self, lane: ConnectionSlot, now: float) -> None:
        """Handle an empty read: a connection has been established, or the event was spurious."""
        if lane.number == OPENING:
            self._epoll.modify(lane.sock.fileno(), select.EPOLLIN)
            self._set_free(lane, now)

    def _go_down(self, lane: ConnectionSlot) -> None:
        self._drop(lane)
        self._down.append(lane)

    def _sweep(self, now: float) -> None:
        """Time out overdue requests, and reopen refused connections."""
        for lane in list(self._lanes.values()):
            if lane.number >= 0 and self._due[lane.number] + self._timeout <= now:
                self._end_broken(lane, Kind.TIMEOUT, now)
        down, self._down = self._down, []
        for lane in down:
            self._open(lane, now)
        self._send_due()

    def _give_up(self, now: float) -> None:
        """Mark the remaining requests as failed: unanswered, or never sent for want of a connection."""
        for number in range(len(self._kind)):
            if self._kind[number] == Kind.UNFINISHED:
                was_sent = self._sent[number] == self._sent[number]  # false for nan
                self._kind[number] = Kind.TIMEOUT if was_sent else Kind.REFUSED
                self._ended[number] = now

    def _record(self) -> Record:
        return Record(
            due=np.array(self._due[:-1]),
            sent=np.array(self._sent),
            ended=np.array(self._ended),
            kind=np.array(self._kind, dtype=np.int64),
            has_waited=np.array(self._has_waited, dtype=np.bool_),
        )


def size_of(data: bytes) -> int:
    """Size in bytes of the response that begins with `data`; -1 if unknown. Only Content-Length is supported."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return -1
    length = LENGTH.search(data, 0, end + 2)
    return end + 4 + (int(length[1]) if length else 0)
