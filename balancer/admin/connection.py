"""A connection to `control.listen`: a client's connection, with its limits and timeouts, for control requests alone."""

from __future__ import annotations

import asyncio

from balancer.admin.access import Entrance
from balancer.downstream.connection import ADMIN_PREFIX, DownstreamConnection
from balancer.errors import RequestRejected
from balancer.http1.request_head import Request
from balancer.http1.request_reader import RequestReader


class AdminConnection(DownstreamConnection):
    """One connection. Beyond `plane.CLIENT_LIMIT` of them a new one is reset."""

    __slots__ = ()

    @property
    def entrance(self) -> Entrance:
        """Where its requests come in."""
        return Entrance.LISTEN

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._control.enter(self):
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._control.leave(self)
        super().connection_lost(error)

    def detach(self) -> asyncio.Transport:
        """Hand the connection over to another protocol."""
        self._control.leave(self)
        return super().detach()

    def _begin(self, request: Request, reader: RequestReader) -> None:
        if not request.target.startswith(ADMIN_PREFIX):
            raise RequestRejected(404, "not_found", "only control requests are taken here")
        super()._begin(request, reader)
