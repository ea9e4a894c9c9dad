"""The endpoint set of a router, and the list of endpoints that can take a request now.

A change of one endpoint costs O(log n), so adding n endpoints one by one is O(n log n): no method but `replace`,
`set_policy` and those that change rules may look at all states, unless there is panic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from policies.endpoint.available import Available, AvailableByLevel, AvailableByRegion
from policies.endpoint.concurrency_limit import Concurrency, ConcurrencyRules
from policies.endpoint.latency_prior import LatencyPrior
from policies.endpoint.state import EndpointState
from policies.errors import DuplicateEndpoint, UnknownEndpoint, some_of
from policies.facts import AdminState, Endpoint
from policies.health.health import Health
from policies.health.priority_levels import Loads

KEPT_REMOVED = 16
"""Number of removed endpoints to keep before those without requests in flight are dropped."""


class EndpointSet:
    """The states of all endpoints, and the list of the available ones.

    The base of `Router`, which documents the attributes.
    """

    def __init__(
        self, now: Callable[[], float], health: Health, concurrency: ConcurrencyRules | None
    ) -> None:
        self._now = now
        self.health = health
        self._concurrency = concurrency
        self._by_id: dict[str, EndpointState] = {}
        self._states: list[EndpointState] = []  # values of `_by_id`; a new list on every change
        self._leaving: dict[tuple[str, str], EndpointState] = {}  # by id and address
        self._most_leaving = KEPT_REMOVED
        self._next_order = 0
        self._has_news = False  # endpoints have changed since the policy was last notified
        self._available = AvailableByRegion()
        self._loads: Loads = {}  # of the priority levels; empty while there is no choice between levels
        self._latency_prior = LatencyPrior()
        self.routed = 0
        self.on_available: Callable[[], None] | None = None
        self.on_members: Callable[[], None] | None = None
        self.on_member: Callable[[EndpointState], None] | None = None

    def _notify_members(self) -> None:
        """Notify the policy of the current endpoints."""
        raise NotImplementedError

    @property
    def states(self) -> Sequence[EndpointState]:
        """All endpoints: those configured, in that order, then those added since. Read-only."""
        return self._states

    @property
    def leaving(self) -> list[EndpointState]:
        """Removed endpoints that still have requests in flight."""
        self._leaving = {place: state for place, state in self._leaving.items() if state.in_flight_here}
        return list(self._leaving.values())

    @property
    def available(self) -> Available:
        """Endpoints that can take a request now. Read-only."""
        return self._available

    def find(self, endpoint_id: str) -> EndpointState:
        """Return the state of one endpoint. Raises UnknownEndpoint."""
        try:
            return self._by_id[endpoint_id]
        except KeyError:
            raise UnknownEndpoint(f"no endpoint '{endpoint_id}'; known: {some_of(self._by_id)}") from None

    def put(self, endpoint: Endpoint) -> None:
        """Add `endpoint`, or update the one with its id, as `replace` does.

        The policy is notified of all changes at once before its next pick.

        O(log n), unless there is panic, and O(regions) with a policy that keeps to regions.
        """
        state = self._by_id.get(endpoint.id)
        if state is None:
            state = self._added(endpoint, self._next_order)
            self._next_order += 1
            self._by_id[endpoint.id] = state
            self._states = [*self._states, state]
        else:
            self.health.withdraw(state)
            before = state.endpoint
            if state.is_selectable and (before.region, before.priority) != (
                endpoint.region,
                endpoint.priority,
            ):
                state.is_selectable = False
                self._available.leave(state)
            state.apply(endpoint, state.order)
        self._member_changed(state)

    def drop(self, endpoint_id: str) -> None:
        """Remove one endpoint, as `replace` does, at the cost of `put`. Raises UnknownEndpoint."""
        state = self.find(endpoint_id)
        self.health.withdraw(state)
        del self._by_id[endpoint_id]
        self._states = list(self._by_id.values())
        self._leave(state)
        self._member_changed(state)

    def _member_changed(self, state: EndpointState) -> None:
        """Handle an added, removed or updated endpoint, which must not be counted in `health` at this time."""
        self._latency_prior.states = self._states
        self._has_news = True
        if self.on_member is not None:
            self.on_member(state)
        self._enter(state)

    def _enter(self, state: EndpointState) -> None:
        """Undo `health.withdraw`, and update the list of available endpoints for `state`."""
        has_changed_others = self.health.enter(self._states, state, self._now(), self.routed)
        if self.health.slow_start:
            self._has_news = True
        if self._apply_loads((state,)):
            self._relist()
            return
        if has_changed_others and state.is_member:
            self._refresh_all()
            return
        self._refresh(state)
        if has_changed_others:
            self._refresh_all()

    def replace(self, endpoints: Iterable[Endpoint], *, warms: bool = True) -> None:
        """Replace the endpoint set by `endpoints`. Raises DuplicateEndpoint, and then changes nothing.

        An endpoint that keeps its id keeps its state. A removed endpoint gets no new requests; those in flight finish,
        and count again if it is added again at the same address.
        A new endpoint begins with a slow start if it `warms`, and one is configured.
        """
        wanted: dict[str, Endpoint] = {}
        for endpoint in endpoints:
            if endpoint.id in wanted:
                raise DuplicateEndpoint(f"two endpoints have the id '{endpoint.id}'")
            wanted[endpoint.id] = endpoint
        for state in self._by_id.values():
            if state.id not in wanted:
                self._leave(state)
                state.is_healthy = state.is_eligible = False
        self._by_id = {e.id: self._state_of(e, order) for order, e in enumerate(wanted.values())}
        self._states = list(self._by_id.values())
        self._next_order = len(self._states)
        self._latency_prior.states = self._states
        if self.on_members is not None:
            self.on_members()
        self.health.evaluate(self._states, self._now(), self.routed, warms=warms)
        self._apply_loads(self._states)
        self._relist()

    def _apply_loads(self, changed: Iterable[EndpointState] = ()) -> bool:
        """Apply the loads of the priority levels; return whether other levels get requests than before. `changed` are
        states that may be new, or have another priority."""
        before, self._loads = self._loads, self.health.panic.loads
        loads = self._loads
        if not (loads or before):
            return False
        self._loads_changed()
        has_other_levels = before.keys() != loads.keys()
        for state in self._states if has_other_levels else changed:
            state.is_called = not loads or state.endpoint.priority in loads
        return has_other_levels

    def has_untried(self, tried: Collection[str]) -> bool:
        """Return whether an endpoint other than `tried` could take a request now, if need be a backup."""
        return any(state.id not in tried for state in self._available) or self._call_backups(tried)

    def has_others(self, ids: Collection[str]) -> bool:
        """Return whether an endpoint other than `ids` could take a request that has not failed, as no backup does."""
        share = self._loads.get
        return any(
            state.id not in ids and share(state.endpoint.priority, 1.0) > 0.0 for state in self._available
        )

    def has_another_try(
        self, limit: int, attempts: int, unsent: int, tried: Collection[str], *, needs_other: bool
    ) -> bool:
        """Return whether a request with so many `attempts`, at the endpoints `tried`, may have another one.

        `limit` is the maximum number of further endpoints that it is sent to, 0 for a single attempt. `unsent`
        attempts, one per endpoint at most, found no connection or were refused as busy, cost no worker anything and do
        not count: where half of the workers die at once, three picks of a thousand would otherwise meet three dead ones
        before their failures are known. The endpoint that failed is tried again only if no other is available, and only
        once; never with `needs_other`. Looks at one endpoint more than were tried, at most.
        """
        if not limit or attempts - min(unsent, len(self._states)) > limit:
            return False
        is_first = attempts == 1 and not needs_other
        return is_first or self.has_untried(tried)

    def _untried(self, tried: frozenset[str]) -> Available:
        """Return the available endpoints that are not in `tried`, if need be backups, or all if none is left."""
        if self._loads and self._available and not self.has_untried(tried):
            return self._available
        return self._available.without(tried)

    def _call_backups(self, tried: Collection[str]) -> bool:
        """Let the next priority level take requests that have failed at all others, until the next tick; return whether
        there is one."""
        loads = self._loads
        if not loads:
            return False
        able = [
            state for state in self._states if state.is_eligible and not (state.is_called or state.is_full)
        ]
        levels = {state.endpoint.priority for state in able if state.id not in tried}
        if not levels:
            return False
        self._loads = {**loads, min(levels): 0.0}
        for state in self._states:
            state.is_called |= state.endpoint.priority == min(levels)
        self._loads_changed()
        self._relist()
        return True

    def _loads_changed(self) -> None:
        """Choose between the priority levels by their new loads."""
        raise NotImplementedError

    def _state_of(self, endpoint: Endpoint, order: int) -> EndpointState:
        state = self._by_id.get(endpoint.id)
        if state is None:
            return self._added(endpoint, order)
        state.apply(endpoint, order)
        return state

    def _added(self, endpoint: Endpoint, order: int) -> EndpointState:
        state = self._leaving.pop((endpoint.id, endpoint.address), None)
        if state is None or not state.in_flight_here:
            return EndpointState(endpoint, order, self._latency_prior, self._fresh_concurrency())
        state.return_as(endpoint, order, self._fresh_concurrency())
        return state

    def _leave(self, state: EndpointState) -> None:
        state.is_member = False
        self._leaving[state.id, state.endpoint.address] = state
        if len(self._leaving) > self._most_leaving:
            self._most_leaving = max(KEPT_REMOVED, 2 * len(self.leaving))

    def _relist(self) -> None:
        was_empty = not self._available
        for state in self._available:
            state.is_selectable = False
        states = (state for state in self._by_id.values() if state.available)
        if len(self._loads) > 1:
            self._available = AvailableByLevel(states, self._loads)
        else:
            self._available = AvailableByRegion(states)
        for state in self._available:
            state.is_selectable = True
        self._notify_members()
        if was_empty and self._available and self.on_available is not None:
            self.on_available()

    def set_healthy(self, endpoint_id: str, is_healthy: bool, *, is_reachable: bool = True) -> None:
        """Apply the result of active checks; `is_reachable` says whether the check got an answer at all.

        Raises UnknownEndpoint.
        """
        state = self.find(endpoint_id)
        if is_healthy and not state.passes_checks:
            state.latency.renew()  # the check that reported failures now reports recovery
        state.passes_checks = is_healthy
        state.is_reachable = is_healthy or is_reachable
        self._reconsider(state)

    def set_admin_state(self, endpoint_id: str, admin_state: AdminState) -> None:
        """Set the admin state.

        An endpoint that is not ready gets no new requests; those in flight finish. Raises UnknownEndpoint.
        """
        state = self.find(endpoint_id)
        self.health.withdraw(state)
        state.admin_state = admin_state
        self._enter(state)

    def set_enabled(self, endpoint_id: str, is_enabled: bool) -> None:
        """Set the admin state to ready or drain. Raises UnknownEndpoint."""
        self.set_admin_state(endpoint_id, AdminState.READY if is_enabled else AdminState.DRAIN)

    def readmit(self, endpoint_id: str, *, is_answered: bool = False) -> None:
        """Re-admit an endpoint after a connect, or after a check that was answered. Raises UnknownEndpoint.

        The first ends ejections for failed connections, the second those for timeouts too.
        """
        state = self.find(endpoint_id)
        if self.health.readmit(state, self._now(), is_answered=is_answered):
            self._reconsider(state)

    def apply_health(self, health: Health) -> None:
        """Apply the rules of `health` from now on; what is known of the endpoints stays."""
        self.health.apply(health)
        self._reevaluate_all()

    def apply_concurrency(self, rules: ConcurrencyRules | None) -> None:
        """Apply the rules of adaptive concurrency limits; None turns them off. A change resets all limits."""
        if rules == self._concurrency:
            return
        self._concurrency = rules
        for state in self.states:
            state.concurrency = self._fresh_concurrency()
            state.update_limit()
        self._reevaluate_all()

    def _fresh_concurrency(self) -> Concurrency | None:
        return Concurrency(self._concurrency) if self._concurrency is not None else None

    def _reconsider(self, state: EndpointState) -> None:
        """Evaluate `state` after a change of its health, and all others if theirs may change with it."""
        self.health.withdraw(state)
        self._enter(state)

    def _reevaluate_all(self) -> None:
        """Evaluate the health of all endpoints."""
        self.health.evaluate(self._states, self._now(), self.routed, warms=True)
        if self._apply_loads():
            self._relist()
        else:
            self._refresh_and_notify()

    def _refresh_and_notify(self) -> None:
        self._refresh_all()
        if self.health.slow_start:
            self._notify_members()

    def _refresh_all(self) -> None:
        """Update the list of available endpoints for all states, then call `on_available`, which may route at once."""
        was_empty = not self._available
        for state in self._by_id.values():
            self._update_listing(state)
        if was_empty and self._available and self.on_available is not None:
            self.on_available()

    def _refresh(self, state: EndpointState) -> None:
        """Update the list of available endpoints for `state`."""
        has_come = self._update_listing(state) and state.is_selectable
        if has_come and len(self._available) == 1 and self.on_available is not None:
            self.on_available()

    def _update_listing(self, state: EndpointState) -> bool:
        """List or unlist `state` if its availability has changed; return whether it had."""
        is_available = state.available
        if is_available == state.is_selectable:
            return False
        state.is_selectable = is_available
        if is_available:
            self._available.enter(state)
        else:
            self._available.leave(state)
        return True
