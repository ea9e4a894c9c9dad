"""The endpoints of a router, and which of them can take a request now.

A change of one endpoint costs what that one costs, so that adding n endpoints one by one is O(n log n): no method but
`replace`, `set_policy` and those that change rules looks at all states, unless there is panic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from policies.errors import DuplicateEndpoint, UnknownEndpoint, some_of
from policies.health.health import Health
from policies.overload.concurrency_limit import Concurrency, ConcurrencyRules
from policies.routing.available import Available
from policies.routing.endpoint_state import EndpointState
from policies.routing.facts import AdminState, Endpoint
from policies.stats.latency_prior import LatencyPrior


class EndpointSet:
    """The states of all endpoints, and the list of those that are available. The base of `Router`, which documents the
    attributes."""

    def __init__(
        self, now: Callable[[], float], fitness: Health, concurrency: ConcurrencyRules | None
    ) -> None:
        self._now = now
        self.fitness = fitness
        self._concurrency = concurrency
        self._by_id: dict[str, EndpointState] = {}
        self._states: list[EndpointState] = []  # the same; another list whenever they change
        self._next_order = 0
        self._has_news = False  # endpoints have changed, and the policy does not know
        self._available = Available()
        self._norms = LatencyPrior()
        self.routed = 0
        self.keeps_to_regions = False
        self.on_available: Callable[[], None] | None = None
        self.on_members: Callable[[], None] | None = None
        self.on_member: Callable[[EndpointState], None] | None = None

    def _announce(self) -> None:
        """Tell the policy who the endpoints are."""
        raise NotImplementedError

    @property
    def states(self) -> Sequence[EndpointState]:
        """All that are configured, in that order, then those that were added since. To be read, not changed."""
        return self._states

    @property
    def available(self) -> Available:
        """Those that can take a request now. To be read, not changed."""
        return self._available

    def find(self, endpoint_id: str) -> EndpointState:
        """The state of one endpoint. Raises UnknownEndpoint."""
        try:
            return self._by_id[endpoint_id]
        except KeyError:
            raise UnknownEndpoint(f"no endpoint '{endpoint_id}'; known: {some_of(self._by_id)}") from None

    def replace(self, endpoints: Iterable[Endpoint]) -> None:
        """Make `endpoints` the ones there are. Raises DuplicateEndpoint, and then changes nothing.

        Whoever keeps its id keeps its state; who is gone takes no more requests and settles those it has. Who is new
        starts slowly, where that is asked for.
        """
        self._replace(endpoints, warms=True)

    def put(self, endpoint: Endpoint) -> None:
        """Add `endpoint`, or change the one that has its id, as `replace` does. The policy is told before its next
        pick, of all changes until then at once.

        O(log n), unless there is panic, and O(regions) with a policy that keeps to regions.
        """
        state = self._by_id.get(endpoint.id)
        if state is None:
            state = EndpointState(endpoint, self._next_order, self._norms, self._fresh_concurrency())
            self._next_order += 1
            self._by_id[endpoint.id] = state
            self._states = [*self._states, state]
        else:
            self.fitness.withdraw(state)
            if state.is_listed and state.region != endpoint.region:
                state.is_listed = False
                self._available.leave(state)
            state.adopt(endpoint, state.order)
        self._member_changed(state)

    def drop(self, endpoint_id: str) -> None:
        """Remove one endpoint, as `replace` does; the same cost as `put`. Raises UnknownEndpoint."""
        state = self.find(endpoint_id)
        self.fitness.withdraw(state)
        del self._by_id[endpoint_id]
        self._states = list(self._by_id.values())
        state.is_member = False
        self._member_changed(state)

    def _member_changed(self, state: EndpointState) -> None:
        """`state` has come, gone, or is another than before; it is withdrawn from `fitness`, or was never there."""
        self._norms.states = self._states
        self._has_news = True
        if self.on_member is not None:
            self.on_member(state)
        self._enter(state)

    def _enter(self, state: EndpointState) -> None:
        """Undo `fitness.withdraw`, and bring the list in line with what `state` is now."""
        keeps = self.keeps_to_regions
        has_changed_others = self.fitness.enter(
            self._states, state, self._now(), self.routed, keeps_to_regions=keeps
        )
        if self.fitness.slow_start:
            self._has_news = True
        if has_changed_others and state.is_member:
            self._refresh_all()
            return
        self._refresh(state)
        if has_changed_others:
            self._refresh_all()

    def _replace(self, endpoints: Iterable[Endpoint], *, warms: bool) -> None:
        wanted: dict[str, Endpoint] = {}
        for endpoint in endpoints:
            if endpoint.id in wanted:
                raise DuplicateEndpoint(f"two endpoints have the id '{endpoint.id}'")
            wanted[endpoint.id] = endpoint
        for state in self._by_id.values():
            state.is_member = state.id in wanted
            state.is_sound = state.is_sound and state.is_member
            state.is_fit = state.is_fit and state.is_member
        self._by_id = {e.id: self._state_of(e, order) for order, e in enumerate(wanted.values())}
        self._states = list(self._by_id.values())
        self._next_order = len(self._states)
        self._norms.states = self._states
        if self.on_members is not None:
            self.on_members()
        self._weigh_up(warms=warms)
        self._relist()

    def _state_of(self, endpoint: Endpoint, order: int) -> EndpointState:
        state = self._by_id.get(endpoint.id)
        if state is None:
            return EndpointState(endpoint, order, self._norms, self._fresh_concurrency())
        state.adopt(endpoint, order)
        return state

    def _relist(self) -> None:
        was_empty = not self._available
        for state in self._available:
            state.is_listed = False
        self._available = Available(state for state in self._by_id.values() if state.available)
        for state in self._available:
            state.is_listed = True
        self._announce()
        if was_empty and self._available and self.on_available is not None:
            self.on_available()

    def set_healthy(self, endpoint_id: str, is_healthy: bool, *, is_reachable: bool = True) -> None:
        """What checks have found, and whether they could ask at all. Raises UnknownEndpoint."""
        state = self.find(endpoint_id)
        if is_healthy and not state.healthy:
            state.returned()
        state.healthy = is_healthy
        state.is_reachable = is_healthy or is_reachable
        self._reconsider(state)

    def set_standing(self, endpoint_id: str, standing: AdminState) -> None:
        """What the operator wants; who is not up takes no more requests and ends those it has. Raises
        UnknownEndpoint."""
        state = self.find(endpoint_id)
        self.fitness.withdraw(state)
        state.standing = standing
        self._enter(state)

    def set_enabled(self, endpoint_id: str, is_enabled: bool) -> None:
        """Up, or draining. Raises UnknownEndpoint."""
        self.set_standing(endpoint_id, AdminState.UP if is_enabled else AdminState.DRAINING)

    def readmit(self, endpoint_id: str) -> None:
        """A connection was made: who was ejected for want of one may come back. Raises UnknownEndpoint."""
        state = self.find(endpoint_id)
        if self.fitness.readmit(state, self._now()):
            self._reconsider(state)

    def use_fitness(self, fitness: Health) -> None:
        """Judge by the rules of `fitness` from now on; what is known of the endpoints stays."""
        self.fitness.follow(fitness)
        self._judge()

    def use_concurrency(self, rules: ConcurrencyRules | None) -> None:
        """Find out by these how many requests each endpoint can have; None: no more. By other rules all begin anew."""
        if rules == self._concurrency:
            return
        self._concurrency = rules
        for state in self.states:
            state.concurrency = self._fresh_concurrency()
            state.limit_found()
        self._judge()

    def _fresh_concurrency(self) -> Concurrency | None:
        return Concurrency(self._concurrency) if self._concurrency is not None else None

    def _reconsider(self, state: EndpointState) -> None:
        """Something is known of `state` that was not: see whether it is fit now, and whether that changes others."""
        keeps = self.keeps_to_regions
        if self.fitness.reconsider(state, self._now(), self.routed, keeps_to_regions=keeps):
            self._tell_all()
        else:
            self._refresh(state)

    def _judge(self) -> None:
        """See who is fit now, one by one."""
        self._weigh_up(warms=True)
        self._tell_all()

    def _tell_all(self) -> None:
        self._refresh_all()
        if self.fitness.slow_start:
            self._announce()

    def _weigh_up(self, *, warms: bool) -> None:
        keeps = self.keeps_to_regions
        self.fitness.judge(self.states, self._now(), self.routed, keeps_to_regions=keeps, warms=warms)

    def _refresh_all(self) -> None:
        """Bring the list in line with what all are now; whoever is woken finds all of it done."""
        was_empty = not self._available
        for state in self._by_id.values():
            self._enlist(state)
        if was_empty and self._available and self.on_available is not None:
            self.on_available()

    def _refresh(self, state: EndpointState) -> None:
        """Bring the list in line with what `state` is now."""
        has_come = self._enlist(state) and state.is_listed
        if has_come and len(self._available) == 1 and self.on_available is not None:
            self.on_available()

    def _limit_found(self, state: EndpointState) -> None:
        """It may hold another number of requests from now on; who may hold more is listed by `settle`."""
        state.limit_found()
        if state.is_listed and state.is_full:
            self._refresh(state)

    def _enlist(self, state: EndpointState) -> bool:
        """Put `state` in the list or take it out, where it is on the wrong side; returns whether it was."""
        is_available = state.available
        if is_available == state.is_listed:
            return False
        state.is_listed = is_available
        if is_available:
            self._available.enter(state)
        else:
            self._available.leave(state)
        return True
