"""HTTP/2 and gRPC, buffering and rate limits in status and metrics; every value is read at request time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client.core import Metric

from balancer.cluster.cluster import Cluster
from balancer.control.admin.families import attributes, counter, gauge
from balancer.http.grpc.status import NAMES
from balancer.http.h1.client import HTTP2
from balancer.rate_limits.configured import RateLimits

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
