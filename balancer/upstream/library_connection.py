"""What of a library's HTTP client is for one endpoint: a `MultiplexedConnection` of as many requests as there are.

Rule of this file: the library keeps the connections, ages and closes them. Here is only whether it is still asked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from balancer.http1.response_head import ResponseHeads
from balancer.upstream.stream import ConnectionLife

if TYPE_CHECKING:
    from balancer.http1.field_list import FieldList
    from balancer.tls.contexts import ClientTls
    from balancer.upstream.multiplexed_pool import MultiplexedPool
    from balancer.upstream.pool_limits import PoolLimits
    from balancer.upstream.stream import Stream, UpstreamStream

ENDLESS = 1 << 30


class LibraryConnection(ABC):
    """All of a `MultiplexedConnection` but how a request begins."""

    is_library = True

    def __init__(self, pool: MultiplexedPool) -> None:
        self.pool = pool
        self.heads = ResponseHeads()
        self.leased = 0
        self.life = ConnectionLife()
        self._is_leaving = False

    @property
    def limits(self) -> PoolLimits:
        """As they are now."""
        return self.pool.pools.limits

    @property
    def room(self) -> int:
        return 0 if self._is_leaving else ENDLESS

    @abstractmethod
    def begin(self, errand: UpstreamStream, outline: FieldList) -> Stream: ...

    def is_quiet(self) -> bool:
        return True

    def retire(self) -> None:
        self._is_leaving = True
        if not self.leased:
            self.close()

    def close(self) -> None:
        self._is_leaving = True
        self.pool.carrier_lost(self)

    def prune(self, now: float, limits: PoolLimits) -> None:  # noqa: B027 there is nothing to do
        """The library ages its connections itself."""


def address_of(host: str, port: int, tls: ClientTls | None) -> str:
    """Scheme, host and port as a URL has them."""
    return f"{'http' if tls is None else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"
