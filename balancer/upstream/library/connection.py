"""Adapter that represents an HTTP client library for one endpoint as a `MultiplexedConnection` without a stream limit.

The library opens, ages and closes its connections; this object only tracks whether it still takes requests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque

from balancer.config.schema.pool import PoolConfig
from balancer.http.h1.field_list import FieldList
from balancer.http.h1.response_head import ResponseHeads
from balancer.tls.contexts import ClientTls
from balancer.upstream.http2.stream import HIGH_WATER_BYTES, LOW_WATER_BYTES
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


class LibraryStream(ABC):
    """The request's body on its way to a library, which takes it piece by piece: half of a `Stream`."""

    def __init__(self, stream: UpstreamStream) -> None:
        self.stream = stream
        self.unsent = 0
        self._pending: deque[bytes] = deque()
        self._is_ending = False  # the body is complete
        self._is_held = False  # its sender is paused

    def send(self, data: bytes) -> None:
        self._pending.append(data)
        self.unsent += len(data)
        self._feed()
        if self.unsent > HIGH_WATER_BYTES and not self._is_held:
            self._is_held = True
            self.stream.paused()

    def send_end(self, trailers: bytes) -> None:
        """Mark the end of the body. Trailers are dropped: no library here can send them."""
        self._is_ending = True
        self._feed()

    @abstractmethod
    def _feed(self) -> None:
        """Let the library take more of the body, or its end."""

    def _drained(self) -> None:
        """Resume the sender once the library has taken enough."""
        if self._is_held and self.unsent <= LOW_WATER_BYTES:
            self._is_held = False
            self.stream.resumed()

    def cancel(self) -> None:
        self._pending.clear()
        self.unsent = 0


def address_of(host: str, port: int, tls: ClientTls | None) -> str:
    """Scheme, host and port as a URL, without a path."""
    return f"{'http' if tls is None else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"
