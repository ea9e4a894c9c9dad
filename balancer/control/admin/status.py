"""/-/status as plain JSON values, read at request time from counters that the data path keeps anyway."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from math import inf
from typing import TYPE_CHECKING, Any

from balancer.build import build, http2_library
from balancer.config.schema.endpoint import CLIENT
from balancer.config.schema.listeners import url_of
from balancer.config.schema.routes import DEFAULT
from balancer.control.admin.health import endpoint_condition, health_of, readiness
from balancer.control.admin.policy_report import Describe, policy_status, raw, summary
from balancer.control.admin.routes_report import (
    connections_status,
    events_status,
    names_status,
    route_status,
    watch_status,
)
from balancer.control.admin.traffic_report import (
    buffering_status,
    concurrency_status,
    grpc_status,
    http2_status,
    inference_status,
    level_status,
    mirrors_status,
    queue_status,
    rate_limits_status,
    splits_status,
)
from balancer.routes.table import own_route
from policies.endpoint.state import EndpointState
from policies.stats.load import RATIO, SHORTEST

if TYPE_CHECKING:
    from balancer.cluster.cluster import Cluster
    from balancer.control.control_plane import ControlPlane


@cache
def package_version() -> str:
    """Return the version of the installed package; reading it takes a millisecond."""
    return version("steelyard")


def process_counts(control_plane: ControlPlane) -> dict[str, Any]:
    """Return the fields that status and live page share: the process and its counts."""
    cluster = control_plane.cluster
    counts = cluster.counts
    return {
        "version": package_version(),
        "build": build(),
        "http2_library": http2_library(),
        "pid": os.getpid(),
        "uptime": round(cluster.now() - cluster.process.started_at, 3),
        "draining": cluster.process.is_draining,
        "readiness": readiness(control_plane),
        **clients_status(cluster),
        "queued": len(cluster.queue),
        "queue": queue_status(cluster),
        "levels": level_status(cluster),
        "requests": counts.requests,
        "retried": counts.retried,
        "retries_denied": cluster.retries.budget.denied,
        "hedging": hedging_status(cluster),
        "buffering": buffering_status(control_plane),
        "abandoned": counts.abandoned,
        "errors": dict(counts.errors),
    }


def clients_status(cluster: Cluster) -> dict[str, Any]:
    """Return the counts of client connections, which only the default cluster has."""
    process = cluster.process
    return {
        "clients": len(process.downstreams),
        "in_flight": process.in_flight if not cluster.name else cluster.router.in_flight,
        "connections": process.counts.connections,
        "failed_arrivals": process.counts.failed_arrivals,
        "pending_bytes": process.usages.budget.kept,
        "http2": http2_status(cluster),
        "grpc": grpc_status(cluster),
    }


OF_PROCESS = frozenset((
    *("version", "build", "http2_library", "pid", "uptime", "draining", "access_log", "tracing", "reload", "listeners"),
    *("clients", "connections", "failed_arrivals", "pending_bytes", "http2", "grpc", "rate_limits", "buffering"),
))  # fmt: skip
"""Keys of the status that concern the process; the others are those of a cluster, too."""

TOTALS = ("queued", "requests", "retried", "retries_denied", "abandoned")
"""Keys whose value at the top of the status is that of all clusters together; `errors` and `responses` are, too."""


def proxy_status(control_plane: ControlPlane, describe: Describe = summary) -> dict[str, Any]:
    """Return the document of /-/status, for a sibling process with `raw` histograms. Durations are in seconds.

    With named clusters it has the status of each, and the counts of requests at its top are of all clusters together.
    """
    document = cluster_status(control_plane, describe)
    if control_plane.named:
        clusters = [
            named_status(name, cluster_status(plane, describe)) for name, plane in control_plane.named.items()
        ]
        for key in TOTALS:
            document[key] += sum(cluster[key] for cluster in clusters)
        for key in ("errors", "responses"):
            document[key] = dict(sum((Counter(each[key]) for each in (document, *clusters)), Counter[str]()))
        document["clusters"] = clusters
    document |= {"health": health_of(document), **mirrors_status(control_plane.mirrors, describe)}
    return document | splits_status(control_plane.splits)


def named_status(name: str, document: dict[str, Any]) -> dict[str, Any]:
    """Return the status of a named cluster without what concerns the process."""
    own = {key: value for key, value in document.items() if key not in OF_PROCESS}
    return {"name": name, **own, "health": health_of(document)}


def cluster_status(control_plane: ControlPlane, describe: Describe) -> dict[str, Any]:
    """Return the status of one cluster, with that of the process if it is the default one."""
    cluster = control_plane.cluster
    return {
        **process_counts(control_plane),
        "responses": {
            str(status): number for status, number in enumerate(cluster.counts.responses) if number
        },
        "rate_limits": rate_limits_status(control_plane.rate_limits),
        "tunnels": {
            "open": len(cluster.tunnels),
            "opened": cluster.tunnels.opened,
            "bytes_in": cluster.tunnels.bytes_in,
            "bytes_out": cluster.tunnels.bytes_out,
        },
        "listeners": listeners_status(control_plane),
        "access_log": log_status(cluster),
        "tracing": tracing_status(cluster),
        "recording": control_plane.recording.status(),
        "explaining": control_plane.explanations.status(),
        "reload": reload_status(control_plane),
        "policy": policy_status(control_plane, describe),
        "inference": inference_status(cluster, describe),
        "load_probes": asdict(control_plane.load_probes.counts)
        | {"under_way": len(control_plane.load_probes.under_way)},
        "load_reports": {"malformed": cluster.reports.malformed},
        "panic": panic_status(cluster),
        "shared": shared_status(control_plane),
        "sticky": asdict(control_plane.sticky_counts) if control_plane.stickiness is not None else None,
        "endpoints": [endpoint_status(control_plane, state, describe) for state in cluster.router.states],
        "leaving": leaving_status(control_plane),
        "names": names_status(cluster),
        "route_watch": watch_status(cluster),
        "events": events_status(cluster),
        "discovery": [
            {
                "source": source.source,
                "endpoints": len(control_plane.registry.named(source.source)),
                "problem": source.problem,
            }
            for source in control_plane.discovery.sources
        ],
    }


def listeners_status(control_plane: ControlPlane) -> list[dict[str, Any]]:
    """Return the addresses for traffic, first that of `listen`, and where the requests of each go."""
    config = control_plane.config
    found = []
    for name, address in control_plane.cluster.process.addresses.items():
        listener = config.settings.listeners.get(name)
        route = own_route(listener) if name else None
        found.append(
            {
                "name": name or DEFAULT,
                "url": url_of(address, is_tls=name in config.server_tls),
                "target": "routes" if route is None else route.target,
            }
        )
    return found


def shared_status(control_plane: ControlPlane) -> dict[str, Any] | None:
    """Return the store shared with other units and what they report; None if nothing is shared."""
    shared, limits = control_plane.shared, control_plane.shared_limits
    status = None if shared is None else shared.status()
    if status is not None and limits is not None and limits.problem is not None:
        status |= {"connected": False, "problem": status["problem"] or f"rate limits: {limits.problem}"}
    return status


def leaving_status(control_plane: ControlPlane) -> list[dict[str, Any]]:
    """Return removed endpoints that still have requests in flight."""
    return [
        {"id": state.id, "address": state.endpoint.address, "in_flight": state.in_flight_here}
        for state in control_plane.cluster.router.leaving
    ]


def log_status(cluster: Cluster) -> dict[str, int] | None:
    """Return the entries of the access log, by result; None if it is off."""
    log = cluster.process.access_log
    return {"waiting": log.waiting, **asdict(log.counts)} if log is not None else None


def tracing_status(cluster: Cluster) -> dict[str, Any] | None:
    """Return the spans by result, and whether the last export succeeded; None if none are exported."""
    spans = cluster.process.tracing.spans if cluster.process.tracing is not None else None
    if spans is None:
        return None
    return {"waiting": spans.waiting, **asdict(spans.counts), "exporting": spans.is_good}


def hedging_status(cluster: Cluster) -> dict[str, Any] | None:
    """Return hedged requests and the reasons against other hedges; None if hedging is off."""
    if cluster.hedges is None:
        return None
    hedging = cluster.hedges.hedging
    return {
        "hedged": cluster.counts.hedged,
        "won": cluster.counts.hedges_won,
        "denied": hedging.denied,
        "withheld": hedging.withheld,
        "late_after": hedging.usual,
        "losers": len(cluster.hedges.losers),
    }


def reload_status(control_plane: ControlPlane) -> dict[str, Any]:
    """Return the number of reloads, the problem of the last one, and the keys that take effect only at the next
    start.
    """
    return asdict(control_plane.reload_counts)


def panic_status(cluster: Cluster) -> dict[str, Any]:
    """Return where panic mode is active, how often it began, and the requests routed in it."""
    panic = cluster.router.health.panic
    return {
        "everywhere": panic.is_everywhere,
        "regions": sorted(panic.regions),
        "times": panic.times,
        "requests": panic.requests(cluster.router.routed),
    }


def ejection_status(cluster: Cluster, state: EndpointState) -> dict[str, Any]:
    """Return whether outlier detection has ejected the endpoint, the seconds left, the last cause, and the count."""
    record = state.record
    left = None if record.until is None else round(max(0.0, record.until - cluster.now()), 3)
    cause = None if record.cause is None else record.cause.value
    return {"ejected": state.is_ejected, "seconds_left": left, "cause": cause, "times": record.count}


def checks_status(control_plane: ControlPlane, state: EndpointState) -> dict[str, Any]:
    """Return the active checks since the start, and the fault of the last failed one."""
    check = control_plane.checks.by_id.get(state.id)
    if check is None:
        return {"passed": 0, "failed": 0, "last_fault": None}
    found = check.state
    return {"passed": found.passed, "failed": found.failed, "last_fault": found.last_fault}


def endpoint_facts(control_plane: ControlPlane, state: EndpointState) -> dict[str, Any]:
    """Return what status and live page have in common: identity, admin state, health, load, outcomes. `share` is less
    than 1 during a slow start.
    """
    cluster, endpoint = control_plane.cluster, state.endpoint
    return {
        "id": endpoint.id,
        "address": endpoint.address,
        "region": endpoint.region,
        "weight": endpoint.weight,
        "max_in_flight": endpoint.max_in_flight,
        "state": state.admin_state.value,
        **endpoint_condition(control_plane, state),
        "available": state.available,
        "healthy": state.passes_checks,
        "reachable": state.is_reachable and not state.record.is_unreachable,
        "share": round(state.share, 3),
        "ejection": ejection_status(cluster, state),
        "rests_for": round(max(0.0, cluster.rests.until.get(state.id, 0.0) - cluster.now()), 3),
        "in_flight": state.in_flight_here,
        "limit": int(state.limit) if state.limit < inf else None,
        "outcomes": {kind.value: number for kind, number in state.outcomes.items()},
    }


def endpoint_status(
    control_plane: ControlPlane, state: EndpointState, describe: Describe = summary
) -> dict[str, Any]:
    """Return one endpoint: its facts, connections, and latency of successes."""
    cluster, endpoint = control_plane.cluster, state.endpoint
    pool, now = cluster.pools.by_id[state.id], cluster.now()
    return endpoint_facts(control_plane, state) | {
        "host": endpoint.host.decode() or CLIENT,
        "transport": pool.transport,
        "priority": endpoint.priority,
        "source": control_plane.registry.member(endpoint.id).source,
        "concurrency": concurrency_status(state),
        "checks": checks_status(control_plane, state),
        "connections": connections_status(pool, now),
        "route": route_status(pool.route),
        "latency": describe(state.histogram),
        "load_report_age": round(now - state.reported_at, 3) if state.reported_at > -inf else None,
    }


def latency_status(control_plane: ControlPlane) -> dict[str, Any]:
    """Return /-/latency: integer counts since the start, which only grow.

    Bucket 0 holds latencies up to `shortest` seconds; the upper bound of each further bucket is `ratio` times the one
    before, and the last bucket has all longer ones. A request that failed is in one of `errors`, `worker_errors` and
    `abandoned`; `outcomes` are those of attempts, retried ones included.
    """
    cluster = control_plane.cluster
    clusters = [{"name": name, **latency_status(plane)} for name, plane in control_plane.named.items()]
    return ({"clusters": clusters} if clusters else {}) | {
        "shortest": SHORTEST,
        "ratio": RATIO,
        "requests": cluster.counts.requests,
        "errors": dict(cluster.counts.errors),
        "worker_errors": cluster.counts.worker_errors,
        "abandoned": cluster.counts.abandoned,
        "policy": policy_status(control_plane, raw),
        "endpoints": [
            {
                "id": state.id,
                "buckets": state.histogram.counts,
                "outcomes": {kind.value: number for kind, number in state.outcomes.items()},
            }
            for state in cluster.router.states
        ],
    }
