"""Rate limits in status and metrics; every value is read at request time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, Metric

from balancer.rate_limits.configured import RateLimits

PREFIX = "steelyard"


def rate_limits_status(limits: RateLimits) -> list[dict[str, Any]]:
    """Return the requests under each limit: admitted, refused, buckets given away for it, and
    what other units have admitted."""
    return [
        {
            "name": name,
            "passed": limit.passed,
            "denied": limit.denied,
            "given_away": limit.given_away,
            "elsewhere": limit.elsewhere,
        }
        for name, limit in limits.by_name.items()
    ]


def rate_limit_families(limits: RateLimits) -> Iterator[Metric]:
    """Yield the requests under each limit, by result; nothing without limits."""
    if not limits.by_name:
        return
    requests = CounterMetricFamily(
        f"{PREFIX}_rate_limit_requests", "Requests under a rate limit, by result", labels=["limit", "result"]
    )
    given_away = CounterMetricFamily(
        f"{PREFIX}_rate_limit_given_away", "Buckets not yet full that lost their place", labels=["limit"]
    )
    for name, limit in limits.by_name.items():
        requests.add_metric([name, "passed"], limit.passed)
        requests.add_metric([name, "denied"], limit.denied)
        if limit.config.shared:
            requests.add_metric([name, "elsewhere"], limit.elsewhere)
        given_away.add_metric([name], limit.given_away)
    yield from (requests, given_away)
