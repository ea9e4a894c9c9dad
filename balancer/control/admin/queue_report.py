"""Wait queue, shedding and concurrency limits in status and metrics.

Every value is read at request time; the data path must not count anything for this module alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any

from prometheus_client.core import Metric

from balancer.cluster.cluster import Cluster
from balancer.control.admin.families import OF_ENDPOINT, counter, gauge, of_each
from policies.endpoint.state import EndpointState


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
