"""HTTP/2 from clients, and gRPC, in status and metrics; every value is read at request time."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from balancer.cluster.cluster import Cluster
from balancer.http.grpc.status import NAMES
from balancer.http.h1.client import HTTP2

PREFIX = "steelyard_http2"


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
    yield GaugeMetricFamily(f"{PREFIX}_clients", "Client connections in HTTP/2 open", status["clients"])
    yield GaugeMetricFamily(f"{PREFIX}_streams", "Requests open on them", status["streams"])
    yield CounterMetricFamily(f"{PREFIX}_connections", "Connections in HTTP/2", status["connections"])
    yield CounterMetricFamily(f"{PREFIX}_requests", "Requests received in HTTP/2", status["requests"])
    yield CounterMetricFamily(f"{PREFIX}_resets", "Requests that clients have reset", status["resets"])
    ended = CounterMetricFamily(f"{PREFIX}_ended", "Connections ended by the balancer", labels=["reason"])
    ended.add_metric(["flood"], status["floods"])
    ended.add_metric(["violation"], status["violations"])
    yield ended
    rpcs = CounterMetricFamily("steelyard_grpc_responses", "RPCs of gRPC by status", labels=["status"])
    for name, number in grpc_status(cluster).items():
        rpcs.add_metric([name], number)
    yield rpcs
