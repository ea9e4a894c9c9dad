"""HTTP/1.1 client of the load generator: one request at a time on asyncio and llhttp.

It shares no code with the balancer, so a mistake in the balancer's parser cannot hide in a measurement. Bodies are
parsed and dropped. The end of a response is reported once the whole read has been parsed; bytes behind it make the
connection not reusable (RFC 9112 section 6.3).
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

import httptools

from experiments.errors import FleetFailedError

END_OF_HEAD = b"\r\n\r\n"

MAX_HEAD_BYTES = 64 << 10
HAPPY_EYEBALLS_DELAY_S = 0.25
"""Delay before the next address of a name is tried too (RFC 8305 section 8)."""

LENGTH_KNOWN = re.compile(rb"\r\n(content-length|transfer-encoding)[ \t]*:", re.IGNORECASE)
"""Fields of a response that does not end with its connection (RFC 9112 section 6.3)."""

WILL_CLOSE = re.compile(rb"\r\nconnection:[^\r]*\bclose\b|\AHTTP/1\.0 ", re.IGNORECASE)


class NotConnected(FleetFailedError):
    """No connection was made; `reason` says why, and `is_certificate` whether the peer's certificate is not trusted."""

    def __init__(self, host: str, port: int, reason: str, is_certificate: bool = False) -> None:
        super().__init__(f"no connection to {host}:{port}: {reason}")
        self.reason = reason
        self.is_certificate = is_certificate


class AnswerReceiver(Protocol):
    """Receiver of one response. It gets one `answer_ended` or one `answer_failed`, unless the connection is closed."""

    def answer_started(self, status: int, head: bytes) -> None:
        """Take the final status and the head, from its status line to the end of its last field."""

    def answer_ended(self) -> None: ...
    def answer_failed(self) -> None: ...


class Sender(Protocol):
    """What carries one request at a time: an HTTP/1.1 connection, or a place on an HTTP/2 connection."""

    @property
    def is_reusable(self) -> bool:
        """Whether another request may be sent."""

    @property
    def has_answered(self) -> bool:
        """Whether its connection has carried a response."""

    @property
    def has_died(self) -> bool:
        """Whether its connection closed with a request in flight and before any byte of the response."""

    @property
    def was_refused(self) -> bool:
        """Whether the server has said that it did not process the request."""

    def send(
        self, request: bytes, receiver: AnswerReceiver, method: bytes = b"GET", body: bytes = b""
    ) -> None:
        """Send a request: all before its body, and the body. Its response goes to `receiver`."""

    def close(self) -> None:
        """Give up the request; its receiver gets no further events."""


class Connection(asyncio.Protocol):
    """A connection to a server. `senders`: what carries its requests, once it is `ready`."""

    __slots__ = ("senders", "transport")

    lacks = "no connection"
    """What it waits for."""
    senders: Sequence[Sender]
    transport: asyncio.Transport

    async def ready(self) -> None:
        """Wait until requests may be sent. Raises `ConnectionError`."""

    def close(self) -> None:
        """Close the connection at once; receivers get no further events."""
        raise NotImplementedError


class ConnectionOwner(Protocol):
    """Owner of a connection, which is notified when it closes."""

    def connection_closed(self, connection: GeneratorConnection) -> None: ...


@dataclass(frozen=True, slots=True)
class GeneratorTls:
    """TLS towards a server: the context, and the name that its certificate must have."""

    context: ssl.SSLContext
    name: str


