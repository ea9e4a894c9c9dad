"""HTTP/2 and gRPC, buffering, rate limits, wait queue, shedding and concurrency limits in status and metrics.

Every value is read at request time; the data path must not count anything for this module alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import TYPE_CHECKING, Any

from prometheus_client.core import Metric

from balancer.cluster.cluster import Cluster
from balancer.control.admin.families import OF_ENDPOINT, attributes, counter, gauge, of_each
from balancer.http.grpc.status import NAMES
from balancer.http.h1.client import HTTP2
from balancer.rate_limits.configured import RateLimits
from policies.endpoint.state import EndpointState

if TYPE_CHECKING:
    from balancer.control.control_plane import ControlPlane


def http2_status(cluster: Cluster) -> dict[str, int]:
    """Return the open connections and streams, and the totals since the start."""
    counts = cluster.process.counts
    clients = [each for each in cluster.process.downstreams if each.client.version == HTTP2]
    return {
        "clients": len(clients),
        "streams": sum(each.answering for each in clients),
        "connections": counts.http2_connections,
        "requests": counts.http2_streams,
        "resets": counts.http2_resets,
        "floods": counts.http2_floods,
        "violations": counts.http2_violations,
    }


def grpc_status(cluster: Cluster) -> dict[str, int]:
    """Return the RPCs of gRPC that have got a status, by its name."""
    return {NAMES[code]: number for code, number in enumerate(cluster.counts.rpcs) if number}


def http2_families(cluster: Cluster) -> Iterator[Metric]:
    """Yield the same as metrics."""
    status = http2_status(cluster)
    yield gauge("steelyard_http2_clients", "Client connections in HTTP/2 open", status["clients"])
    yield gauge("steelyard_http2_streams", "Requests open on them", status["streams"])
    yield counter("steelyard_http2_connections", "Connections in HTTP/2", status["connections"])
    yield counter("steelyard_http2_requests", "Requests received in HTTP/2", status["requests"])
    yield counter("steelyard_http2_resets", "Requests that clients have reset", status["resets"])
    ended = [("flood", status["floods"]), ("violation", status["violations"])]
    yield counter("steelyard_http2_ended", "Connections ended by the balancer", ended, "reason")
    rpcs = grpc_status(cluster).items()
    yield counter("steelyard_grpc_responses", "RPCs of gRPC by status", rpcs, "status")


def buffering_status(control_plane: ControlPlane) -> dict[str, int] | None:
    """Return the bytes kept for slow clients, their bound, and counts of bodies; None while no cluster is buffered."""
    every = (control_plane, *control_plane.named.values())
    if all(one.cluster.buffering is None for one in every):
        return None
    budget = control_plane.cluster.process.buffer_budget
    names = ("requests", "responses", "requests_streamed", "responses_streamed")
    return {"kept": budget.kept, "limit": budget.total, **dict(attributes(budget, *names))}


def buffering_families(control_plane: ControlPlane) -> Iterator[Metric]:
    """Yield the metrics of buffering; none while it is off."""
    status = buffering_status(control_plane)
    if status is None:
        return
    yield gauge("steelyard_buffered_bytes", "Bytes kept for slow clients", status["kept"])
    yield gauge("steelyard_buffered_bytes_limit", "Bytes that may be kept", status["limit"])
    kept = [(body, status[f"{body}s"]) for body in ("request", "response")]
    yield counter("steelyard_buffered", "Bodies kept whole for slow clients", kept, "body")
    streamed = [(body, status[f"{body}s_streamed"]) for body in ("request", "response")]
    yield counter("steelyard_buffering_refused", "Bodies streamed because of the bound", streamed, "body")


def rate_limits_status(limits: RateLimits) -> list[dict[str, Any]]:
    """Return the requests under each limit: admitted, refused, buckets given away for it, and
    what other units have admitted."""
    names = ("passed", "denied", "given_away", "elsewhere")
    return [{"name": name, **dict(attributes(limit, *names))} for name, limit in limits.by_name.items()]


def rate_limit_families(limits: RateLimits) -> Iterator[Metric]:
    """Yield the requests under each limit, by result; nothing without limits."""
    if not limits.by_name:
        return
    requests = [
        (name, result, getattr(limit, result))
        for name, limit in limits.by_name.items()
        for result in ("passed", "denied", *(["elsewhere"] if limit.config.shared else []))
    ]
    text = "Requests under a rate limit, by result"
    yield counter("steelyard_rate_limit_requests", text, requests, "limit", "result")
    given_away = [(name, limit.given_away) for name, limit in limits.by_name.items()]
    text = "Buckets not yet full that lost their place"
    yield counter("steelyard_rate_limit_given_away", text, given_away, "limit")


def queue_status(cluster: Cluster) -> dict[str, Any]:
    """Return the wait queue and its outcomes. Durations are in seconds, `pace` in turns per second."""
    queue, now = cluster.queue, cluster.now()
    tickets = queue.tickets
    return {
        "length": len(tickets),
        "limit": tickets.limit,
        "oldest": round(tickets.oldest_wait(now), 3),
        "order": "adaptive" if tickets.is_adaptive else "fifo",
        "pace": round(tickets.pace.read(now), 3),
        "joined": queue.joined,
        "served": queue.served,
        "left": queue.left,
        "dropped": dict(queue.dropped),
    }


def level_status(cluster: Cluster) -> list[dict[str, Any]] | None:
    """Return the priority levels, the highest first; None with fewer than two levels."""
    admission, tickets = cluster.admission, cluster.queue.tickets
    if admission is None or len(admission.rules.levels) < 2:
        return None
    return [
        {"name": level.name, "waiting": tickets.waiting(number), "shed": cluster.queue.shed[number]}
        for number, level in enumerate(admission.rules.levels)
    ]


def concurrency_status(state: EndpointState) -> dict[str, Any] | None:
    """Return an endpoint's adaptive concurrency limit and its reference latencies; None if it has none."""
    found = state.concurrency
    if found is None:
        return None
    return {"limit": state.limit, "usual_latency": _seconds(found.long), "latency": _seconds(found.short)}


def _seconds(latency: float) -> float | None:
    return round(latency, 6) if latency < inf else None


def queue_families(cluster: Cluster) -> Iterator[Metric]:
    """Yield the metrics of the queue, the levels and the endpoints' limits."""
    queue = cluster.queue
    yield gauge("steelyard_queued", "Requests waiting for an endpoint", len(queue))
    oldest = queue.tickets.oldest_wait(cluster.now())
    yield gauge("steelyard_queue_oldest_seconds", "Longest wait of the queued requests", oldest)
    yield counter("steelyard_queue_joined", "Requests that had to wait", queue.joined)
    yield counter("steelyard_queue_served", "Requests sent to an endpoint after a wait", queue.served)
    yield counter("steelyard_queue_left", "Requests whose client left the queue", queue.left)
    dropped = queue.dropped.items()
    yield counter(
        "steelyard_queue_dropped", "Requests rejected from the queue or before it", dropped, "reason"
    )
    levels = level_status(cluster) or []
    waiting = [(level["name"], level["waiting"]) for level in levels]
    yield gauge("steelyard_level_waiting", "Requests waiting, by level", waiting, "level")
    shed = [(level["name"], level["shed"]) for level in levels]
    yield counter("steelyard_shed", "Requests refused, by level", shed, "level")
    limits = of_each(
        (state for state in cluster.router.states if state.limit < inf), lambda state: state.limit
    )
    yield gauge(
        "steelyard_endpoint_limit", "Requests it may hold, where that is limited", limits, *OF_ENDPOINT
    )
