"""Bytes from a client: request events, turns in order, and the end of the connection.

Rule of this file: each request becomes a turn, and turns are answered in the order in which they came, however
many a client sends ahead (RFC 9112 § 9.3.2). Reading stops while a turn waits for its predecessor, so what a
client can make us hold is one read. Whatever is not HTTP is answered once, and the connection closed.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import httptools

from balancer.answers import error_response
from balancer.body import BodyBounds
from balancer.control import ControlTurn
from balancer.errors import ForwardingError, RequestRejected
from balancer.exchange import Exchange
from balancer.heads import END_OF_HEAD, Client, field, framing_alone, outgoing_request
from balancer.turn import Refusal, Turn

if TYPE_CHECKING:
    from balancer.control import ControlPlane
    from balancer.unit import Unit

CONTROL_PREFIX = b"/-/"

WRITE_HIGH_WATER = 65536
"""Bytes that may wait for a slow client before the worker is made to wait too."""

HELD_BY_TURN, HELD_BY_ORDER = 1, 2

NOT_FOUND = -1 + len(END_OF_HEAD)
"""Where a head ends whose end has not come."""

RESET_AT_CLOSE = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
"""A `struct linger` of no time at all."""


class Notes:
    """What llhttp calls. `on_message_complete` empties a list: a builtin, because a Python function called from C costs
    a frame, and most requests need no more than a look whether their end has come."""

    __slots__ = ("on_body", "on_message_complete")

    def __init__(self, on_body: Callable[[bytes], None], unended: list[bool]) -> None:
        self.on_body = on_body
        self.on_message_complete = unended.clear


class Downstream(asyncio.Protocol):
    """One client connection."""

    __slots__ = (
        "_answering",
        "_bounds",
        "_client",
        "_control",
        "_head",
        "_linger_until",
        "_parser",
        "_pending",
        "_receiving",
        "_stays",
        "_unended",
        "_unit",
        "_unsent",
        "is_held",
        "is_write_paused",
        "quiet_since",
        "transport",
        "write",
    )

    _bounds: BodyBounds
    transport: asyncio.Transport
    write: Callable[[bytes], None]
    """Send bytes to the client: the transport's own method, to save a call."""

    def __init__(self, unit: Unit, control: ControlPlane) -> None:
        self._unit = unit
        self._control = control
        self._unended: list[bool] = []  # holds something while a request's head has come and its end has not
        self._parser: httptools.HttpRequestParser | None = self._new_parser()
        self._head = b""  # of the request that is coming, as far as it has come
        self._stays = True  # the client wants to send more after that request
        self._unsent = 0
        self._receiving: Turn | None = None
        self._answering: Turn | None = None
        self._pending: deque[Turn] = deque()
        self.is_held = 0
        self.quiet_since = unit.coarse_now
        self._linger_until: float | None = None
        self.is_write_paused = False

    def _new_parser(self) -> httptools.HttpRequestParser:
        return httptools.HttpRequestParser(Notes(self._on_body, self._unended))

    @property
    def is_answering(self) -> bool:
        """Whether a request is on its way."""
        return self._answering is not None

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.write = self.transport.write
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        address = str(peer[0]) if peer else "unknown"
        authority = f"{own[0]}:{own[1]}" if own else "localhost"
        self._client = Client(address.encode(), authority.encode(), b"http", self._unit.trusts(address))
        self._unit.counts.connections += 1
        self._unit.downstreams.add(self)

    def data_received(self, data: bytes) -> None:
        try:
            while data and self._parser is not None:  # without one we linger: what comes is dropped
                data = self._feed_body(data) if self._unended else self._feed_head(data)
        except httptools.HttpParserError as error:
            self._malformed(error)

    def _feed_head(self, data: bytes) -> bytes:
        """Let llhttp judge a head, and no more, so that we know its bytes; returns what follows it."""
        head = self._head + data if self._head else data
        end = head.find(END_OF_HEAD) + len(END_OF_HEAD)
        if end == len(head) != NOT_FOUND and head is data:  # the usual read: one head, and nothing else
            rest = b""
        elif head[0] in b"\r\n":  # RFC 9112 § 2.2: empty lines before a request are ignored
            return head.lstrip(b"\r\n")
        elif end == NOT_FOUND:
            self._head_grows(data, head)
            return b""
        else:
            data, rest, head = head[len(self._head) : end], head[end:], head[:end]
            self._head = b""
        self._unended.append(True)  # llhttp takes it out at once if there is no body
        try:
            self._parser.feed_data(data)  # type: ignore[union-attr]  # data_received has asked
        except httptools.HttpParserUpgrade:
            self._ignore_upgrade(head)
        except httptools.HttpParserError:
            self._unended.clear()  # it is a head that is malformed, not a body
            raise
        self._begin(head)
        return rest

    def _head_grows(self, data: bytes, head: bytes) -> None:
        """Not whole yet: judge what there is, and bound it in size and, from its first byte, in time."""
        if not self._head:
            self.quiet_since = self._unit.coarse_now
        self._head = head
        cast(httptools.HttpRequestParser, self._parser).feed_data(data)
        limit = self._unit.head_limit
        if len(head) > limit:
            self._refuse(RequestRejected(431, "head_too_large", f"at most {limit} bytes of head"))

    def _ignore_upgrade(self, head: bytes) -> None:
        """The request goes on without Upgrade (RFC 9110 § 7.8), so what follows its head is HTTP still.

        llhttp has skipped the body that some clients send with an offer of h2c (Java's does); a new parser that is
        told only of the framing reads it.
        """
        self._parser = self._new_parser()
        framing = framing_alone(head)
        if framing:
            self._unended.append(True)
            self._parser.feed_data(framing)

    def _feed_body(self, data: bytes) -> bytes:
        """Feed up to where this request may end; returns the rest."""
        size = self._bounds.feedable(data)
        cast(httptools.HttpRequestParser, self._parser).feed_data(data if size == len(data) else data[:size])
        if not self._unended:
            self._body_ended()
        return data[size:]

    def eof_received(self) -> bool:
        """A client may close its sending side and still read: answer what it asked, then close."""
        if self._answering is None or self._unended or self._linger_until is not None:
            return False
        self._parser = None
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self._unit.downstreams.discard(self)
        self._parser = None
        turn, self._answering = self._answering, None
        if turn is not None:
            turn.abandon()
        self._pending.clear()
        self._unit.client_left()

    def pause_writing(self) -> None:
        self.is_write_paused = True
        if self._answering is not None:
            self._answering.pause_response()

    def resume_writing(self) -> None:
        self.is_write_paused = False
        if self._answering is not None:
            self._answering.resume_response()

    def _on_body(self, data: bytes) -> None:
        self.quiet_since = self._unit.coarse_now
        if self._receiving is not None:
            self._receiving.request_body(data)

    def _body_ended(self) -> None:
        turn, self._receiving = self._receiving, None
        if turn is not None:
            self._parser = self._parser if self._stays else None
            turn.request_ended()

    # --- turns

    def _begin(self, head: bytes) -> None:
        """A whole head has come, and with it the whole request unless it is `_unended`."""
        unit = self._unit
        unit.counts.requests += 1
        try:
            request = outgoing_request(head, self._client, unit.fresh_id())
            if len(head) > unit.head_limit:
                raise RequestRejected(431, "head_too_large", f"at most {unit.head_limit} bytes of head")
        except RequestRejected as error:
            self._refuse(error, is_head=head.startswith(b"HEAD "))
            return
        has_body = bool(self._unended)
        turn: Turn
        if request.target.startswith(CONTROL_PREFIX):
            turn = ControlTurn(self, self._control, head, has_body)
        else:
            turn = Exchange(unit, self, request, has_body)
        if has_body:
            self._expect_body(turn, head, request.keep_alive)
        elif not request.keep_alive:
            self._parser = None
        if self._answering is None and not self._pending:
            self._answering = turn
            turn.start()
        else:
            self._queue(turn)

    def _expect_body(self, turn: Turn, head: bytes, stays: bool) -> None:
        self._receiving = turn
        self._stays = stays
        self._bounds = BodyBounds(int(field(head, b"content-length") or 0))

    def _queue(self, turn: Turn) -> None:
        """It came while another is being answered: read no further until that one is done."""
        self._pending.append(turn)
        self._hold(HELD_BY_ORDER)

    def turn_ended(self, stays: bool) -> None:
        """The turn in front has been answered in full."""
        self._answering = None
        self.quiet_since = self._unit.coarse_now
        if not stays or (self._parser is None and not self._pending):
            self._finish()
        elif self._pending:
            # Not at once: a turn that is answered on the spot would nest as deep as the client pipelines.
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        if self._answering is not None or not self._pending:
            return
        self._answering = self._pending.popleft()
        if not self._pending:
            self._release(HELD_BY_ORDER)
        self._answering.start()

    # --- flow

    def write_error(self, error: ForwardingError, request_id: bytes, *, stays: bool, is_head: bool) -> None:
        """Answer with an error of our own."""
        self.transport.write(error_response(error, request_id, stays=stays, is_head=is_head))

    def hold(self) -> None:
        """The turn that is being received has no room for more."""
        self._hold(HELD_BY_TURN)

    def unhold(self) -> None:
        """Undo `hold`."""
        self._release(HELD_BY_TURN)

    def _hold(self, reason: int) -> None:
        if not self.is_held and not self.transport.is_closing():
            self.transport.pause_reading()
        self.is_held |= reason

    def _release(self, reason: int) -> None:
        was_held, self.is_held = self.is_held, self.is_held & ~reason
        if was_held and not self.is_held and not self.transport.is_closing():
            self.transport.resume_reading()

    # --- ends

    def check(self, now: float) -> None:
        """The sweep: has the client, or the worker, had its time? `now` is coarse."""
        timeouts = self._unit.timeouts
        quiet = now - self.quiet_since
        if self._linger_until is not None:
            if now > self._linger_until:
                self.transport.abort()
        elif self.is_write_paused or self.transport.is_closing():
            self._check_reader(now, quiet)
        elif self._head and self._answering is None:
            if quiet > timeouts.head:
                self._refuse(
                    RequestRejected(408, "head_timeout", f"no whole head within {timeouts.head:g} s")
                )
        elif self._answering is None:
            if quiet > timeouts.keep_alive or self._unit.is_draining:
                self.transport.close()
        elif self._unended and not self.is_held and quiet > timeouts.request_idle:
            self._reject(RequestRejected(408, "body_timeout", f"no body for {timeouts.request_idle:g} s"))
        else:
            self._answering.check(now)

    def _check_reader(self, now: float, quiet: float) -> None:
        """A client that reads slowly is served slowly; one that takes nothing at all has its time."""
        unsent = self.transport.get_write_buffer_size()
        if unsent != self._unsent:
            self._unsent, self.quiet_since = unsent, now
        elif quiet > self._unit.timeouts.body_idle:
            self.abort()

    def close_if_quiet(self, now: float, longer_than: float) -> bool:
        """Give the descriptor to somebody who waits for one."""
        is_idle = self._answering is None and not self._head and self._linger_until is None
        if is_idle and now - self.quiet_since > longer_than:
            self.transport.close()
            return True
        return False

    def abort(self) -> None:
        """End it so that the client sees that something is missing: by RST, for a FIN may be how a body ends."""
        sock = self.transport.get_extra_info("socket")
        if sock is not None and not self.transport.is_closing():
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
        self.transport.abort()

    def detach(self) -> asyncio.Transport:
        """Hand the connection over to another protocol."""
        self._unit.downstreams.discard(self)
        self._answering = self._parser = None
        self.is_held = 0
        self.transport.resume_reading()
        self._unit.client_left()
        return self.transport

    def _finish(self) -> None:
        """Close. Where the client may still be sending, wait for it to notice (RFC 9112 § 9.6)."""
        self._pending.clear()
        if not self._unended and self._linger_until is None and not self.is_held:
            self.transport.close()
        elif not self.transport.is_closing():
            self._parser = None
            self._linger_until = self._unit.coarse_now + self._unit.timeouts.linger
            self._release(HELD_BY_TURN | HELD_BY_ORDER)
            self.transport.write_eof()

    def _refuse(self, error: RequestRejected, is_head: bool = False) -> None:
        """What comes is not to be parsed any further: answer in turn, then close."""
        self._parser = self._receiving = None
        self._head = b""
        self._unended.append(True)
        refusal = Refusal(self, error, is_head)
        if self._answering is None and not self._pending:
            self._answering = refusal
            refusal.start()
        else:
            self._queue(refusal)

    def _malformed(self, error: httptools.HttpParserError) -> None:
        if isinstance(error, httptools.HttpParserCallbackError):  # a fault of ours, not of the client's bytes
            self.abort()
            raise error
        if self._parser is None:
            return
        if self._unended:
            self._reject(RequestRejected(400, "malformed_body", str(error)))
        else:
            self._refuse(RequestRejected(400, "malformed_request", str(error)))

    def _reject(self, error: RequestRejected) -> None:
        """The request that is being received will never be whole."""
        turn, self._parser = self._receiving, None
        if turn is not None and turn is self._answering:
            turn.reject(error)
        elif self._pending:
            self._pending[-1] = Refusal(self, error, is_head=False)
