"""Base of a downstream connection: what exchanges and the proxy use of it, error responses, back-pressure, and abort.

The protocols are in `downstream/connection.py` and `downstream/http2/`. This is a base class and not a
`typing.Protocol`, because mypyc compiles calls of its methods to calls through a table.

Reading may be paused for several reasons at a time; it resumes when the last of them is gone.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from balancer.errors import CLIENT_LEFT, ConnectionCut, ForwardingError
from balancer.exchange.buffering import Charge
from balancer.exchange.tunnel import reset
from balancer.http.h1.own_responses import error_response

if TYPE_CHECKING:
    from balancer.exchange.client_usage import ClientUsage
    from balancer.exchange.pending_upgrade import PendingUpgrade
    from balancer.exchange.proxy import Proxy
    from balancer.http.grpc.call import GrpcCall
    from balancer.http.h1.client import Client
    from balancer.http.h1.response_head import Response

HELD_BY_BODY: Final = 1
"""The body buffer of the request being received is full."""

HELD_BY_PIPELINE: Final = 2
"""Pipelined requests wait for earlier responses."""

HELD_BY_UPGRADE: Final = 4
"""A pending upgrade has not been answered."""

HELD_BY_TURN: Final = 8
"""Expensive input waits for its turn (`turns.py`)."""

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
"""Interim response that every client of HTTP/1.1 skips, also one that does not expect it (RFC 9110 § 15.2)."""


class ClientConnection(asyncio.Protocol):
    """A downstream connection.

    `is_held` holds the reasons why reading is paused, 0 if there is none. `is_write_paused`: the transport's write
    buffer is above its high-water mark. `has_ended`: the client has sent its FIN while a request was unanswered: it
    has closed, or has half-closed and still reads; false again once it was asked. `head_at` is the instant of a
    head's first byte if the head came in pieces, else 0; `came_at` the arrival of the pipelined bytes being parsed,
    else 0; `idle_since` the last instant at which something was received or a response ended. `charge` is set while
    more of a response is kept for the client than the write buffer's high-water mark (`buffering.py`). `is_stream`: it
    is a `ClientStream`. `call` is set while its request is an RPC of gRPC. `ends_late`: the client has sent its FIN
    behind input that waits for its turn.

    A stream belongs to its connection, so `apply` and `close_if_idle` are not called for it; a connection of HTTP/2 has
    no exchange itself, so `exchange_ended` is not called for it.
    """

    __slots__ = (
        "_proxy",
        "call",
        "came_at",
        "charge",
        "client",
        "cut_by",
        "ends_late",
        "has_ended",
        "head_at",
        "idle_since",
        "is_held",
        "is_stream",
        "is_write_paused",
        "pending_upgrade",
        "transport",
        "usage",
        "write",
    )

    client: Client
    usage: ClientUsage
    """Record of the client, which all its connections share."""

    transport: asyncio.Transport
    write: Callable[[bytes], None]
    """Write to the client: the transport's own method, to save a call."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self.is_held = 0
        self.is_write_paused = self.has_ended = self.is_stream = self.ends_late = False
        self.head_at = self.came_at = 0.0
        self.idle_since = proxy.now()
        self.pending_upgrade: PendingUpgrade | None = None
        self.charge: Charge | None = None
        self.cut_by: ConnectionCut = CLIENT_LEFT
        self.call: GrpcCall | None = None

    @property
    @abstractmethod
    def answering(self) -> int:
        """Number of requests that are being answered."""

    @abstractmethod
    def check(self, now: float) -> None:
        """Enforce the timeouts of the client and of its exchange; `now` is the cached time."""

    def apply(self) -> None:
        """Apply a new runtime configuration to the requests that begin from now on."""
        raise NotImplementedError

    def close_if_idle(self, now: float, longer_than: float) -> bool:
        """Close the connection if it has been idle for more than `longer_than` seconds. Returns whether it was
        closed."""
        raise NotImplementedError

    def end_late_head(self, now: float, longer_than: float) -> bool:
        """Refuse a head that is not whole `longer_than` seconds after its first byte. Returns whether one was."""
        return False

    def exchange_ended(self, stays: bool) -> None:
        """Continue after a response was sent in full: next request, lingering close, or close."""
        raise NotImplementedError

    def count_error(self, error: ForwardingError) -> None:
        """Count an error response that is sent for no proxy but the one of the connection."""
        self._proxy.counts.count_error(error)
        self._proxy.counts.responses[error.status] += 1

    def write_error(
        self,
        error: ForwardingError,
        request_id: bytes,
        *,
        stays: bool,
        is_head: bool,
        field: str | None = None,
    ) -> None:
        """Send an error response; `stays`: the connection is kept alive, `is_head`: the request was HEAD, `field`: an
        additional field line."""
        self.respond(error_response(error, request_id, stays=stays, is_head=is_head, field=field))

    def respond(self, response: bytes) -> None:
        """Send a whole response of the balancer's own, in HTTP/1.1."""
        self.transport.write(response)

    def begin_tunnel(self, response: Response, fields: bytes, early: bytes) -> None:
        """Send the head of the response that begins a tunnel, and the bytes that followed it."""
        self.transport.write(response.line + fields + b"\r\n" + early)

    def send_continue(self) -> None:
        """Send 100 (Continue)."""
        self.respond(CONTINUE)

    def ask(self) -> None:
        """Find out whether a client that has sent its FIN still reads: a closed one answers an interim response with a
        reset, which the next sweep finds."""
        self.has_ended = False
        self.send_continue()

    @property
    def unsent(self) -> int:
        """Bytes that were written and that the client has not taken."""
        return self.transport.get_write_buffer_size()

    def uncharge(self, unsent: int = 0) -> None:
        """Give back the charge for a response, except for the bytes that are still `unsent`."""
        charge = self.charge
        if charge is None:
            return
        if unsent < charge.size:
            charge.resize(unsent)
        if not unsent:
            self.charge = None

    def hold(self, reason: int = HELD_BY_BODY) -> None:
        """Pause reading, and record `reason` until `unhold` removes it."""
        if not self.is_held and not self.transport.is_closing():
            self.transport.pause_reading()
        self.is_held |= reason

    def unhold(self, reason: int = HELD_BY_BODY) -> None:
        """Remove `reason`; reading resumes if it was the last."""
        was_held, self.is_held = self.is_held, self.is_held & ~reason
        if was_held and not self.is_held and not self.transport.is_closing():
            self.idle_since = self._proxy.now()  # while it was held, it could send nothing
            self.transport.resume_reading()

    def wait_turn(self) -> None:
        """Read nothing more until the input that has been read had its turns."""
        self.hold(HELD_BY_TURN)
        self._proxy.turns.wait(self)

    def take_turn(self, steps: int) -> int:
        """Take input that waits until it has cost `steps`, and wait again if there is more. Returns what it cost."""
        raise NotImplementedError

    def end_turns(self) -> None:
        """Read again, after all input has been taken; the client's FIN was behind it."""
        self.unhold(HELD_BY_TURN)
        if self.ends_late:
            self.ends_late = False
            protocol = cast(asyncio.Protocol, self.transport.get_protocol())  # another one after `detach`
            if not protocol.eof_received():
                self.transport.close()

    def abort(self, error: ConnectionCut | None = None) -> None:
        """Close the connection by RST, so that the client sees a truncated response: a FIN may be the regular end of a
        body. `error` is why the requests being answered end; None if they have ended, or end because the client left.
        """
        if error is not None:
            self.cut_by = error
        reset(self.transport)
