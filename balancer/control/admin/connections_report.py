"""Upstream connections in status and metrics; every value is read at request time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import accumulate
from typing import Any

from prometheus_client.core import Metric

from balancer.cluster.cluster import Cluster
from balancer.control.admin.families import (
    OF_ENDPOINT,
    attributes,
    counter,
    gauge,
    histogram,
    of_each,
    rows_of_each,
)
from balancer.upstream.connection_counts import AGES, ConnectionInfo, PoolCounts
from balancer.upstream.pool import Pool

EVENTS = (
    "opened",
    "reused",
    "cold",
    "failed",
    "spared",
    "closed",
    "lost_idle",
    "died",
    "heartbeats",
    "heartbeats_failed",
)
PHASES = ("namelookup", "connect", "appconnect")
LISTED_CONNECTIONS = 8
"""Limit of connections that are listed one by one for an endpoint, the oldest."""

BOUNDS = [*(f"{age:g}" for age in AGES), "+Inf"]


def connections_status(pool: Pool, now: float) -> dict[str, Any]:
    """Return the connections to one endpoint.

    Durations are in seconds. `setup` is the mean time to the end of each phase, measured from the beginning;
    `idle_timeout` is the idle time up to which a connection is reused, `learned` or assumed.
    """
    counts = pool.counts
    return {
        "idle": pool.idle,
        "leased": pool.leased,
        "opening": pool.opening,
        "streams": pool.streams,
        **{event: getattr(counts, event) for event in EVENTS},
        "closed_by": closed_by(counts),
        "lost_ages": dict(zip(BOUNDS, counts.lost_ages, strict=True)),
        "setup": {phase: round(getattr(counts, phase) / max(1, counts.opened), 6) for phase in PHASES},
        "idle_timeout": float(round(pool.idle_limit, 3)),
        "learned": pool.is_idle_limit_learned,
        "backing_off": pool.connector.backoff.is_backing_off,
        "last_fault": pool.last_fault,
        "each": [connection_status(listed, now) for listed in pool.listed(LISTED_CONNECTIONS)],
    }


def connection_status(listed: ConnectionInfo, now: float) -> dict[str, Any]:
    """Return one connection; `idle` is None while it is leased."""
    since = listed.idle_since
    return {
        "name": listed.name,
        "age": float(round(now - listed.opened_at, 3)),
        "idle": float(round(now - since, 3)) if since is not None else None,
        "requests": listed.requests,
        "streams": listed.streams,
        "setup": {phase: round(seconds, 6) for phase, seconds in asdict(listed.phases).items()},
    }


def closed_by(counts: PoolCounts) -> dict[str, int]:
    """Return the number of connections closed by the worker, by the balancer and by an error."""
    return {
        "worker": counts.closed_by_worker,
        "us": counts.closed_by_balancer,
        "error": counts.closed_by_error,
    }


def connection_families(cluster: Cluster) -> Iterator[Metric]:
    """Yield counters, reuse limits and idle ages at close, by endpoint."""
    states, pools = cluster.router.states, cluster.pools.by_id
    rows = rows_of_each(states, lambda state: attributes(pools[state.id].counts, *EVENTS))
    text = "What happened to connections"
    yield counter("steelyard_endpoint_connection_events", text, rows, *OF_ENDPOINT, "event")
    rows = rows_of_each(states, lambda state: closed_by(pools[state.id].counts).items())
    yield counter(
        "steelyard_endpoint_connections_closed", "Connections by who closed them", rows, *OF_ENDPOINT, "by"
    )
    rows = rows_of_each(states, lambda state: attributes(pools[state.id].counts, *PHASES))
    text = "Time to each phase, summed up"
    yield counter("steelyard_endpoint_setup_seconds", text, rows, *OF_ENDPOINT, "phase")
    rows = of_each(states, lambda state: pools[state.id].idle_limit)
    text = "Idle time up to which a connection is reused"
    yield gauge("steelyard_endpoint_idle_timeout_seconds", text, rows, *OF_ENDPOINT)
    rows = rows_of_each(states, lambda state: [_idle_closes(pools[state.id].counts)])
    text = "Idle age at the worker's close"
    yield histogram("steelyard_endpoint_idle_close_seconds", text, rows, *OF_ENDPOINT)


def _idle_closes(counts: PoolCounts) -> tuple[list[tuple[str, int]], float]:
    return list(zip(BOUNDS, accumulate(counts.lost_ages), strict=True)), counts.lost_seconds
