"""What a policy remembers of each endpoint.

Rule of this file: it follows the members. Who comes gets a fresh page, who leaves loses its own, and what was learned
at one place is not so at another: a new address or region is a new endpoint, whatever its id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from policies.routing.endpoint_state import EndpointState

Page = TypeVar("Page")


class PerEndpoint(dict[EndpointState, Page]):
    """State -> page. Whoever is unknown is so until `follow` tells of it, or a policy asks for its page."""

    def __init__(self, fresh: Callable[[], Page]) -> None:
        super().__init__()
        self._fresh = fresh
        self._places: dict[EndpointState, tuple[str, str]] = {}

    def __missing__(self, state: EndpointState) -> Page:
        page = self[state] = self._fresh()
        self._places[state] = _place(state)
        return page

    def follow(self, states: Sequence[EndpointState]) -> None:
        """These are the members now."""
        kept = {state: self[state] for state in states if self._places.get(state) == _place(state)}
        self.clear()
        self.update(kept)
        self._places = {state: _place(state) for state in kept}
        for state in states:
            self[state]  # a fresh one for who has none


def _place(state: EndpointState) -> tuple[str, str]:
    return state.endpoint.address, state.region