class GeneratorConnection(Connection):
    """Connection that sends one request at a time and reports the response to its receiver."""

    __slots__ = (
        "_has_interim",
        "_has_surplus",
        "_head",
        "_is_complete",
        "_is_head_request",
        "_owner",
        "_parser",
        "_receiver",
        "_status",
        "has_answered",
        "has_died",
        "is_closed",
        "is_reusable",
        "write",
    )

    was_refused = False
    """Over HTTP/1.1 no server says so."""

    def __init__(self, owner: ConnectionOwner) -> None:
        self._owner = owner
        self.senders = (self,)
        self._parser = httptools.HttpResponseParser(self)
        self._receiver: AnswerReceiver | None = None
        self._head = b""  # bytes since the status line, until the head is complete
        self._status = 0  # of the response whose head is complete
        self._is_complete = False  # the response has ended within the bytes being parsed
        self._has_surplus = False  # bytes followed it
        self._is_head_request = False
        self._has_interim = False  # a response before the final one has arrived
        self.is_reusable = True  # another request may be sent
        self.is_closed = False
        self.has_answered = False  # it has carried a response
        self.has_died = False  # it closed with a request in flight and before any byte of the response

    def send(
        self, request: bytes, receiver: AnswerReceiver, method: bytes = b"GET", body: bytes = b""
    ) -> None:
        """Send a request: its head and its body. Its response goes to `receiver`."""
        self._receiver = receiver
        self._is_head_request = method == b"HEAD"
        self.is_reusable = self._is_complete = False
        self._status, self._has_interim = 0, False
        self.write(request + body if body else request)

    def close(self) -> None:
        """Close the connection at once; its receiver gets no further events."""
        self._receiver = None
        if not self.is_closed:
            self._mark_closed()
            self.transport.abort()

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.write = self.transport.write  # directly, which saves a call

    def data_received(self, data: bytes) -> None:
        if self._receiver is None:
            self.close()  # nothing was asked
            return
        if not self._status:
            self._head = self._head + data if self._head else data
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if not self._is_complete:
                self._fail()
                return
            self._has_surplus = True
        if self._is_complete:
            self._end()
        elif len(self._head) > MAX_HEAD_BYTES:
            self._fail()

    def eof_received(self) -> None:
        is_end = bool(self._status) and not LENGTH_KNOWN.search(self._head)
        self._lost(is_end)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.is_closed:
            self._lost(is_end=False)

    # --- llhttp

    def on_message_begin(self) -> None:
        if self._is_complete:
            self._has_surplus = True

    def on_headers_complete(self) -> None:
        if self._is_complete:
            return  # a response that nothing asked for
        status = self._parser.get_status_code()
        head = self._head
        end = head.find(END_OF_HEAD)
        if status < 200:
            self._has_interim = True
            self._head = head[end + 4 :]
            return
        self._status, self._head = status, head[:end]
        receiver = self._receiver
        if receiver is not None:
            receiver.answer_started(status, self._head)
        if self._is_head_request:
            self._is_complete = True
            self.is_reusable = not WILL_CLOSE.search(self._head)
            self._has_surplus = len(head) > end + 4

    def on_message_complete(self) -> None:
        if self._status and not self._is_complete:
            self._is_complete = True
            self.is_reusable = self._parser.should_keep_alive()  # llhttp forgets it after this callback

    # --- ends

    def _end(self) -> None:
        receiver, self._receiver = self._receiver, None
        self._head = b""
        if self._is_head_request:  # llhttp would take the next response for the body of this one
            self._parser = httptools.HttpResponseParser(self)
        self.has_answered = True
        if self._has_surplus or self.is_closed:
            self.is_reusable = False
        if receiver is not None:
            receiver.answer_ended()

    def _lost(self, is_end: bool) -> None:
        receiver, self._receiver = self._receiver, None
        self.has_died = receiver is not None and not (self._status or self._head or self._has_interim)
        self._mark_closed()
        self.transport.abort()
        if receiver is not None:
            if is_end:
                receiver.answer_ended()
            else:
                receiver.answer_failed()

    def _fail(self) -> None:
        receiver = self._receiver
        self.close()
        if receiver is not None:
            receiver.answer_failed()

    def _mark_closed(self) -> None:
        self.is_closed, self.is_reusable = True, False
        self._owner.connection_closed(self)


def is_address(host: str) -> bool:
    """Whether the host is an IP address and not a name."""
    return ":" in host or host.replace(".", "").isdigit()


C = TypeVar("C", bound=Connection)


async def connect(
    owner: ConnectionOwner, host: str, port: int, timeout: float, tls: GeneratorTls | None = None
) -> GeneratorConnection:
    """Open an HTTP/1.1 connection within `timeout` seconds. Raises `NotConnected`."""
    return await open_connection(lambda: GeneratorConnection(owner), host, port, timeout, tls)


async def open_connection(
    make: Callable[[], C], host: str, port: int, timeout: float, tls: GeneratorTls | None = None
) -> C:
    """Open a connection within `timeout` seconds; a host with a slash is a Unix socket. Raises `NotConnected`."""
    loop = asyncio.get_running_loop()
    connection: C | None = None
    try:
        async with asyncio.timeout(timeout):
            connection = await dial(loop, make, host, port, tls)
            try:
                await connection.ready()
            except BaseException:
                connection.close()
                raise
    except TimeoutError:
        lacks = (connection or Connection).lacks
        raise NotConnected(host, port, f"{lacks} within {timeout:g} s") from None
    except ssl.SSLCertVerificationError as error:
        raise NotConnected(
            host, port, f"certificate refused: {error.verify_message}", is_certificate=True
        ) from None
    except (OSError, UnicodeError) as error:  # UnicodeError: the name is not one that can be looked up
        number = getattr(error, "errno", None) or 0  # negative where the name is not known
        reason = os.strerror(number) if number > 0 else getattr(error, "strerror", None) or str(error)
        raise NotConnected(host, port, reason) from None
    return connection


async def dial(
    loop: asyncio.AbstractEventLoop, make: Callable[[], C], host: str, port: int, tls: GeneratorTls | None
) -> C:
    """Open a connection; a host with a slash is a Unix socket. Raises `OSError`."""
    if "/" in host:
        return (await loop.create_unix_connection(make, host))[1]
    options: dict[str, Any] = {}
    # Only for names: a race that is cancelled may lose a socket. uvloop tries one address after another.
    if isinstance(loop, asyncio.BaseEventLoop) and not is_address(host):
        options["happy_eyeballs_delay"] = HAPPY_EYEBALLS_DELAY_S
    if tls is not None:
        options |= {"ssl": tls.context, "server_hostname": tls.name}
    return (await loop.create_connection(make, host, port, **options))[1]
