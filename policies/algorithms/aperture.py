"""Deterministic aperture: power of two choices within a subset of endpoints, one subset per balancer.

Endpoints lie on a circle in an order that all balancers compute alike, each as wide as its weight, and each balancer
uses a window of it. The windows begin at equal distances and their widths are whole multiples of that distance, so that
they cover each place equally often and the load is even without coordination among the balancers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import ceil
from random import Random
from typing import Annotated

from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.errors import BadPolicyOption
from policies.facts import RequestFacts
from policies.insight.explanation import Trace
from policies.options import at_least
from policies.selection import hashing
from policies.selection.two_choices import FAILING, LESS_LOADED, TIE, less_loaded_of_two

MIN_WIDTH = 12
"""Least number of endpoints in a window. Finagle's default: enough for two choices, even if some fail."""

OUTSIDE = "outside-window"
"""Reason: no endpoint of the window is available; the reason for the pick among all follows."""


class Aperture:
    """Deterministic aperture: the less loaded of two in a window of endpoints, a different one per balancer.

    So each balancer has fewer connections, and more of them are in use: with 100 endpoints and 10 balancers 200, not
    1000. Finagle's deterministic aperture (Twitter, 2019). `balancers` is their number, `index` the position of this
    one, from 0; sibling processes divide the position among them. With one balancer of one process the window contains
    all endpoints. An endpoint at the edge of the window gets from here only the share that lies within.

    An unavailable endpoint is replaced by the next one beyond the window.
    """

    trace: Trace | None = None

    def __init__(
        self,
        rng: Random,
        *,
        width: Annotated[int, "least number of endpoints in the aperture", at_least(1)] = MIN_WIDTH,
        balancers: Annotated[int, "number of balancers that share the endpoints", at_least(1)] = 1,
        index: Annotated[int, "index of this balancer among them, less than balancers", at_least(0)] = 0,
    ) -> None:
        self._random = rng.random
        self._width_at_least = width
        self._balancers = balancers
        if index >= balancers:
            raise BadPolicyOption(
                "index", f"must be from 0 to {balancers - 1}, one less than balancers, got {index}"
            )
        self._index = index
        self._ring: list[EndpointState] = []
        self._edges: list[float] = []
        self._window: list[tuple[EndpointState, float]] = []
        self._chances: list[float] = []
        self._offered = -1  # number of available endpoints when the window was computed

    @property
    def window(self) -> Sequence[EndpointState]:
        """The endpoints that this balancer sends to."""
        return [state for state, _ in self._window]

    def members_changed(self, states: Sequence[EndpointState], now: float) -> None:
        """Place the endpoints on the circle, in the order of their hashes."""
        self._ring = sorted(states, key=lambda state: (hashing.of_name(state.id), state.id))
        self._edges = list(accumulate((state.endpoint.weight for state in self._ring), initial=0.0))
        self._offered = -1

    def tick(self, now: float) -> None:
        """Recompute the window at the next pick: one endpoint may have returned as another became unavailable."""
        self._offered = -1

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick an endpoint in O(log window), and O(window) after an availability change."""
        if self._offered < 0 or (len(available) != self._offered and not facts.tried):
            self._compute_window(len(available))
        chances, window = self._chances, self._window
        if len(window) < 2 or facts.tried:
            return self._without_chances(facts, available, now)
        last = len(chances) - 1
        everything = chances[last]
        first = bisect_right(chances, self._random() * everything, 0, last)
        before = chances[first - 1] if first else 0.0
        its = chances[first] - before
        at = self._random() * (everything - its)  # without replacement: the first one's part is left out
        second = bisect_right(chances, at if at < before else at + its, 0, last)
        one, other = window[first], window[second]
        if first == second or not (one[0].is_selectable and other[0].is_selectable):
            self._offered = -1
            return self._without_chances(facts, available, now)
        mine, others = _load(one, now), _load(other, now)
        if self.trace is not None:
            self.trace.note(TIE if mine == others else LESS_LOADED, (one[0], other[0]), (mine, others))
        return other[0] if others < mine else one[0]

    def _without_chances(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick for a retry, or just after an endpoint became unavailable: two of the window's, else of all."""
        able = [state for state, _ in self._window if state.is_selectable and state.id not in facts.tried]
        if not able and self.trace is not None:
            self.trace.note(OUTSIDE)
        return less_loaded_of_two(able or available, self._random, now, self.trace)

    def _compute_window(self, offered: int) -> None:
        """Compute the window, from this balancer's position on, until its width is covered."""
        self._offered = offered
        ring, edges = self._ring, self._edges
        begins_at, width = self._place()
        self._window = []
        at = bisect_right(edges, begins_at) - 1
        negligible = 1e-9 * edges[-1]
        for step in range(len(ring)):
            state = ring[(at + step) % len(ring)]
            part = state.endpoint.weight if step else edges[at + 1] - begins_at
            if state.is_selectable and part > negligible:
                self._window.append((state, min(part, width) / state.endpoint.weight))
                width -= part
            if width <= negligible:
                break
        else:  # the window covers the whole circle: every endpoint has its full weight
            self._window = [(state, 1.0) for state in ring if state.is_selectable]
        self._chances = list(accumulate(state.endpoint.weight * part for state, part in self._window))

    def _place(self) -> tuple[float, float]:
        """Return the start and the width of the window, in weight."""
        state = self._ring[0]
        balancers = self._balancers * state.parts
        index = self._index * state.parts + state.part
        whole = self._edges[-1]
        steps = min(balancers, ceil(self._width_at_least / len(self._ring) * balancers - 1e-9))
        return index / balancers * whole, steps / balancers * whole


def _load(pair: tuple[EndpointState, float], now: float) -> float:
    """Return the relative load: in flight plus failure penalty, per weight that lies within the window."""
    state, part = pair
    return (state.in_flight + FAILING * state.failure_penalty(now)) / (state.weight * part)
