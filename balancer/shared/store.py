"""Channel of a Redis or Valkey server, by its asyncio client. Imported only where a store is configured.

A server that answers what is not of the protocol makes the client raise errors of many kinds: all mean that the store
is lost.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import redis.asyncio
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from balancer.config.shared import SharedConfig
from balancer.shared.exchange import SILENCE, StoreLost

LONGEST_REASON = 120
"""Characters of a store's error message that are shown."""


class StoreChannel:
    """The channel of one group: publishes over one connection, listens on another."""

    def __init__(self, client: redis.asyncio.Redis, listener: PubSub, name: str) -> None:
        self._client = client
        self._listener = listener
        self._name = name

    async def publish(self, data: bytes) -> None:
        """Send to all listeners. Raises `StoreLost`."""
        try:
            await self._client.publish(self._name, data)
        except Exception as error:
            raise _lost(error) from None

    async def heard(self) -> AsyncIterator[object]:
        """Iterate over what all senders publish. Raises `StoreLost`."""
        while True:
            try:
                message = await self._listener.get_message(ignore_subscribe_messages=True, timeout=SILENCE)
            except Exception as error:
                raise _lost(error) from None
            if message is not None:
                yield message["data"]


class Store:
    """Opens the channel of the store that `config` names."""

    def __init__(self, config: SharedConfig) -> None:
        self._config = config

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[StoreChannel]:
        """Connect twice, and close both connections at the end. Raises `StoreLost`."""
        config = self._config
        name = f"steelyard:{config.group}"
        client = redis.asyncio.Redis.from_url(self._url, **self._options())
        listener = client.pubsub()
        try:
            try:
                await listener.subscribe(name)
                await client.ping()
            except Exception as error:
                raise _lost(error) from None
            yield StoreChannel(client, listener, name)
        finally:
            with suppress(Exception):
                await listener.aclose()  # type: ignore[no-untyped-call]
            with suppress(Exception):
                await client.aclose()

    @property
    def _url(self) -> str:
        url = self._config.url
        return "" if url is None else url.get_secret_value()

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "socket_connect_timeout": SILENCE,
            "socket_timeout": SILENCE,
            "protocol": 2,  # which servers of every version speak
            "retry": Retry(NoBackoff(), 0),  # the exchange connects again
        }
        if self._url.startswith("rediss:") and not self._config.verify:
            options |= {"ssl_cert_reqs": "none", "ssl_check_hostname": False}
        return options


def _lost(error: Exception) -> StoreLost:
    return StoreLost(str(error).rstrip(".")[:LONGEST_REASON] or type(error).__name__)
