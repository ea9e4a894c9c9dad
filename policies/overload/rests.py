"""Rests: endpoints that have refused requests as busy are left out of picks for a while, where others are available.

A worker may state the time (Retry-After). It holds for the worker and not for one client, so a worker that limits
tenants is avoided and never excluded: where all rest, none does.
"""

from __future__ import annotations

from typing import Final

USUAL_REST: Final = 1.0
"""Seconds of a rest where the worker states none: one that refuses all requests gets one per second."""

LONGEST_REST: Final = 30.0
"""Seconds of a rest at most, whatever the worker states."""


class Rests:
    """Endpoints that rest, by id. Empty while nothing was refused, which is all that a request then asks."""

    def __init__(self) -> None:
        self.until: dict[str, float] = {}

    def begin(self, endpoint: str, stated: float | None, now: float) -> None:
        """Let an endpoint rest for the `stated` seconds. A rest that lasts longer goes on."""
        rest = USUAL_REST if stated is None else min(stated, LONGEST_REST)
        self.until[endpoint] = max(now + rest, self.until.get(endpoint, 0.0))

    def resting(self, now: float) -> frozenset[str]:
        """Return the ids of the endpoints that rest; forget those whose rest is over."""
        for endpoint in [one for one, until in self.until.items() if until <= now]:
            del self.until[endpoint]
        return frozenset(self.until)
