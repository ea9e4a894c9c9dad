"""Buffering in status and metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from balancer.control.control_plane import ControlPlane

PREFIX = "steelyard"


def buffering_status(control_plane: ControlPlane) -> dict[str, int] | None:
    """Return the bytes kept for slow clients, their bound, and counts of bodies; None while no cluster is buffered."""
    every = (control_plane, *control_plane.named.values())
    if all(one.cluster.buffering is None for one in every):
        return None
    budget = control_plane.cluster.process.buffer_budget
    return {
        "kept": budget.kept,
        "limit": budget.total,
        "requests": budget.requests,
        "responses": budget.responses,
        "requests_streamed": budget.requests_streamed,
        "responses_streamed": budget.responses_streamed,
    }


def buffering_families(control_plane: ControlPlane) -> Iterator[Metric]:
    """Yield the metrics of buffering; none while it is off."""
    status = buffering_status(control_plane)
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
