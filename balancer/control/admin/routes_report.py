"""DNS names, routes, route events and upstream connections in status and metrics; every value is read at request time,
nothing is counted here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from prometheus_client.core import Metric

from balancer.cluster.cluster import Cluster
from balancer.control.admin.families import (
    OF_ENDPOINT,
    Rows,
    attributes,
    counter,
    gauge,
    histogram,
    of_each,
    rows_of_each,
)
from balancer.upstream.connection_counts import AGES, ConnectionInfo, PoolCounts
from balancer.upstream.dial.route_watch import Baseline
from balancer.upstream.dial.target import NetworkRoute
from balancer.upstream.pool import Pool
from policies.endpoint.state import EndpointState

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


def route_families(cluster: Cluster) -> Iterator[Metric]:
    """Yield the metrics of names, route events and connects."""
    names, watch, now = cluster.pools.routes.names, cluster.pools.routes.watch, cluster.now()
    asked = attributes(names.counts, "fresh", "stale", "waited", "refused")
    yield counter("steelyard_names_asked", "Connections that needed a name", asked, "answer")
    lookups = attributes(names.counts, "answered", "failed")
    yield counter("steelyard_name_lookups", "Look-ups of names", lookups, "result")
    ages = [(host, age) for host, name in names.known.items() if (age := name.age(now)) is not None]
    yield gauge("steelyard_name_age_seconds", "Age of the answer that serves", ages, "name")
    yield counter("steelyard_route_events", "Changes of routes", watch.counts.items(), "what")
    visits = [("made", watch.connects - watch.failed), ("failed", watch.failed)]
    text = "Test connections of the route watch"
    yield counter("steelyard_route_watch_connections", text, visits, "result")
    yield from _connect_families(cluster)


def _connect_families(cluster: Cluster) -> Iterator[Metric]:
    states, pools = cluster.router.states, cluster.pools.by_id

    def of_phases(state: EndpointState, attribute: str) -> Rows:
        route = pools[state.id].route
        found = (("connect", getattr(route.trip, attribute)), ("tls", getattr(route.tls, attribute)))
        return [(phase, seconds) for phase, seconds in found if seconds is not None]

    def of_handshakes(state: EndpointState, suffix: str) -> Rows:
        tls = pools[state.id].route.resumption
        return [(kind, getattr(tls, f"{kind}{suffix}")) for kind in ("full", "resumed")]

    rows = rows_of_each(states, lambda state: of_phases(state, "norm"))
    yield gauge("steelyard_route_usual_seconds", "What it usually takes", rows, *OF_ENDPOINT, "phase")
    rows = rows_of_each(states, lambda state: of_phases(state, "last"))
    yield gauge("steelyard_route_last_seconds", "What it took the last time", rows, *OF_ENDPOINT, "phase")
    rows = of_each(states, lambda state: pools[state.id].route.trip.is_departed)
    yield gauge("steelyard_route_departed", "1: connecting takes longer than usual", rows, *OF_ENDPOINT)
    rows = rows_of_each(states, lambda state: pools[state.id].route.faults.items())
    text = "Connections that could not be made"
    yield counter("steelyard_endpoint_connect_faults", text, rows, *OF_ENDPOINT, "kind")
    rows = rows_of_each(states, lambda state: of_handshakes(state, ""))
    yield counter("steelyard_endpoint_tls_handshakes", "TLS handshakes", rows, *OF_ENDPOINT, "kind")
    rows = rows_of_each(states, lambda state: of_handshakes(state, "_seconds"))
    text = "Time of TLS handshakes"
    yield counter("steelyard_endpoint_tls_handshake_seconds", text, rows, *OF_ENDPOINT, "kind")


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
    rows = [
        (*labels, [*zip(BOUNDS, accumulate(counts.lost_ages), strict=True)], counts.lost_seconds)
        for *labels, counts in of_each(states, lambda state: pools[state.id].counts)
    ]
    text = "Idle age at the worker's close"
    yield histogram("steelyard_endpoint_idle_close_seconds", text, rows, *OF_ENDPOINT)
