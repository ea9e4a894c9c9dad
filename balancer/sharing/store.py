"""Channel of a Redis or Valkey server, over two connections: a connection that listens cannot publish."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import unquote, urlsplit

from balancer.config.schema.shared import SharedConfig
from balancer.sharing.connection import StoreConnection, connected
from balancer.sharing.exchange import StoreLost

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
