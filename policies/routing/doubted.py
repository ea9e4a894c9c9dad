"""Endpoints that the policy begins to doubt: their round trip is measured anew, by a connection.

An endpoint that is farther away than it was, because a route has changed, seems slow: its open connections show no
handshake, and the policy sends it too little to need new ones.
"""

from __future__ import annotations

from policies.endpoint.state import EndpointState
from policies.routing.router import Router


class Doubted:
    """Endpoints that the router's policy doubted at the last look."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._before: set[str] = set()

    def look(self) -> list[EndpointState]:
        """Return the endpoints that the policy doubts now and did not doubt at the last look."""
        router, before = self._router, self._before
        if not router.has_doubts:
            return []
        doubted = [state for state in router.states if router.doubts(state)]
        self._before = {state.id for state in doubted}
        return [state for state in doubted if state.id not in before]
