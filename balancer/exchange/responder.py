"""Responder: what sends the response of an exchange to its client, in the client's protocol.

A connection in HTTP/1.1 is one, and each stream of a connection in HTTP/2 is one. It is the mirror image of
`UpstreamRequest`: an exchange gives it heads as a worker sent them, and bodies without framing. `ClientSide` is what it
has in common with a connection in HTTP/2: back-pressure and abort. Reading may be paused for several reasons at a time;
it resumes when the last of them is gone.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from abc import abstractmethod
from typing import TYPE_CHECKING, Final, Protocol, cast

from balancer.clients.client_usage import HELD_BY_BODY, Charge, ClientUsage
from balancer.cluster.cluster import Cluster
from balancer.errors import CLIENT_LEFT, ConnectionCut, ForwardingError
from balancer.http.grpc.call import GrpcCall
from balancer.http.h1.client import Client
from balancer.http.h1.own_responses import ErrorAnswer
from balancer.http.h1.request_head import Request
from balancer.http.h1.response_head import Response
from balancer.syntax.networks import ends_of

if TYPE_CHECKING:
    from balancer.exchange.tunnel import PendingUpgrade


_LEFT: Final = CLIENT_LEFT  # of a compiled module, so no look-up

RESET_AT_CLOSE = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
"""A `struct linger` with a timeout of zero: closing sends RST."""


def reset(transport: asyncio.Transport) -> None:
    """Close a connection by RST, so that the peer does not take it for an orderly end.

    A transport that is closing and has nothing left to send has already ended in order; it is only aborted.
    """
    sock = transport.get_extra_info("socket")
    if sock is not None and (not transport.is_closing() or transport.get_write_buffer_size()):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
    transport.abort()


class ClientSide(asyncio.Protocol):
    """Base of connections and streams: back-pressure and abort. It is a class and not a `typing.Protocol`, because
    mypyc compiles calls of its methods to calls through a table."""

    __slots__ = (
        "_cluster",
        "_process",
        "accepted_from",
        "client",
        "cut_by",
        "ended_at",
        "idle_since",
        "is_held",
        "is_write_paused",
        "transport",
        "usage",
    )

    client: Client
    usage: ClientUsage
    """Record of the client, which all its connections share."""

    transport: asyncio.Transport

    def __init__(self, cluster: Cluster, now: float) -> None:
        self._cluster = cluster
        self._process = cluster.process
        self.accepted_from = "unknown"  # the address at the accept
        self.is_held = 0  # the reasons why reading is paused
        self.is_write_paused = False  # the transport's write buffer is above its high-water mark
        self.idle_since = now  # the last instant at which something was received or a response ended
        self.cut_by: ConnectionCut = _LEFT
        self.ended_at = 0.0  # when the client's FIN came while a request was unanswered, 0 before

    def begin(self, transport: asyncio.BaseTransport, version: bytes) -> None:
        """Take the transport of a connection that speaks this version of HTTP; set what is known of its client."""
        cluster, self.transport = self._cluster, cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=cluster.limits.high_water)
        tls = transport.get_extra_info("ssl_object")
        proto, tls_version = (b"http", "") if tls is None else (b"https", tls.version() or "")
        certificate = transport.get_extra_info("certificate_fields")
        self.client = cluster.client_of(
            *ends_of(transport, self.accepted_from), proto, version, tls_version, certificate
        )

    def apply(self) -> None:
        """Apply a new runtime configuration to the requests that begin from now on."""
        cluster, old = self._cluster, self.client
        self.client = cluster.client_of(
            old.address, old.authority, old.proto, old.version, old.tls_version, old.certificate
        )
        if not self.transport.is_closing():
            self.transport.set_write_buffer_limits(high=cluster.limits.high_water)

    @abstractmethod
    def check(self, now: float) -> None:
        """Enforce the timeouts of the client and of its exchange; `now` is the cached time."""

    @property
    def unsent(self) -> int:
        """Bytes that were written and that the client has not taken."""
        return self.transport.get_write_buffer_size()

    def hold(self, reason: int = HELD_BY_BODY) -> None:
        """Pause reading, and record `reason` until `unhold` removes it."""
        if not self.is_held and not self.transport.is_closing():
            self.transport.pause_reading()
        self.is_held |= reason

    def unhold(self, reason: int = HELD_BY_BODY) -> None:
        """Remove `reason`; reading resumes if it was the last."""
        was_held, self.is_held = self.is_held, self.is_held & ~reason
        if was_held and not self.is_held and not self.transport.is_closing():
            self.idle_since = self._cluster.now()  # while it was held, it could send nothing
            self.transport.resume_reading()

    def abort(self, error: ConnectionCut | None = None) -> None:
        """Close the connection by RST, which discards what the client has not read. `error` is why the requests being
        answered end; None if they have ended, or end because the client left.
        """
        if error is not None:
            self.cut_by = error
        reset(self.transport)


CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
"""Interim response that every client of HTTP/1.1 skips, also one that does not expect it (RFC 9110 § 15.2)."""


class RequestHandler(Protocol):
    """Handler of one request: it answers on its stream, or on its connection after the requests before it.

    It is a forwarded request (`exchange/exchange.py`), an admin request (`control/admin/exchange.py`) or one that is
    answered without a worker (`routes/own_response.py`). `head` is the request head, as far as it has come."""

    @property
    def head(self) -> bytes: ...
    def start(self) -> None: ...
    def request_body(self, data: bytes) -> None: ...
    def request_ended(self, trailers: bytes) -> None: ...
    def pause_response(self) -> None: ...
    def resume_response(self) -> None: ...
    def abandon(self, error: ConnectionCut) -> None: ...
    def reject(self, error: ForwardingError) -> None: ...
    def check(self, now: float) -> None: ...


class Responder(ClientSide):
    """The client of one exchange at a time; abstract."""

    __slots__ = (
        "call",
        "charge",
        "has_ended",
        "is_stream",
        "pending_upgrade",
    )

    def __init__(self, cluster: Cluster, now: float) -> None:
        super().__init__(cluster, now)
        self.is_stream = False  # of HTTP/2, with a window of its own
        self.call: GrpcCall | None = None  # while the request is an RPC of gRPC
        self.pending_upgrade: PendingUpgrade | None = None
        # More of a response is kept for the client than the write buffer's high-water mark (`buffering.py`).
        self.charge: Charge | None = None
        # The client has sent its FIN while a request was unanswered: it has closed, or has half-closed and still
        # reads. False again once it was asked.
        self.has_ended = False

    @property
    def arrived(self) -> tuple[float, float]:
        """When the first byte of the request's head came, 0 if the head came in one piece, and when all of it had."""
        return 0.0, self._cluster.now()

    # --- the response of a worker

    @property
    def is_crowded(self) -> bool:
        """Whether so many streams are open beside it that already the first read of a response is short."""
        return False

    @property
    @abstractmethod
    def first_read_size(self) -> int:
        """Bytes per read from a worker whose response begins."""

    @abstractmethod
    def respond_whole(
        self, request: Request, response: Response, fields: bytes, body: bytes, is_complete: bool
    ) -> bool:
        """Send a final response with the block `fields` and the whole body; `is_complete`: the request has come whole.
        Returns whether the connection stays."""

    @abstractmethod
    def begin_response(self, request: Request, response: Response, fields: bytes, is_complete: bool) -> bool:
        """Take the head of a final response with the block `fields`, which is sent with what follows; `is_complete` as
        above. Returns whether the connection stays after the response."""

    @abstractmethod
    def send_part(self, pieces: list[bytes]) -> int:
        """Send pieces of the body, the head before the first. Returns the bytes of the next read from the worker: more,
        the sooner the client takes them."""

    def send_chunks(self, framed: bytes) -> int:
        """Send whole chunks of the body as `send_part` does, if the client gets chunks; 0: nothing was sent."""
        return 0

    @abstractmethod
    def end_response(self, pieces: list[bytes], trailers: bytes) -> None:
        """Send the last pieces of the body and its trailers, a block of fields or b""."""

    @abstractmethod
    def cut(self, pieces: list[bytes]) -> None:
        """End a response that breaks off with these last pieces of its body, so that the client gets all that came of
        it and sees that it is incomplete."""

    @abstractmethod
    def send_interim(self, response: Response, fields: bytes) -> None:
        """Send the head of an interim response (1xx) with the block `fields`."""

    def accepts_switch(self, request: Request, response: Response) -> bool:
        """Return whether the worker's answer to an upgrade offer is one."""
        return True

    @abstractmethod
    def begin_tunnel(self, response: Response, fields: bytes, early: bytes) -> None:
        """Send the head of the response that begins a tunnel, and the bytes that followed it."""

    @abstractmethod
    def hand_over(self, handler: RequestHandler) -> None:
        """Let another handler answer the request that is being answered."""

    @abstractmethod
    def exchange_ended(self, stays: bool, now: float = 0.0) -> None:
        """Continue after a response was sent in full: next request, lingering close, or close. `now` is the instant, 0
        if it has to be read."""

    # --- responses of the balancer

    def count_error(self, error: ForwardingError) -> None:
        """Count an error response that is sent for no cluster but the one of the connection."""
        self._cluster.counts.count_error(error)
        self._cluster.counts.responses[error.status] += 1

    def write_error(self, answer: ErrorAnswer) -> None:
        self.respond(answer.response(self._process.error_bodies, self._process.date_line))

    @abstractmethod
    def respond(self, response: bytes) -> int:
        """Send a whole response of the balancer's own, which is written in HTTP/1.1. Returns the status sent."""

    def send_continue(self) -> None:
        self.respond(CONTINUE)

    def ask(self) -> None:
        """Find out whether a client that has sent its FIN still reads: a closed one answers an interim response with a
        reset."""
        self.has_ended = False
        self._process.look_soon()
        self.send_continue()

    # --- what the client has not taken

    def uncharge(self, unsent: int = 0) -> None:
        """Give back the charge for a response, except for the bytes that are still `unsent`."""
        charge = self.charge
        if charge is None:
            return
        if unsent < charge.size:
            charge.resize(unsent)
        if not unsent:
            self.charge = None
