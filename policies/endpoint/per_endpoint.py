"""A dictionary of per-endpoint data that follows changes of the endpoint set.

An added endpoint gets fresh data and a removed one loses it. So does one with a new address or region: what was learned
at the old location does not apply, whatever its id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from policies.endpoint.state import EndpointState

Page = TypeVar("Page")


class PerEndpoint(dict[EndpointState, Page]):
    """State -> data, created on first access or by `members_changed`."""

    def __init__(self, fresh: Callable[[], Page]) -> None:
        super().__init__()
        self._fresh = fresh
        self._places: dict[EndpointState, tuple[str, str]] = {}

    def __missing__(self, state: EndpointState) -> Page:
        page = self[state] = self._fresh()
        self._places[state] = _place(state)
        return page

    def members_changed(self, states: Sequence[EndpointState], now: float) -> None:
        """Keep exactly the data of `states`; also the hook of a policy that has nothing else to do then."""
        kept = {state: self[state] for state in states if self._places.get(state) == _place(state)}
        self.clear()
        self.update(kept)
        self._places = {state: _place(state) for state in kept}
        for state in states:
            self[state]  # creates the data of a new one


def _place(state: EndpointState) -> tuple[str, str]:
    return state.endpoint.address, state.region
