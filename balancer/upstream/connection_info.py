"""A connection as the status tells of it, whatever its transport.

Rule of this file: plain values, read at the moment of asking.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from balancer.upstream.connect_phases import Phases

if TYPE_CHECKING:
    from balancer.upstream.connection import UpstreamConnection
    from balancer.upstream.stream import MultiplexedConnection


@dataclass(frozen=True, slots=True)
class ConnectionInfo:
    """By our end's address. `opened_at`, and `idle_since`, None while it serves, in seconds; `requests` have been given
    to it, or have ended where it serves one at a time; `streams` are under way."""

    name: str
    opened_at: float
    idle_since: float | None
    requests: int
    streams: int
    phases: Phases


def listed_upstream(upstream: UpstreamConnection) -> ConnectionInfo:
    """One that serves one request at a time."""
    is_idle = upstream.is_reusable and upstream.idle_since > 0
    return ConnectionInfo(
        our_end(upstream.transport),
        upstream.opened_at,
        upstream.idle_since if is_idle else None,
        upstream.granted - upstream.requests_left,
        int(not is_idle),
        upstream.phases,
    )


def listed_carrier(carrier: MultiplexedConnection) -> ConnectionInfo:
    """One that serves many."""
    life = carrier.life
    idle_since = None if carrier.leased else life.idle_since
    return ConnectionInfo(life.name, life.opened_at, idle_since, life.requests, carrier.leased, life.phases)


def our_end(transport: asyncio.BaseTransport) -> str:
    """Address and port."""
    return ":".join(map(str, transport.get_extra_info("sockname", ("", ""))[:2]))
