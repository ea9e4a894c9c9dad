"""Channel of a Redis or Valkey server in RESP2, which servers of every version speak, parsed by hiredis. It has two
connections: one that listens cannot publish.

Not the asyncio client of the servers: its streams and tasks take 73 µs for each report that is heard, this 45 µs, of
which most is the wake-up. Imported only where a store is configured.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from ssl import SSLContext
from typing import Final, cast
from urllib.parse import unquote, urlsplit

import hiredis

from balancer.config.schema.sections import SharedConfig
from balancer.errors import StoreLost

MAX_ANSWER_BYTES: Final = 1 << 20
"""Bytes of one answer. The largest report has two fifths of that."""

LONGEST_REASON: Final = 120
"""Characters of a server's error message that are shown."""

CLOSED: Final = "the connection was closed"


class CommandRefused(Exception):
    """An error that the server answers to a command."""


class StoreConnection(asyncio.Protocol):
    """One connection. `hear` gets the data of each published message, and may raise `StoreLost`, which closes it."""

    def __init__(self, hear: Callable[[object], None]) -> None:
        self._hear = hear
        self._is_lost = asyncio.Event()
        self._reason = CLOSED
        self._reader = hiredis.Reader(replyError=CommandRefused)
        self._unparsed = 0  # bytes since the last whole answer
        self._answer: asyncio.Future[object] | None = None
        self._transport: asyncio.Transport | None = None

    async def ask(self, *command: str | bytes) -> object:
        """Send one command and return its answer. Only one may be under way. Raises `StoreLost`."""
        if self._transport is None or self._is_lost.is_set():
            raise StoreLost(self._reason)
        answer = self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(hiredis.pack_command(command))  # type: ignore[arg-type]  # its stub allows one element
        return await answer

    async def ended(self) -> None:
        """Wait until the connection is closed or its data is not of the protocol. Raises `StoreLost`."""
        await self._is_lost.wait()
        raise StoreLost(self._reason)

    def close(self) -> None:
        """Close at once."""
        self._lose(CLOSED)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        reader = self._reader
        try:
            reader.feed(data)
            self._unparsed += len(data)
            while (answer := reader.gets()) is not False:
                self._unparsed = 0
                self._take(answer)
            if self._unparsed > MAX_ANSWER_BYTES:
                self._lose(f"an answer of over {MAX_ANSWER_BYTES} bytes")
        except Exception as error:  # the parser raises many kinds
            self._lose(reason_of(error))

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the event loop."""
        self._lose(CLOSED if error is None else reason_of(error))

    def _take(self, answer: object) -> None:
        if isinstance(answer, list) and answer[:1] == [b"message"]:
            self._hear(answer[-1])
            return
        waiting, self._answer = self._answer, None
        if waiting is None or waiting.done():
            return
        if isinstance(answer, CommandRefused):
            waiting.set_exception(StoreLost(reason_of(answer)))
        else:
            waiting.set_result(answer)

    def _lose(self, reason: str) -> None:
        if self._is_lost.is_set():
            return
        self._is_lost.set()
        self._reason = reason
        if self._transport is not None:
            self._transport.abort()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(StoreLost(reason))


async def connected(
    host: str, port: int, tls: SSLContext | None, hear: Callable[[object], None]
) -> StoreConnection:
    """Connect. Raises `StoreLost`."""
    try:
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: StoreConnection(hear), host, port, ssl=tls
        )
    except (OSError, UnicodeError) as error:
        raise StoreLost(reason_of(error)) from None
    return connection


def reason_of(error: Exception) -> str:
    """Return the reason in an error, without what the system adds."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text.rstrip(".")[:LONGEST_REASON]


OPEN_WITHIN = 5.0
"""Seconds for both connections with TLS, login and subscription: nine round trips, and a report may take 0.35 s. Later
answers have no timeout of their own: the exchange closes the channel of a store that does not answer."""


class StoreChannel:
    """The channel of one group."""

    def __init__(self, publisher: StoreConnection, listener: StoreConnection, name: str) -> None:
        self._publisher = publisher
        self._listener = listener
        self._name = name

    async def publish(self, data: bytes) -> None:
        """Send to all listeners. Raises `StoreLost`."""
        await self._publisher.ask("PUBLISH", self._name, data)

    async def ended(self) -> None:
        """Wait until nothing can be heard any more. Raises `StoreLost`."""
        await self._listener.ended()


class Store:
    """Opens the channel of the store that `config` names, for the cluster of that name."""

    def __init__(self, config: SharedConfig, cluster: str = "") -> None:
        url = config.url
        self._url = urlsplit("" if url is None else url.get_secret_value())
        self._channel = f"steelyard:{config.group}" + (f":{cluster}" if cluster else "")
        self._tls: ssl.SSLContext | None = None
        if self._url.scheme == "rediss":
            self._tls = ssl.create_default_context()
            if not config.verify:
                self._tls.check_hostname = False
                self._tls.verify_mode = ssl.CERT_NONE

    @asynccontextmanager
    async def opened(self, hear: Callable[[object], None]) -> AsyncIterator[StoreChannel]:
        """Connect twice, and close both connections at the end; `hear` gets all that is published, and may raise
        `StoreLost`, which closes the channel. Raises `StoreLost`."""
        connections = list[StoreConnection]()
        try:
            try:
                async with asyncio.timeout(OPEN_WITHIN):
                    for _ in range(2):
                        connections.append(await self._connected(hear))
                    publisher, listener = connections
                    await listener.ask("SUBSCRIBE", self._channel)
            except TimeoutError:
                raise StoreLost(f"no connection within {OPEN_WITHIN:g} s") from None
            yield StoreChannel(publisher, listener, self._channel)
        finally:
            for connection in connections:
                connection.close()

    async def _connected(self, hear: Callable[[object], None]) -> StoreConnection:
        """Connect and log in. Raises `StoreLost`."""
        url = self._url
        connection = await connected(url.hostname or "", url.port or 6379, self._tls, hear)
        login = [unquote(part) for part in (url.username, url.password) if part]
        if login:
            try:
                await connection.ask("AUTH", *login)
            except BaseException:
                connection.close()
                raise
        return connection
