"""Route and settle: the two calls of a request's life that this room sees.

Rule of this file: a policy can be wrong, slow or broken, and no request pays for it. Both calls cost the
same for two endpoints as for a thousand; what depends on their number happens when one flips, comes or
goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from random import Random
from typing import Final

from policies.assignment import Assignment
from policies.available import Available
from policies.clock import Clock
from policies.concurrency import Concurrency, ConcurrencyRules
from policies.errors import AlreadySettled, DuplicateEndpoint, NoEndpointAvailable, UnknownEndpoint
from policies.explanation import NOT_ON_OFFER, RAISED, TOO_SLOW, Trace
from policies.facts import Endpoint, Outcome, OutcomeKind, ReportedLoad, RequestFacts, Standing
from policies.fitness import Fitness
from policies.in_force import InForce
from policies.least_in_flight import LeastInFlight
from policies.norms import Norms
from policies.policy import Policy
from policies.state import EndpointState

_OK: Final = OutcomeKind.OK

TIME_BUDGET = 0.005
"""Seconds that a pick may take. A pick holds up every request of the process; 5 ms is two hundred forwarded
requests."""


def _nowhere(now: float) -> None:
    """There are no others."""


class Router:
    """Endpoints, and the policy in force.

    `routed` counts assignments; `in_flight` is how many are not settled, at most `in_flight_limit`. `fitness` judges
    who may be used. `on_available` is called when, after a time with no room, there is some again. `look` is called
    with the time before a pick that comes at `look_at` or later: it brings in what other processes have in flight,
    and puts `look_at` off. `on_members` is called when endpoints have come, gone or changed. `on_probe` is called with
    whom the policy wants probed out of band; the answer is to be told to `probed`.
    """

    def __init__(
        self,
        endpoints: Iterable[Endpoint],
        policy: Policy,
        clock: Clock,
        rng: Random,
        fallback: Policy | None = None,
        time_budget: float = TIME_BUDGET,
        in_flight_limit: int | None = None,
        concurrency: ConcurrencyRules | None = None,
        fitness: Fitness | None = None,
    ) -> None:
        self._now = clock.now
        self.fitness = fitness if fitness is not None else Fitness(rng)
        self._in_force = InForce(policy, fallback if fallback is not None else LeastInFlight(rng))
        self._time_budget = time_budget
        self._is_timed = time_budget < inf
        self._limit = inf if in_flight_limit is None else in_flight_limit
        self._concurrency = concurrency
        self.in_flight = 0
        self._by_id: dict[str, EndpointState] = {}
        self._available = Available()
        self._norms = Norms()
        self.routed = 0
        self.on_available: Callable[[], None] | None = None
        self.look_at = inf
        self.look: Callable[[float], None] = _nowhere
        self.on_members: Callable[[], None] | None = None
        self.on_probe: Callable[[EndpointState], None] | None = None
        self._take_hooks()
        self._replace(endpoints, warms=False)

    # --- the life of a request

    def route(self, facts: RequestFacts) -> Assignment:
        """Choose an endpoint and count the request in. Raises NoEndpointAvailable.

        Endpoints in `facts.tried` are avoided while there are others. Every assignment must be settled, once.
        """
        available = self._available
        if facts.tried:
            available = available.without(facts.tried)
        if not available or self.in_flight >= self._limit:
            raise NoEndpointAvailable(self.states)
        now = self._now()
        if now >= self.look_at:
            self.look(now)
        try:
            state = self._pick(facts, available, now)
            is_sound = state.is_listed and (not facts.tried or state in available)
        except Exception as error:
            state = self._demote(facts, available, now, RAISED, f"raised {error!r}")
        else:
            if not is_sound:
                fault = f"picked {state!r}, which was not on offer"
                state = self._demote(facts, available, now, NOT_ON_OFFER, fault)
            elif self._is_timed and self._now() - now > self._time_budget:
                fault = f"took over {self._time_budget * 1e3:g} ms"
                state = self._demote(facts, available, now, TOO_SLOW, fault)
        ahead = state.in_flight
        state.in_flight = ahead + 1
        if ahead == state.elsewhere:
            state.busy_since = now
        here = ahead + 1 - state.elsewhere
        if state.told is not None:
            state.told[state.row] = here
        if here >= state.limit:
            self._refresh(state)
        self.routed += 1
        self.in_flight += 1
        if self._probes is not None and self.on_probe is not None:
            self._in_force.call(self._probe, now)
        return Assignment(state, facts, ahead, now)

    def settle(self, assignment: Assignment, outcome: Outcome) -> None:
        """Count the request out and learn from it. Raises AlreadySettled the second time."""
        state = assignment.state
        if assignment.is_settled:
            raise AlreadySettled(f"the request to {state.id} was settled before")
        assignment.is_settled = True
        state.in_flight -= 1
        if state.told is not None:
            state.told[state.row] = state.in_flight - state.elsewhere
        was_full = self.in_flight >= self._limit
        self.in_flight -= 1
        state.count(outcome, assignment.in_flight_at_send)
        if self._observe is not None:
            self._in_force.call(self._observe, state, outcome, outcome.ended_at)
        if state.concurrency is not None and state.concurrency.learn(outcome, assignment.in_flight_at_send):
            self._limit_found(state)
        if outcome.kind is not _OK and self.fitness.failed(state, outcome):
            self._reconsider(state)
        if not state.is_listed:
            self._refresh(state)  # last: whoever is woken may route at once
        if was_full and self.has_room and self.on_available is not None:
            self.on_available()

    def probed(self, state: EndpointState, load: ReportedLoad, latency: float, now: float) -> None:
        """A probe of `state` was answered, `latency` seconds after it was sent. One that was not is told to nobody."""
        if self._in_force.observe_probe is not None and state.is_member:
            self._in_force.call(self._in_force.observe_probe, state, load, latency, now)

    def _probe(self, now: float) -> None:
        if self._probes is not None and self.on_probe is not None:
            for state in self._probes(now):
                self.on_probe(state)

    @property
    def has_room(self) -> bool:
        """Whether `route` would find somebody."""
        return bool(self._available) and self.in_flight < self._limit

    @property
    def in_flight_limit(self) -> float:
        """The most requests at all endpoints at once; `inf` where there is no such bound."""
        return self._limit

    @property
    def has_fit(self) -> bool:
        """Whether waiting may help: some endpoint may be used, if only it were not full."""
        return any(state.is_fit for state in self._by_id.values())

    def tick(self) -> None:
        """To be called about once a second: what is due is done, by the mechanisms and by a policy that asks for it."""
        now = self._now()
        fitness = self.fitness
        if fitness.tick(self.states, now):
            self._judge()
        elif fitness.slow_start:
            fitness.slow_start.advance(self.states, now)
            self._tell_all()
        if self._in_force.tick is not None:
            self._in_force.call(self._in_force.tick, now)

    # --- endpoints

    @property
    def states(self) -> Sequence[EndpointState]:
        """All that are configured, in that order."""
        return list(self._by_id.values())

    @property
    def available(self) -> Available:
        """Those that can take a request now. To be read, not changed."""
        return self._available

    def find(self, endpoint_id: str) -> EndpointState:
        """The state of one endpoint. Raises UnknownEndpoint."""
        try:
            return self._by_id[endpoint_id]
        except KeyError:
            raise UnknownEndpoint(f"no endpoint '{endpoint_id}'; known: {', '.join(self._by_id)}") from None

    def replace(self, endpoints: Iterable[Endpoint]) -> None:
        """Make `endpoints` the ones there are. Raises DuplicateEndpoint, and then changes nothing.

        Whoever keeps its id keeps its state; who is gone takes no more requests and settles those it has. Who is new
        starts slowly, where that is asked for.
        """
        self._replace(endpoints, warms=True)

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
        self._norms.states = self.states
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

    def limit(self, in_flight: int | None) -> None:
        """Let as many requests be in flight from now on; None: any number."""
        had_room = self.has_room
        self._limit = inf if in_flight is None else in_flight
        if not had_room and self.has_room and self.on_available is not None:
            self.on_available()

    def set_healthy(self, endpoint_id: str, is_healthy: bool, *, is_reachable: bool = True) -> None:
        """What checks have found, and whether they could ask at all. Raises UnknownEndpoint."""
        state = self.find(endpoint_id)
        if is_healthy and not state.healthy:
            state.returned()
        state.healthy = is_healthy
        state.is_reachable = is_healthy or is_reachable
        self._reconsider(state)

    def set_standing(self, endpoint_id: str, standing: Standing) -> None:
        """What the operator wants; who is not up takes no more requests and ends those it has. Raises
        UnknownEndpoint."""
        self.find(endpoint_id).standing = standing
        self._judge()

    def set_enabled(self, endpoint_id: str, is_enabled: bool) -> None:
        """Up, or draining. Raises UnknownEndpoint."""
        self.set_standing(endpoint_id, Standing.UP if is_enabled else Standing.DRAINING)

    def readmit(self, endpoint_id: str) -> None:
        """A connection was made: who was ejected for want of one may come back. Raises UnknownEndpoint."""
        state = self.find(endpoint_id)
        if self.fitness.readmit(state, self._now()):
            self._reconsider(state)

    def use_fitness(self, fitness: Fitness) -> None:
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

    # --- the policy

    @property
    def policy(self) -> Policy:
        """The one in force."""
        return self._in_force.policy

    def set_policy(self, policy: Policy) -> None:
        """Put another in force from the next request on; what is in flight is settled under it."""
        self._in_force.install(policy)
        self._take_hooks()
        self._announce()
        self._judge()

    def explain(self, trace: Trace | None) -> None:
        """Let `trace` know why each request goes where it goes, from the next one on; None: nobody asks."""
        self._in_force.explain(trace)
        self._pick = self._in_force.pick

    @property
    def trace(self) -> Trace | None:
        """Where reasons are noted, while somebody asks for them."""
        return self._in_force.trace

    @property
    def demoted(self) -> int:
        """Picks that the fallback had to make, because the policy raised, overran its time budget or picked what was
        not on offer."""
        return self._in_force.demoted

    @property
    def last_fault(self) -> str | None:
        """What the policy last did wrong, in words."""
        return self._in_force.last_fault

    def _take_hooks(self) -> None:
        in_force = self._in_force
        self._pick = in_force.pick
        self._observe = in_force.observe
        self._probes = in_force.probes
        self._demote = in_force.demote
        self.keeps_to_regions = in_force.keeps_to_regions

    def _announce(self) -> None:
        self._in_force.announce(self.states, self._now())
