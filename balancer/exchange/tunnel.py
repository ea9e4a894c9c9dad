"""Tunnel: relay bytes between two connections after an upgrade (RFC 9110 § 7.8) or CONNECT (§ 9.3.6).

Bytes are opaque, so nothing can be inserted, not even a closing message. Data passes at the pace of the slower side; a
FIN is passed on as a FIN, a reset as a reset. The connections are not reused afterwards.

    client ── Relay ── Tunnel ── Relay ── worker
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from balancer.clients.client_usage import HELD_BY_UPGRADE
from balancer.cluster.cluster import Tunnels
from balancer.config.schema.limits import READ
from balancer.errors import TUNNEL_CUT, ConnectionCut, Http2Error, TunnelBroken, TunnelIdle
from balancer.exchange.responder import Responder, reset
from balancer.http.h1.fields import without
from balancer.http.h1.response_head import Response
from balancer.upstream.bounded_reader import BoundedReader, bounded
from balancer.upstream.http1.connection import UpstreamConnection
from balancer.upstream.request import UpstreamRequest, next_size


class PendingUpgrade(asyncio.Protocol):
    """Protocol of a connection with a pending upgrade.

    Until the worker answers the upgrade offer, it is unknown whether the bytes behind such a request are the other
    protocol's or HTTP. They are kept, and reading pauses: one read at most, or the window of a stream. After a declined
    offer, the connection goes on with what came; after an accepted one, a `Relay` passes it on.

    `early` holds the bytes that followed the request; `has_ended`: the client has sent its FIN.
    """

    __slots__ = ("_resume", "downstream", "early", "has_ended")

    def __init__(self, downstream: Responder, resume: Callable[[bytes], None] | None, early: bytes) -> None:
        """`resume` resumes HTTP after a declined offer with the data that followed it; None for a stream, which has no
        further requests."""
        self._resume = resume
        self.downstream = downstream
        self.early = b""
        self.has_ended = False
        downstream.transport.set_protocol(self)
        if early:
            self.data_received(early)

    def take_over(self, rest: bytes, has_ended: bool) -> None:
        """Take over pipelined data that was not parsed: it may belong to either protocol."""
        if rest:
            self.data_received(rest)
        self.has_ended = has_ended

    def withdraw(self, stays: bool) -> bool:
        """End the pending upgrade after an HTTP response. Returns whether the connection stays open (`stays`)."""
        self.downstream.pending_upgrade = None
        if stays:
            # Deferred: offers declined at once would nest as deep as the client pipelines.
            asyncio.get_running_loop().call_soon(self._go_on)
        else:
            self.downstream.transport.set_protocol(self.downstream)
        return stays

    def release(self) -> None:
        """Discard the kept bytes and resume reading."""
        self.early = b""
        self.downstream.unhold(HELD_BY_UPGRADE)

    def _go_on(self) -> None:
        downstream, early = self.downstream, self.early
        if self._resume is None or downstream.transport.is_closing():
            return
        downstream.transport.set_protocol(downstream)
        self._resume(early)
        self.release()
        if self.has_ended and not downstream.eof_received():
            downstream.transport.close()

    # --- asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        self.early += data
        self.downstream.hold(HELD_BY_UPGRADE)

    def eof_received(self) -> bool:
        self.has_ended = True
        return True

    def pause_writing(self) -> None:
        self.downstream.pause_writing()

    def resume_writing(self) -> None:
        self.downstream.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self.downstream.connection_lost(error)


class Relay(asyncio.Protocol):
    """One side of a tunnel. `passed` counts the bytes received here; `has_ended`: the peer has sent its FIN.

    `owner` is the protocol that the connection had before; it is notified when the connection closes, for its
    accounting.
    """

    __slots__ = ("_owner", "_tunnel", "has_ended", "passed", "reader", "transport")
    __deletable__ = ("_tunnel", "reader")  # for mypyc

    reader: BoundedReader

    def __init__(self, tunnel: Tunnel, owner: Responder | UpstreamConnection) -> None:
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
        del self._tunnel, self.reader  # which refer to this


class Tunnel:
    """A client's and a worker's connection, relayed.

    `on_end` is called once when both are closed, with the bytes received from and sent to the client, and why the
    balancer has closed them; None if client or worker has.
    """

    def __init__(
        self,
        tunnels: Tunnels,
        pending_upgrade: PendingUpgrade,
        upstream: UpstreamRequest,
        on_end: Callable[[int, int, ConnectionCut | None], None],
    ) -> None:
        self._tunnels = tunnels
        self._pending_upgrade = pending_upgrade
        self._downstream = pending_upgrade.downstream
        # Only an HTTP/1.1 connection switches protocols: an upstream stream refuses a 101 response.
        self._upstream = cast(UpstreamConnection, upstream)
        self._on_end = on_end
        self._client = Relay(self, self._downstream)
        self._worker = Relay(self, self._upstream)
        self._active_at = tunnels.now()
        self._is_closing = False
        self._cut_by: ConnectionCut | None = None
        self._seen_unsent = (-1, -1)
        self._left = 2

    def begin(self, response: Response, fields: bytes) -> None:
        """Send the response head with `fields` to the client, then what followed the response and the request."""
        downstream, early = self._downstream, self._upstream.detach()
        self._tunnels.add(self)
        for side in (self._client, self._worker):
            side.transport.set_protocol(side)
            side.reader = bounded(side.transport, side)
        if downstream.is_write_paused:
            downstream.is_write_paused = False  # the tunnel bounds a stalled client from now on
            self.pause(self._client)
        self._worker.passed += len(early)
        downstream.begin_tunnel(response, without([b"content-length"], fields), early)
        if self._pending_upgrade.early:
            self._client.data_received(self._pending_upgrade.early)
        if self._pending_upgrade.has_ended:
            self._client.eof_received()
        self._pending_upgrade.release()

    @property
    def bytes_in(self) -> int:
        """Bytes received from the client so far."""
        return self._client.passed

    @property
    def bytes_out(self) -> int:
        """Bytes received from the worker so far."""
        return self._worker.passed

    @property
    def unsent(self) -> tuple[int, int]:
        """Bytes buffered for the client and for the worker."""
        return self._client.transport.get_write_buffer_size(), self._worker.transport.get_write_buffer_size()

    # --- flow

    def _other(self, side: Relay) -> Relay:
        return self._worker if side is self._client else self._client

    def pass_on(self, side: Relay, data: bytes) -> None:
        """Write data received at `side` to the other side."""
        self._active_at = self._tunnels.now()
        transport = self._other(side).transport
        transport.write(data)
        if len(data) >= READ:
            side.reader.size = next_size(side.reader.size, transport.get_write_buffer_size())

    def pause(self, side: Relay) -> None:
        """Apply back-pressure of `side`: stop reading from the other side."""
        if side is self._client:
            self._upstream.pause_reading()
        else:
            self._downstream.hold()

    def resume(self, side: Relay) -> None:
        """Resume reading from the other side, unless that has ended."""
        self._active_at = self._tunnels.now()
        if self._other(side).has_ended:
            return
        if side is self._client:
            self._upstream.resume_reading()
        else:
            self._downstream.unhold()

    # --- ends

    def half_closed(self, side: Relay) -> None:
        """Pass on a FIN of `side` as a half-close, or close both if the transport supports none (TLS)."""
        other = self._other(side)
        if other.has_ended or not other.transport.can_write_eof():
            self.close()
        elif not other.transport.is_closing():
            other.transport.write_eof()

    def lost(self, side: Relay, error: Exception | None) -> None:
        """Handle the loss of `side`: reset the other side after a reset, else close it once its buffer is sent.

        A reset after the side's FIN does not count: all its data has come.
        """
        self._left -= 1
        cut = self._downstream.cut_by
        if self._cut_by is None and isinstance(cut, Http2Error):
            self._cut_by = TunnelBroken(str(cut))
        if not self._left:
            self._tunnels.remove(self)
            self._on_end(self.bytes_in, self.bytes_out, self._cut_by)
        elif error is not None and not side.has_ended:
            reset(self._other(side).transport)
        else:
            self.close()

    def close(self) -> None:
        """Close both sides after sending what is buffered."""
        if not self._is_closing:
            self._is_closing = True
            self._active_at = self._tunnels.now()
        self._client.transport.close()
        self._worker.transport.close()

    def abort(self) -> None:
        """Close both sides at once and discard what is buffered."""
        if not self._is_closing:
            self._cut_by = TUNNEL_CUT
        self._client.transport.abort()
        self._worker.transport.abort()

    def check(self, now: float, idle: float, stall: float) -> None:
        """Close a tunnel idle for `idle` seconds; abort one whose closing makes no progress for `stall` seconds."""
        quiet = now - self._active_at
        if not self._is_closing:
            if quiet > idle:
                self._cut_by = TunnelIdle(idle)
                self.close()
        elif quiet > stall:
            if self._seen_unsent == self.unsent:
                self.abort()
            self._seen_unsent, self._active_at = self.unsent, now
