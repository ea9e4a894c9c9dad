"""Upstream connections in status and metrics; every value is read at request time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from balancer.cluster.cluster import Cluster
from balancer.upstream.connection_counts import AGES, PoolCounts
from balancer.upstream.connection_info import ConnectionInfo
from balancer.upstream.pool import Pool

PREFIX = "steelyard"
OF_ENDPOINT = ["endpoint", "region"]

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
    events = CounterMetricFamily(
        f"{PREFIX}_endpoint_connection_events", "What happened to connections", labels=[*OF_ENDPOINT, "event"]
    )
    closed = CounterMetricFamily(
        f"{PREFIX}_endpoint_connections_closed", "Connections by who closed them", labels=[*OF_ENDPOINT, "by"]
    )
    setup = CounterMetricFamily(
        f"{PREFIX}_endpoint_setup_seconds", "Time to each phase, summed up", labels=[*OF_ENDPOINT, "phase"]
    )
    idle_timeout = GaugeMetricFamily(
        f"{PREFIX}_endpoint_idle_timeout_seconds",
        "Idle time up to which a connection is reused",
        labels=OF_ENDPOINT,
    )
    ages = HistogramMetricFamily(
        f"{PREFIX}_endpoint_idle_close_seconds", "Idle age at the worker's close", labels=OF_ENDPOINT
    )
    for state in cluster.router.states:
        labels, pool = [state.id, state.region], cluster.pools.by_id[state.id]
        counts = pool.counts
        for event in EVENTS:
            events.add_metric([*labels, event], getattr(counts, event))
        for by, number in closed_by(counts).items():
            closed.add_metric([*labels, by], number)
        for phase in PHASES:
            setup.add_metric([*labels, phase], getattr(counts, phase))
        idle_timeout.add_metric(labels, pool.idle_limit)
        rows = list(zip(BOUNDS, accumulate(counts.lost_ages), strict=True))
        ages.add_metric(labels, buckets=rows, sum_value=counts.lost_seconds)
    yield from (events, closed, setup, idle_timeout, ages)
