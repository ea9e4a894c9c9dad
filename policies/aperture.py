"""Deterministic aperture: two choices among a few endpoints, others for each balancer.

Rule of this file: endpoints lie on a circle in an order that all balancers know, each as wide as its weight, and each
balancer looks at a window of it. The windows begin at equal distances and are whole multiples of that distance wide,
so that they cover each place equally often and nobody is loaded more than others, though no balancer knows of
another.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import ceil
from random import Random

from policies import hashing
from policies.errors import BadPolicyOption
from policies.insight.explanation import Trace
from policies.options import at_least
from policies.routing.available import Available
from policies.routing.endpoint_state import EndpointState
from policies.routing.facts import RequestFacts
from policies.two_choices import FAILING, LESS_LOADED, TIE, less_loaded_of_two

LEAST = 12
"""Endpoints in a window at least. Finagle's default: enough for two choices to choose from, and for some to fail."""

OUTSIDE = "outside-window"
"""Nobody in the window is left; what follows is why whom was picked of all."""


class Aperture:
    """The less loaded of two in a window of `width` endpoints or more, another one for each of so many balancers.

    So each balancer has fewer connections, and warmer ones: with 100 endpoints and 10 balancers 200, not 1000.
    Finagle's deterministic aperture (Twitter, 2019). `balancers` is how many there are, `index` which of them, from
    0, this one is; several processes of a unit share its place among them. With one balancer that is one process the
    window is all there are. An endpoint of which the window has a part only gets that part of an endpoint's requests
    from here.

    Who is not available is made up for by the next ones beyond the window.
    """

    trace: Trace | None = None

    def __init__(self, rng: Random, *, width: int = LEAST, balancers: int = 1, index: int = 0) -> None:
        self._random = rng.random
        self._width_at_least = at_least(1, width=width)
        self._balancers = at_least(1, balancers=balancers)
        if not 0 <= index < balancers:
            raise BadPolicyOption(
                "index", f"must be from 0 to {balancers - 1}, one less than balancers, got {index}"
            )
        self._index = index
        self._ring: list[EndpointState] = []
        self._edges: list[float] = []
        self._window: list[tuple[EndpointState, float]] = []
        self._chances: list[float] = []
        self._offered = -1  # were available when the window was laid

    @property
    def window(self) -> Sequence[EndpointState]:
        """Whom this balancer sends to."""
        return [state for state, _ in self._window]

    def members_changed(self, states: Sequence[EndpointState], now: float) -> None:
        """Lay them on the circle, in the order of their hashes."""
        self._ring = sorted(states, key=lambda state: (hashing.of_name(state.id), state.id))
        self._edges = [0.0]
        for state in self._ring:
            self._edges.append(self._edges[-1] + state.endpoint.weight)
        self._offered = -1

    def tick(self, now: float) -> None:
        """Lay the window anew: somebody may have come back as another went."""
        self._offered = -1

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """O(log window), and O(window) after a flip."""
        if not facts.tried and len(available) != self._offered:
            self._lay_window(len(available))
        chances, window = self._chances, self._window
        if len(window) < 2:
            return self._without_chances(facts, available, now)
        last = len(chances) - 1
        everything = chances[last]
        first = bisect_right(chances, self._random() * everything, 0, last)
        before = chances[first - 1] if first else 0.0
        its = chances[first] - before
        at = self._random() * (everything - its)  # without replacement: the first one's part is left out
        second = bisect_right(chances, at if at < before else at + its, 0, last)
        one, other = window[first], window[second]
        if first == second or facts.tried or not (one[0].is_listed and other[0].is_listed):
            self._offered = -1
            return self._without_chances(facts, available, now)
        mine, others = _load(one, now), _load(other, now)
        if self.trace is not None:
            self.trace.note(TIE if mine == others else LESS_LOADED, (one[0], other[0]), (mine, others))
        return other[0] if others < mine else one[0]

    def _without_chances(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """A retry, or somebody has gone this very moment: two of those in the window who can take it, else of all."""
        able = [state for state, _ in self._window if state.is_listed and state.id not in facts.tried]
        if not able and self.trace is not None:
            self.trace.note(OUTSIDE)
        return less_loaded_of_two(able or available, self._random, now, self.trace)

    def _lay_window(self, offered: int) -> None:
        """From this balancer's place on, until as much is covered as its window is wide."""
        self._offered = offered
        ring, edges = self._ring, self._edges
        begins_at, width = self._place()
        self._window = []
        at = bisect_right(edges, begins_at) - 1
        negligible = 1e-9 * edges[-1]
        for step in range(len(ring)):
            state = ring[(at + step) % len(ring)]
            part = state.endpoint.weight if step else edges[at + 1] - begins_at
            if state.is_listed and part > negligible:
                self._window.append((state, min(part, width) / state.endpoint.weight))
                width -= part
            if width <= negligible:
                break
        else:  # round the circle: nobody is there in part only
            self._window = [(state, 1.0) for state in ring if state.is_listed]
        self._lay_chances()

    def _place(self) -> tuple[float, float]:
        """Where the window begins, and how wide it is, in weight."""
        state = self._ring[0]
        balancers = self._balancers * state.parts
        index = self._index * state.parts + state.part
        whole = self._edges[-1]
        steps = min(balancers, ceil(self._width_at_least / len(self._ring) * balancers - 1e-9))
        return index / balancers * whole, steps / balancers * whole

    def _lay_chances(self) -> None:
        self._chances = []
        total = 0.0
        for state, part in self._window:
            total += state.endpoint.weight * part
            self._chances.append(total)


def _load(pair: tuple[EndpointState, float], now: float) -> float:
    """What is in flight per weight that is ours, failures charged."""
    state, part = pair
    return (state.in_flight + FAILING * state.blame(now)) / (state.weight * part)
