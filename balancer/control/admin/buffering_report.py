"""Buffering in status and metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from balancer.exchange.cluster import Cluster

PREFIX = "steelyard"


def buffering_status(cluster: Cluster) -> dict[str, int] | None:
    """Return the bytes kept for slow clients, their bound, and counts of bodies; None while no pool is buffered."""
    if all(one.buffering is None for one in cluster.every):
        return None
    budget = cluster.buffer_budget
    return {
        "kept": budget.kept,
        "limit": budget.total,
        "requests": budget.requests,
        "responses": budget.responses,
        "requests_streamed": budget.requests_streamed,
        "responses_streamed": budget.responses_streamed,
    }


def buffering_families(cluster: Cluster) -> Iterator[Metric]:
    """Yield the metrics of buffering; none while it is off."""
    status = buffering_status(cluster)
    if status is None:
        return
    yield GaugeMetricFamily(f"{PREFIX}_buffered_bytes", "Bytes kept for slow clients", status["kept"])
    yield GaugeMetricFamily(f"{PREFIX}_buffered_bytes_limit", "Bytes that may be kept", status["limit"])
    kept = CounterMetricFamily(f"{PREFIX}_buffered", "Bodies kept whole for slow clients", labels=["body"])
    streamed = CounterMetricFamily(
        f"{PREFIX}_buffering_refused", "Bodies streamed because of the bound", labels=["body"]
    )
    for body in ("request", "response"):
        kept.add_metric([body], status[f"{body}s"])
        streamed.add_metric([body], status[f"{body}s_streamed"])
    yield from (kept, streamed)
