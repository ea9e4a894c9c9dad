"""Exchange of in-flight counts and latencies between sibling processes, for this process's router.

This module only copies numbers between the shared counters and the endpoint states; it makes no decisions. Requests in
flight elsewhere are read before a pick if the last read is too old; latencies at every sweep, because they are means
over seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from balancer.sharing.shared_counters import SharedCounters, key_of
from policies.endpoint.state import EndpointState
from policies.routing.router import Router
from policies.stats.latency import TAU
from policies.stats.shared_latency import SharedLatency, pooled

PICKS = 1 / 8
"""Own picks per endpoint between two reads. A read costs time proportional to the endpoints, so per pick it costs 0.8
µs however many there are. Simulated: 10 endpoints that serve one request at a time, 90 % busy, P2C; mean latency in
service times, by the requests that an endpoint gets from all processes between two reads:

    requests               0     0.1   0.2   0.5   1.8   9     22    blind   one process
    2 processes            3.17  3.18  3.18  3.25  3.36  3.87  4.62  3.51    3.20
    4 processes            3.15  3.14  3.18  3.23  3.49  4.81  8.28  3.88    3.20

So a read is useful while it is fresher than two requests; one older than nine causes herding.
"""

MIN_INTERVAL_S = 1e-3
"""Shortest interval of reads in seconds."""

PER_ENDPOINT, LONGEST = 0.2e-3, 0.25
"""Longest interval of reads in seconds, per endpoint and in total, at any request rate."""

SLICE = 100
"""Endpoints whose latency is pooled in one sweep: 15 µs each, so that a sweep delays requests by the time of a few."""


class Siblings:
    """Updates the states of `router` from the other pages of `board`, and writes page `index`.

    Each process has its share of an endpoint's `max_in_flight`. `cluster` is the name of the cluster.
    """

    def __init__(
        self, router: Router, board: SharedCounters, index: int, say: Callable[[str], None], cluster: str = ""
    ) -> None:
        self._cluster = cluster
        self._router = router
        self._say = say
        self._index, self._of = index, len(board.pages)
        self._page = board.pages[index]
        self._others = [page for at, page in enumerate(board.pages) if at != index]
        self._generations: list[int] = []
        self._rows: list[dict[int, int]] = []
        self._keys: dict[str, int] = {}
        self._states: Sequence[EndpointState] = []
        self._sources: list[tuple[EndpointState, list[tuple[memoryview, int]]]] = []
        self._is_full = False
        self._next = 0  # index of the next state whose latency is pooled
        self._looked_at = self._routed = 0.0
        self.apply()
        router.on_members = self.apply
        router.on_member = self.meet
        router.look = self.look
        router.look_at = 0.0

    def apply(self) -> None:
        """Update the rows after the router's endpoints changed: assign one to each new endpoint, free those of removed
        ones.
        """
        states = self._router.states
        members = set(map(id, states))
        for state in self._states:
            if id(state) not in members:
                if state.published is not None:
                    self._page.leave(state.published_at)
                state.stop_sharing()
        for state in states:
            self._take_part(state)
        self._keys = {state.id: self._keys[state.id] for state in states}
        self._states_changed()

    def meet(self, state: EndpointState) -> None:
        """Update the row of one endpoint that was added, removed or changed."""
        if not state.is_member:
            if state.published is not None:
                self._page.leave(state.published_at)
            state.stop_sharing()
            self._keys.pop(state.id, None)
        else:
            self._take_part(state)
        self._states_changed()

    def _take_part(self, state: EndpointState) -> None:
        key = self._keys.get(state.id)
        if key is None:
            key = self._keys[state.id] = key_of(state.id, self._cluster)
        if state.published is None:
            self._enter(state)
        state.set_process((self._index + key) % self._of, self._of)  # spreads the remainders

    def _states_changed(self) -> None:
        self._states = self._router.states
        self._generations = []
        self._longest = max(MIN_INTERVAL_S, min(LONGEST, PER_ENDPOINT * len(self._states)))

    def _enter(self, state: EndpointState) -> None:
        row = self._page.enter(self._keys[state.id])
        if row is not None:
            state.publish(self._page.in_flight, row)
        elif not self._is_full:
            self._is_full = True
            self._say(
                f"more than {self._page.capacity} endpoints: of the others each process sees its own "
                "requests alone"
            )

    def look(self, now: float) -> None:
        """Read the requests that sibling processes have in flight into the endpoint states."""
        self._router.look_at = now + self._period(now)
        generations = [page.generation for page in self._others]
        if generations != self._generations:
            self._find(generations)
        for state, sources in self._sources:
            elsewhere = 0
            for in_flight, row in sources:
                elsewhere += in_flight[row]
            state.update_elsewhere(elsewhere, now)

    def _period(self, now: float) -> float:
        """Return the seconds until the next read, if the request rate stays as since the last one."""
        routed = self._router.routed
        picks, passed = routed - self._routed, now - self._looked_at
        self._routed, self._looked_at = routed, now
        if not picks:
            return self._longest
        return max(MIN_INTERVAL_S, min(self._longest, passed * PICKS * len(self._states) / picks))

    def _find(self, generations: list[int]) -> None:
        """Look up the rows of each endpoint in each page again after rows were reassigned."""
        self._generations = generations
        self._rows = [page.rows() for page in self._others]
        self._sources = [(state, self._places(self._keys[state.id])) for state in self._states]

    def _places(self, key: int) -> list[tuple[memoryview, int]]:
        pairs = zip(self._others, self._rows, strict=True)
        return [(page.in_flight, rows[key]) for page, rows in pairs if key in rows]

    def sweep(self, now: float) -> None:
        """Publish own latencies and pool them with those of the siblings, for `SLICE` endpoints at a time."""
        self.look(now)
        if self._next >= len(self._states):
            self._next = 0
        for state in self._states[self._next : self._next + SLICE]:
            if state.published is not None:
                self._page.tell(state.published_at, state.latency.own())
            state.pool_latency(state.siblings, pooled(self._told(self._keys[state.id]), TAU))
        self._next += SLICE

    def _told(self, key: int) -> list[SharedLatency]:
        pairs = zip(self._others, self._rows, strict=True)
        return [page.latency_of(rows[key]) for page, rows in pairs if key in rows]
