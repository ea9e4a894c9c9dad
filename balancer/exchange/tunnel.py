"""Two connections as one pipe of bytes, after an upgrade (RFC 9110 § 7.8) or CONNECT (§ 9.3.6).

Rule of this file: bytes are opaque here, so nothing can be put in between, not even a farewell. What comes in on one
side goes out on the other, and no faster than that takes it; an end is passed on as an end, a reset as a reset. A
connection that was one side of a tunnel is never used for anything else.

    client ── Relay ── Tunnel ── Relay ── worker
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from balancer.http1.fields import without
from balancer.http1.response_head import Response
from balancer.upstream.bounded_reader import READ, BoundedReader, bounded, next_size

if TYPE_CHECKING:
    from balancer.downstream.connection import DownstreamConnection
    from balancer.downstream.pending_upgrade import PendingUpgrade
    from balancer.upstream.connection import UpstreamConnection

RESET_AT_CLOSE = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
"""A `struct linger` of no time at all."""


def reset(transport: asyncio.Transport) -> None:
    """End a connection by RST: the peer must not take it for an end in good order.

    One that is closing and has nothing left to send has come to such an end.
    """
    sock = transport.get_extra_info("socket")
    if sock is not None and (not transport.is_closing() or transport.get_write_buffer_size()):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
    transport.abort()


class Relay(asyncio.Protocol):
    """One side of a tunnel. `passed` counts the bytes that came in here, `has_ended`: no more will come.

    `owner` was the connection's protocol before; it still hears of the connection's end, and keeps its accounts.
    """

    __slots__ = ("_owner", "_tunnel", "has_ended", "passed", "reader", "transport")

    reader: BoundedReader

    def __init__(self, tunnel: Tunnel, owner: DownstreamConnection | UpstreamConnection) -> None:
        self._tunnel = tunnel
        self._owner = owner
        self.transport = owner.transport
        self.passed = 0
        self.has_ended = False

    def data_received(self, data: bytes) -> None:
        self.passed += len(data)
        self._tunnel.pass_on(self, data)

    def eof_received(self) -> bool:
        if not self.has_ended:
            self.has_ended = True
            self._tunnel.half_closed(self)
        return self.transport.can_write_eof()

    def pause_writing(self) -> None:
        self._tunnel.pause(self)

    def resume_writing(self) -> None:
        self._tunnel.resume(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._owner.connection_lost(error)
        self._tunnel.lost(self, error)


class Tunnel:
    """A client's and a worker's connection; `on_end` is called once, when both are gone, with the bytes that passed
    from and to the client."""

    def __init__(
        self,
        tunnels: Tunnels,
        offer: PendingUpgrade,
        upstream: UpstreamConnection,
        on_end: Callable[[int, int], None],
    ) -> None:
        self._tunnels = tunnels
        self._offer = offer
        self._downstream = offer.downstream
        self._upstream = upstream
        self._on_end = on_end
        self._client = Relay(self, self._downstream)
        self._worker = Relay(self, upstream)
        self._active_at = tunnels.cached_time
        self._is_closing = False
        self._seen_unsent = (-1, -1)
        self._left = 2

    def begin(self, response: Response) -> None:
        """Let through the head that began it, what came behind it, and what came behind the request."""
        downstream, early = self._downstream, self._upstream.detach()
        self._tunnels.add(self)
        for side in (self._client, self._worker):
            side.transport.set_protocol(side)
            side.reader = bounded(side.transport, side)
        if downstream.is_write_paused:
            downstream.is_write_paused = False  # how long a client may not read is the tunnel's to say now
            self.pause(self._client)
        self._worker.passed += len(early)
        self._client.transport.write(
            response.line + without([b"content-length"], response.block) + b"\r\n" + early
        )
        if self._offer.early:
            self._client.data_received(self._offer.early)
        if self._offer.has_ended:
            self._client.eof_received()
        self._offer.release()

    @property
    def bytes_in(self) -> int:
        """From the client, so far."""
        return self._client.passed

    @property
    def bytes_out(self) -> int:
        """To the client, so far."""
        return self._worker.passed

    @property
    def unsent(self) -> tuple[int, int]:
        """Bytes that wait here for the client and for the worker."""
        return self._client.transport.get_write_buffer_size(), self._worker.transport.get_write_buffer_size()

    # --- flow

    def _other(self, side: Relay) -> Relay:
        return self._worker if side is self._client else self._client

    def pass_on(self, side: Relay, data: bytes) -> None:
        """`data` came in at `side`."""
        self._active_at = self._tunnels.cached_time
        transport = self._other(side).transport
        transport.write(data)
        if len(data) >= READ:
            side.reader.size = next_size(side.reader.size, transport)

    def pause(self, side: Relay) -> None:
        """`side` cannot keep up: let the other wait."""
        if side is self._client:
            self._upstream.pause_reading()
        else:
            self._downstream.hold()

    def resume(self, side: Relay) -> None:
        """`side` has caught up. Who has ended is not read again."""
        self._active_at = self._tunnels.cached_time
        if self._other(side).has_ended:
            return
        if side is self._client:
            self._upstream.resume_reading()
        else:
            self._downstream.unhold()

    # --- ends

    def half_closed(self, side: Relay) -> None:
        """`side` sends no more. The other may go on, if its transport knows half an end; TLS does not."""
        other = self._other(side)
        if other.has_ended or not other.transport.can_write_eof():
            self.close()
        elif not other.transport.is_closing():
            other.transport.write_eof()

    def lost(self, side: Relay, error: Exception | None) -> None:
        """`side` is gone: after a reset, reset the other; else close it when it has what is on its way. Who had ended
        has said all: a reset behind that only says that it did not listen."""
        self._left -= 1
        if not self._left:
            self._tunnels.remove(self)
            self._on_end(self.bytes_in, self.bytes_out)
        elif error is not None and not side.has_ended:
            reset(self._other(side).transport)
        else:
            self.close()

    def close(self) -> None:
        """Close both sides; what they have been sent still goes out."""
        if not self._is_closing:
            self._is_closing = True
            self._active_at = self._tunnels.cached_time
        self._client.transport.close()
        self._worker.transport.close()

    def abort(self) -> None:
        """Close both sides now."""
        self._client.transport.abort()
        self._worker.transport.abort()

    def check(self, now: float, idle: float, stall: float) -> None:
        """The sweep: close what has been idle, and do not wait for ever for it to be closed."""
        quiet = now - self._active_at
        if not self._is_closing:
            if quiet > idle:
                self.close()
        elif quiet > stall:
            if self._seen_unsent == self.unsent:
                self.abort()
            self._seen_unsent, self._active_at = self.unsent, now


class Tunnels:
    """All that are open, and what has passed through all that were.

    Durations in seconds: `idle` without a byte either way ends a tunnel, `stall` without progress ends its closing.
    """

    def __init__(self, now: float, idle: float, stall: float) -> None:
        self.cached_time = now
        self.idle = idle
        self.stall = stall
        self._open: dict[Tunnel, None] = {}  # in order of beginning
        self._bytes_in = self._bytes_out = 0
        self.opened = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Tunnel]:
        return iter(list(self._open))

    def add(self, tunnel: Tunnel) -> None:
        """It begins."""
        self._open[tunnel] = None
        self.opened += 1

    def remove(self, tunnel: Tunnel) -> None:
        """It is over."""
        self._open.pop(tunnel, None)
        self._bytes_in += tunnel.bytes_in
        self._bytes_out += tunnel.bytes_out

    @property
    def bytes_in(self) -> int:
        """From clients, since the start."""
        return self._bytes_in + sum(tunnel.bytes_in for tunnel in self)

    @property
    def bytes_out(self) -> int:
        """To clients, since the start."""
        return self._bytes_out + sum(tunnel.bytes_out for tunnel in self)

    def check(self, now: float) -> None:
        """Look at every deadline."""
        self.cached_time = now
        for tunnel in self:
            tunnel.check(now, self.idle, self.stall)

    def abort(self) -> None:
        """Close all of them now."""
        for tunnel in self:
            tunnel.abort()
