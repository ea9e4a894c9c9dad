"""Adapter that represents an HTTP client library for one endpoint as a `MultiplexedConnection` without a stream limit.

The library opens, ages and closes its connections; this object only tracks whether it still takes requests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from balancer.config.schema.pool import PoolConfig
from balancer.http.h1.field_list import FieldList
from balancer.http.h1.response_head import ResponseHeads
from balancer.tls.contexts import ClientTls
from balancer.upstream.library.pool import LibraryPool
from balancer.upstream.stream import ConnectionRecord, Stream, UpstreamStream

UNLIMITED_STREAMS = 1 << 30


class LibraryConnection(ABC):
    """Base class: all of a `MultiplexedConnection` except `begin`."""

    def __init__(self, pool: LibraryPool) -> None:
        self.pool = pool
        self.heads = ResponseHeads()
        self.leased = 0
        self.life = ConnectionRecord()
        self._is_leaving = False

    @property
    def limits(self) -> PoolConfig:
        """Current limits of the pools; a reload may replace them."""
        return self.pool.pools.limits

    @property
    def room(self) -> int:
        return 0 if self._is_leaving else UNLIMITED_STREAMS

    @abstractmethod
    def begin(self, stream: UpstreamStream, outline: FieldList) -> Stream: ...

    def is_quiet(self) -> bool:
        return True

    def retire(self) -> None:
        self._is_leaving = True
        if not self.leased:
            self.close()

    def close(self) -> None:
        self._is_leaving = True
        self.pool.connection_closed(self)

    def prune(self, now: float, limits: PoolConfig) -> None:  # noqa: B027 there is nothing to do
        """Do nothing: the library ages its own connections."""


def address_of(host: str, port: int, tls: ClientTls | None) -> str:
    """Scheme, host and port as a URL, without a path."""
    return f"{'http' if tls is None else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"
