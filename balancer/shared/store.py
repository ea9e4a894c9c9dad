"""Channel of a Redis or Valkey server, by its asyncio client. Imported only where a store is configured.

A server that answers what is not of the protocol makes the client raise errors of many kinds: all mean that the store
is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import redis.asyncio
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from balancer.config.shared import SharedConfig
from balancer.shared.exchange import StoreLost

CONNECT_WITHIN = 1.0
"""Seconds for a connect, and for a close."""

OPEN_WITHIN = 5.0
"""Seconds for both connections with login and subscription: about twelve round trips, each as long as the exchange
allows. Later answers have no timeout of their own, which would cost more than the message: the exchange closes the
channel of a store that does not answer."""

LONGEST_REASON = 120
"""Characters of a store's error message that are shown."""


class StoreChannel:
    """The channel of one group: publishes over one connection, listens on another.

    Both use the client's connections without its commands and its `PubSub`, which take three times as long for each
    message."""

    def __init__(self, publisher: AbstractConnection, listener: AbstractConnection, name: str) -> None:
        self._publisher = publisher
        self._listener = listener
        self._name = name

    async def publish(self, data: bytes) -> None:
        """Send to all listeners. Raises `StoreLost`."""
        try:
            await self._publisher.send_command("PUBLISH", self._name, data)
            await self._publisher.read_response()
        except Exception as error:
            raise _lost(error) from None

    async def heard(self) -> AsyncIterator[object]:
        """Iterate over what all senders publish. Raises `StoreLost`."""
        while True:
            try:
                response = await self._listener.read_response(disable_decoding=True)
            except Exception as error:
                raise _lost(error) from None
            if isinstance(response, list) and response[:1] == [b"message"]:
                yield response[-1]


class Store:
    """Opens the channel of the store that `config` names."""

    def __init__(self, config: SharedConfig) -> None:
        self._config = config

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[StoreChannel]:
        """Connect twice, and close both connections at the end. Raises `StoreLost`."""
        name = f"steelyard:{self._config.group}"
        clients = [
            redis.asyncio.Redis.from_url(self._url, single_connection_client=True, **self._options())
            for _ in range(2)
        ]
        try:
            try:
                async with asyncio.timeout(OPEN_WITHIN):
                    publisher, listener = [await _connected(client) for client in clients]
                    await listener.send_command("SUBSCRIBE", name)
            except TimeoutError:
                raise StoreLost(f"no connection within {OPEN_WITHIN:g} s") from None
            except Exception as error:
                raise _lost(error) from None
            yield StoreChannel(publisher, listener, name)
        finally:
            for client in clients:
                with suppress(Exception):
                    await client.aclose()

    @property
    def _url(self) -> str:
        url = self._config.url
        return "" if url is None else url.get_secret_value()

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "socket_connect_timeout": CONNECT_WITHIN,
            "socket_timeout": None,
            "protocol": 2,  # which servers of every version speak
            "retry": Retry(NoBackoff(), 0),  # the exchange connects again
        }
        if self._url.startswith("rediss:") and not self._config.verify:
            options |= {"ssl_cert_reqs": "none", "ssl_check_hostname": False}
        return options


async def _connected(client: redis.asyncio.Redis) -> AbstractConnection:
    """Connect, and return the client's only connection."""
    await client.ping()
    assert client.connection is not None
    return client.connection


def _lost(error: Exception) -> StoreLost:
    return StoreLost(str(error).rstrip(".")[:LONGEST_REASON] or type(error).__name__)
