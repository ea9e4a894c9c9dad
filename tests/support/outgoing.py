"""Parse one request head as a new connection does."""

from __future__ import annotations

from balancer.http.h1.client import Client
from balancer.http.h1.request_head import Request, RequestHeads


def outgoing_request(raw: bytes, client: Client, fresh_id: bytes) -> Request:
    """Return the request for a worker. Raises `RequestRejected`."""
    return RequestHeads(client, lambda: fresh_id).outgoing(raw)
