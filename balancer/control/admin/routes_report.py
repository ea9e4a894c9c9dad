"""DNS names, routes, route events and upstream connections in the status."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from balancer.cluster.cluster import Cluster
from balancer.upstream.connection_counts import AGES, ConnectionInfo
from balancer.upstream.dial.route_watch import Baseline
from balancer.upstream.dial.target import NetworkRoute
from balancer.upstream.pool import Pool

if TYPE_CHECKING:
    from balancer.cluster.cluster import Cluster


def names_status(cluster: Cluster) -> dict[str, Any]:
    """Return the counts of the resolver, and the addresses and state of each known name. Ages are in seconds."""
    names, now = cluster.pools.routes.names, cluster.now()
    known = [
        {
            "name": host,
            "addresses": list(name.hosts),
            "state": name.worth(names.config, now).value,
            "age": _rounded(name.age(now)),
            "problem": name.fault,
        }
        for host, name in names.known.items()
    ]
    return {"resolver": names.config.resolver, **asdict(names.counts), "known": known}


def watch_status(cluster: Cluster) -> dict[str, Any]:
    """Return the counts of the route watch, and the lowest usual connect time to each region in seconds."""
    watch, usual = cluster.pools.routes.watch, dict[str, float | None]()
    for route in cluster.pools.routes.by_id.values():
        region, norm = route.endpoint.region, route.trip.norm
        known = usual.setdefault(region, norm)
        usual[region] = norm if known is None else known if norm is None else min(known, norm)
    regions = [
        {"name": region, "connect": _rounded(norm, 6), "departed": region in watch.regions_departed}
        for region, norm in sorted(usual.items())
    ]
    return {
        "enabled": watch.config.enabled,
        "connects": watch.connects,
        "failed": watch.failed,
        "regions": regions,
    }


def events_status(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the latest route events, the newest last. `age` is in seconds."""
    now = cluster.now()
    return [
        {
            "id": f"{event.what} {event.who} {event.number}",
            "what": event.what,
            "who": event.who,
            "age": round(now - event.at, 3),
            "text": event.text,
        }
        for event in cluster.pools.routes.watch.events
    ]


def route_status(route: NetworkRoute) -> dict[str, Any]:
    """Return the route to one endpoint: the address that answered last, connect and TLS times, handshakes by kind, and
    failed connections by kind. Durations are in seconds.
    """
    tls = route.resumption
    return {
        "address": route.best,
        "connect": _baseline(route.trip),
        "tls": _baseline(route.tls)
        | {
            "version": tls.version,
            "full": tls.full,
            "resumed": tls.resumed,
            "full_mean": _rounded(tls.full_seconds / tls.full, 6) if tls.full else None,
            "resumed_mean": _rounded(tls.resumed_seconds / tls.resumed, 6) if tls.resumed else None,
        },
        "faults": dict(route.faults),
    }


def _baseline(baseline: Baseline) -> dict[str, Any]:
    usual, last = _rounded(baseline.norm, 6), _rounded(baseline.last, 6)
    return {"usual": usual, "last": last, "departed": baseline.is_departed}


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else round(value, digits)


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
        "closed_by": {
            "worker": counts.closed_by_worker,
            "us": counts.closed_by_balancer,
            "error": counts.closed_by_error,
        },
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
