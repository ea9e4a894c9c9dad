"""Rate limits in status and metrics; every value is read at request time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, Metric

if TYPE_CHECKING:
    from balancer.rate_limits.configured import RateLimits

PREFIX = "steelyard"


def rate_limits_status(limits: RateLimits) -> list[dict[str, Any]]:
    """Return the requests under each limit: admitted, refused, and those of them for whose bucket there was no room."""
    return [
        {"name": name, "passed": limit.passed, "denied": limit.denied, "no_room": limit.no_room}
        for name, limit in limits.by_name.items()
    ]


def rate_limit_families(limits: RateLimits) -> Iterator[Metric]:
    """Yield the requests under each limit, by result; nothing without limits."""
    if not limits.by_name:
        return
    requests = CounterMetricFamily(
        f"{PREFIX}_rate_limit_requests", "Requests under a rate limit, by result", labels=["limit", "result"]
    )
    no_room = CounterMetricFamily(
        f"{PREFIX}_rate_limit_no_room", "Requests denied because all buckets were in use", labels=["limit"]
    )
    for name, limit in limits.by_name.items():
        requests.add_metric([name, "passed"], limit.passed)
        requests.add_metric([name, "denied"], limit.denied)
        no_room.add_metric([name], limit.no_room)
    yield from (requests, no_room)
