"""A client's connection to the sidecar: each request is for the unit of its origin.

Rule of this file: the connection belongs to the unit in front, and every request to that of its origin; the choice is
made here, so that a unit without origins knows nothing of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from balancer.config.sidecar import MARKER
from balancer.downstream.connection import ADMIN_PREFIX, DownstreamConnection
from balancer.errors import (
    ConnectFailed,
    ForwardingError,
    NoEndpoint,
    RequestRejected,
    ShuttingDown,
    Unserved,
)
from balancer.http1.own_responses import error_response
from balancer.http1.request_head import Request
from balancer.http1.request_reader import RequestReader
from balancer.sidecar.heads import Heads

if TYPE_CHECKING:
    from balancer.admin.application import AdminApplication
    from balancer.proxy import Proxy
    from balancer.sidecar.origins import Origins


class OriginConnection(DownstreamConnection):
    """One client connection."""

    __slots__ = ("_origin_heads",)

    def __init__(self, proxy: Proxy, control: AdminApplication, origins: Origins) -> None:
        super().__init__(proxy, control)
        self._origin_heads = Heads(origins)

    def _begin(self, request: Request, reader: RequestReader) -> None:
        if request.target.startswith(ADMIN_PREFIX):
            super()._begin(request, reader)
            return
        origin, request = self._origin_heads.outgoing(request)
        front = self._proxy
        self._proxy = origin.proxy  # what is made of the request is that unit's
        try:
            super()._begin(request, reader)
        finally:
            self._proxy = front

    def write_error(self, error: ForwardingError, request_id: bytes, *, stays: bool, is_head: bool) -> None:
        """With our marker: whoever may ask the origin itself learns whether it can have heard of the request."""
        marker = f"{MARKER}: {'unsent' if is_unsent(error) else 'maybe-sent'}"
        self.transport.write(error_response(error, request_id, stays=stays, is_head=is_head, field=marker))


def is_unsent(error: ForwardingError) -> bool:
    """Whether no origin has received anything of the request."""
    return isinstance(error, ConnectFailed | NoEndpoint | Unserved | ShuttingDown | RequestRejected)
