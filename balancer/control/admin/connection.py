"""Connection to `admin.listen`: a client connection with its limits and timeouts that takes only admin requests."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from balancer.cluster.cluster import Cluster
from balancer.control.admin.access import PAGE
from balancer.downstream.connection import Http1Connection
from balancer.errors import RequestRejected
from balancer.http.h1.request_head import Request
from balancer.http.h1.request_reader import RequestReader
from balancer.syntax.urls import ADMIN_PREFIX

if TYPE_CHECKING:
    from balancer.control.admin.application import AdminApplication


class AdminConnection(Http1Connection):
    """A client connection to `admin.listen`; of more than `application.CLIENT_LIMIT` the oldest one that waits for its
    client is reset. Before its first byte `timeouts.head` applies.
    """

    __slots__ = ("_application",)

    def __init__(self, cluster: Cluster, application: AdminApplication) -> None:
        super().__init__(cluster, application.exchange_on_listener)
        self._application = application

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._process.counts.connections -= 1  # it brings no traffic
        if not self._application.enter(self):
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._application.leave(self)
        super().connection_lost(error)

    @property
    def is_waiting(self) -> bool:
        """Whether the next step is its client's: no request of it is being answered."""
        return self._answering is None

    def check(self, now: float) -> None:
        is_silent = not (self.is_begun or self.transport.is_closing()) and not (
            self._reader is not None and self._reader.head
        )
        if is_silent and now - self.idle_since > self._cluster.timeouts.head:
            self.abort()
        else:
            super().check(now)

    def detach(self) -> asyncio.Transport:
        """Return the transport for another protocol and stop counting this connection."""
        self._application.leave(self)
        return super().detach()

    def _begin(self, cluster: Cluster, request: Request, reader: RequestReader) -> None:
        if request.target == b"/":
            request.target = PAGE  # access is that of the page, to which the application redirects
        if not request.target.startswith(ADMIN_PREFIX):
            raise RequestRejected(404, "not_found", "only admin requests are taken here")
        super()._begin(cluster, request, reader)
