"""Connection to `admin.listen`: a client connection with its limits and timeouts that takes only admin requests."""

from __future__ import annotations

import asyncio

from balancer.admin.access import Entrance
from balancer.downstream.connection import ADMIN_PREFIX, DownstreamConnection
from balancer.errors import RequestRejected
from balancer.http1.request_head import Request
from balancer.http1.request_reader import RequestReader


class AdminConnection(DownstreamConnection):
    """A client connection to `admin.listen`; beyond `application.CLIENT_LIMIT` of them a new one is reset."""

    __slots__ = ()

    @property
    def entrance(self) -> Entrance:
        """The entrance `admin.listen`."""
        return Entrance.LISTEN

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._control.enter(self):
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._control.leave(self)
        super().connection_lost(error)

    def detach(self) -> asyncio.Transport:
        """Return the transport for another protocol and stop counting this connection."""
        self._control.leave(self)
        return super().detach()

    def _begin(self, request: Request, reader: RequestReader) -> None:
        if not request.target.startswith(ADMIN_PREFIX):
            raise RequestRejected(404, "not_found", "only control requests are taken here")
        super()._begin(request, reader)
