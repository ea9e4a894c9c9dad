"""Client connection of the sidecar: each request goes to the cluster of its origin.

The connection belongs to the front. The origin is chosen only here, so that `Cluster` needs no notion of origins.
"""

from __future__ import annotations

from balancer.cluster.cluster import Cluster
from balancer.config.schema.sidecar import MARKER
from balancer.downstream.connection import Http1Connection
from balancer.downstream.dispatch import AdminExchanges
from balancer.errors import (
    ConnectFailed,
    ForwardingError,
    NoEndpoint,
    RequestRejected,
    Unserved,
)
from balancer.http.h1.own_responses import ErrorAnswer
from balancer.http.h1.request_head import Request
from balancer.http.h1.request_reader import RequestReader
from balancer.syntax.urls import ADMIN_PREFIX
from balancer.tools.sidecar.origins import Heads, Origins


class OriginConnection(Http1Connection):
    """A client connection whose requests are dispatched by origin."""

    __slots__ = ("_origin_heads",)

    def __init__(self, cluster: Cluster, admin_exchange: AdminExchanges, origins: Origins) -> None:
        super().__init__(cluster, admin_exchange)
        self._origin_heads = Heads(origins)

    def _begin(self, cluster: Cluster, request: Request, reader: RequestReader) -> None:
        if not request.target.startswith(ADMIN_PREFIX):
            origin, request = self._origin_heads.outgoing(request)
            cluster = origin.cluster
        super()._begin(cluster, request, reader)

    def write_error(self, answer: ErrorAnswer) -> None:
        """Send an error with the sidecar's marker field, by which a client decides whether it may ask the origin
        itself.
        """
        marker = f"{MARKER}: {'unsent' if is_unsent(answer.error) else 'maybe-sent'}\r\n".encode()
        super().write_error(answer._replace(edit=lambda block: block + marker))


def is_unsent(error: ForwardingError) -> bool:
    """Return whether no part of the request was sent to an origin."""
    return isinstance(error, ConnectFailed | NoEndpoint | Unserved | RequestRejected)
