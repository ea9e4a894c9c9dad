"""Snapshot of one connection for the status output, the same for all transports."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from balancer.upstream.dial.phases import DialTimes
from balancer.upstream.stream import MultiplexedConnection

if TYPE_CHECKING:
    from balancer.upstream.http1.connection import UpstreamConnection


@dataclass(frozen=True, slots=True)
class ConnectionInfo:
    """State of one connection. `name`: local address and port; `opened_at` and `idle_since` in seconds, `idle_since`
    None while in use; `requests`: requests begun on it, or completed where it serves one at a time; `streams`: requests
    in flight."""

    name: str
    opened_at: float
    idle_since: float | None
    requests: int
    streams: int
    phases: DialTimes


def connection_info(upstream: UpstreamConnection) -> ConnectionInfo:
    """Snapshot of an HTTP/1.1 connection, idle or leased."""
    is_idle = upstream.is_reusable and upstream.idle_since > 0
    return ConnectionInfo(
        local_address(upstream.transport),
        upstream.opened_at,
        upstream.idle_since if is_idle else None,
        upstream.granted - upstream.requests_left,
        int(not is_idle),
        upstream.phases,
    )


def multiplexed_info(connection: MultiplexedConnection) -> ConnectionInfo:
    """Snapshot of a multiplexed connection and its streams."""
    life = connection.life
    idle_since = None if connection.leased else life.idle_since
    return ConnectionInfo(
        life.name, life.opened_at, idle_since, life.requests, connection.leased, life.phases
    )


def local_address(transport: asyncio.BaseTransport) -> str:
    """Local address and port of a transport, as `address:port`."""
    return ":".join(map(str, transport.get_extra_info("sockname", ("", ""))[:2]))
