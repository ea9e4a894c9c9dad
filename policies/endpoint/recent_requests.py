"""Requests per endpoint in the last second.

Two counters per endpoint and no timer. The count of the previous second decays linearly during the present one, which
is within a request or two of a sliding window and costs two comparisons.
"""

from __future__ import annotations

from policies.endpoint.per_endpoint import PerEndpoint
from policies.endpoint.state import EndpointState


class Count:
    """Requests of the second that began at `since`, and of the one before."""

    __slots__ = ("before", "here", "since")

    def __init__(self) -> None:
        self.since = -1.0
        self.here = self.before = 0

    def turn(self, now: float) -> None:
        """Shift the counters if another second has begun."""
        age = now - self.since
        if age >= 1.0:
            self.before = self.here if age < 2.0 else 0
            self.here = 0
            self.since = now if age >= 2.0 else self.since + 1.0


class RecentRequests:
    """Picks in the last second, by endpoint."""

    def __init__(self) -> None:
        self._counts: PerEndpoint[Count] = PerEndpoint(Count)
        self.retain = self._counts.retain

    def count(self, state: EndpointState, now: float) -> None:
        """Count one pick of `state` at `now`."""
        count = self._counts[state]
        if now - count.since >= 1.0:
            count.turn(now)
        count.here += 1

    def of(self, state: EndpointState, now: float) -> float:
        """Return the requests in the last second, per unit of weight."""
        count = self._counts[state]
        if now - count.since >= 1.0:
            count.turn(now)
        return (count.here + count.before * (1.0 - (now - count.since))) / state.weight
