"""The router: picks an endpoint for each request (`route`) and records its outcome (`settle`).

A wrong, slow or broken policy must not fail a request. Both calls cost the same for two endpoints as for a thousand;
work that depends on their number is done when an endpoint is added, removed or changes state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from random import Random
from typing import Final

from policies.clock import Clock, cpu_time
from policies.endpoint.available import Available
from policies.endpoint.concurrency_limit import ConcurrencyRules
from policies.endpoint.state import EndpointState
from policies.errors import AlreadySettled, NoEndpointAvailable, Overloaded, raised, shown
from policies.facts import Endpoint, Outcome, OutcomeKind, ReportedLoad, RequestFacts
from policies.health.health import Health
from policies.insight.explanation import NOT_SELECTABLE, RAISED, TOO_SLOW, Trace
from policies.policy import Policy
from policies.routing.active_policy import ActivePolicy
from policies.routing.assignment import Assignment
from policies.routing.endpoint_set import EndpointSet

TIME_BUDGET = 0.005
"""Seconds of CPU time that a pick may take. It holds up every request of the process; 5 ms is two hundred forwarded
requests."""

NOTIFY_FAST: Final = 0.001
"""Seconds that a `members_changed` call may take for it to be made before every pick."""

NOTIFY_SPACING: Final = 10.0
"""Multiple of the duration of a slower `members_changed` call that must pass before the next one: while endpoints are
added one by one, a table that takes 70 ms to fill takes a tenth of the time. `tick` makes the call in any case. Until
then a policy with a table of its own sends new endpoints no requests, and removed endpoints are not selectable."""

_UNLIMITED: Final = 1 << 60
"""Requests in flight that no limit is. An integer: the compiler compares it with another without a call."""


def _no_sync(now: float) -> None:
    """Default `look`: does nothing, as there are no sibling processes."""


class Router(EndpointSet):
    """An endpoint set and the active policy, `active`.

    `routed` counts assignments; `in_flight` is the number of unsettled ones, at most `in_flight_limit`. `health`
    decides which endpoints are eligible. `on_available` is called when there is room again after a time without. `look`
    is called with the time before a pick that comes at `look_at` or later: it reads what sibling processes have in
    flight, and postpones `look_at`. `on_members` is called when endpoints have been replaced, `on_member` with the
    state of one that was added, removed or updated. `on_probe` is called with an endpoint that the policy wants probed
    out of band; the answer is to be passed to `probed`.
    """

    def __init__(
        self,
        endpoints: Iterable[Endpoint],
        policy: Policy,
        clock: Clock,
        rng: Random,
        time_budget: float = TIME_BUDGET,
        cpu: Callable[[], float] = cpu_time,
        in_flight_limit: int | None = None,
        concurrency: ConcurrencyRules | None = None,
        health: Health | None = None,
    ) -> None:
        super().__init__(clock.now, health if health is not None else Health(rng), concurrency)
        self.active = ActivePolicy(policy, rng, cpu)
        self._time_budget = time_budget
        self._is_timed = time_budget < inf
        self._limit = _UNLIMITED if in_flight_limit is None else in_flight_limit
        self.in_flight = 0
        self._next_news_at = -inf
        self._doubted: list[EndpointState] = []
        self.look_at = inf
        self.look: Callable[[float], None] = _no_sync
        self.on_probe: Callable[[EndpointState], None] | None = None
        self.health.panic.keeps_to_regions = self.active.keeps_to_regions
        self.replace(endpoints, warms=False)

    # --- the life of a request

    def route(self, facts: RequestFacts) -> Assignment:
        """Pick an endpoint and count the request in. Raises NoEndpointAvailable, or Overloaded from the policy.

        Endpoints in `facts.tried` are avoided while there are others. Every assignment must be settled, once.
        """
        available: Available = self._available
        if facts.tried:
            available = self._untried(facts.tried)
        if not available or self.in_flight >= self._limit:
            raise NoEndpointAvailable(self.states)
        if self._has_news and self._now() >= self._next_news_at:
            self._notify_members()
        now, budget = self._now(), self._time_budget
        if now >= self.look_at:
            self.look(now)
        try:
            state = self.active.pick(facts, available, now)
            is_usable = (
                state.is_selectable
                and state.latency_prior is self._latency_prior  # which the states of this router alone have
                and (not facts.tried or state in available)
            )
        except (KeyboardInterrupt, Overloaded):
            raise
        except BaseException as error:  # also SystemExit: a policy must not end the process
            state = self.active.fallback_pick(facts, available, now, RAISED, raised(error))
        else:
            if not is_usable:
                fault = f"picked {shown(state)}, which was not on offer"
                state = self.active.fallback_pick(facts, available, now, NOT_SELECTABLE, fault)
            elif self._is_timed and self._now() - now > budget and self.active.took_long(budget):
                fault = f"took over {budget * 1e3:g} ms of CPU time"
                state = self.active.fallback_pick(facts, available, now, TOO_SLOW, fault)
        ahead = state.in_flight
        state.in_flight = ahead + 1
        state.await_one(1, now)
        if ahead == state.elsewhere:
            state.busy_since = now
        here = ahead + 1 - state.elsewhere
        if state.published is not None:
            state.published[state.published_at] = here
        if here >= state.limit:
            self._refresh(state)
        self.routed += 1
        self.in_flight += 1
        if self.on_probe is not None and self.active.probes is not None:
            self.active.call(self._probe, now)
        if facts.prompt is not None and self.active.assigned is not None:
            self.active.call(self.active.assigned, state, facts, now)
        return Assignment(state, facts, ahead, now)

    def first_token(self, assignment: Assignment, now: float) -> None:
        """Report to the policy that the first token of an answer has come."""
        prompt = assignment.facts.prompt
        if prompt is not None and self.active.first_token is not None:
            self.active.call(self.active.first_token, assignment.state, prompt, now)

    def settle(self, assignment: Assignment, outcome: Outcome, now: float = 0.0) -> None:
        """Count the request out and record its outcome; `now` if it had ended before. Raises AlreadySettled the second
        time."""
        state = assignment.state
        if assignment.is_settled:
            raise AlreadySettled(f"the request to {state.id} was settled before")
        assignment.is_settled = True
        now = now or outcome.ended_at
        assignment.answered(now)
        state.in_flight -= 1
        if state.published is not None:
            state.published[state.published_at] = state.in_flight - state.elsewhere
        was_full = self.in_flight >= self._limit
        self.in_flight -= 1
        is_failure = state.count(outcome, assignment.in_flight_at_send, assignment.number)
        active = self.active
        if active.observe is not None:
            active.call(active.observe, state, outcome, now)
        if state.concurrency is not None and state.concurrency.learn(outcome, assignment.in_flight_at_send):
            state.update_limit()
            if state.is_selectable and state.is_full:
                self._refresh(state)
        if is_failure and self.health.failed(state, outcome):
            self._reconsider(state)
        if not state.is_selectable:
            self._refresh(state)  # last: `on_available` may route at once
        if was_full and self.has_room and self.on_available is not None:
            self.on_available()

    def withdraw(self, assignment: Assignment) -> None:
        """Take back an assignment that was not used: the policy sees it abandoned, and nothing counts it."""
        outcome = Outcome(OutcomeKind.ABANDONED, None, assignment.routed_at, None, self._now())
        self.settle(assignment, outcome)
        self.routed -= 1
        assignment.state.other_outcomes[outcome.kind] -= 1

    def probed(self, state: EndpointState, load: ReportedLoad, latency: float, now: float) -> None:
        """Report to the policy that a probe of `state` was answered, `latency` seconds after it was sent.

        Failed probes are not reported."""
        state.reported_at = now
        if self.active.observe_probe is not None and state.is_member:
            self.active.call(self.active.observe_probe, state, load, latency, now)

    def doubts(self, state: EndpointState) -> bool:
        """Whether the policy doubts that the endpoint it picked is as fast as usual."""
        return self.active.doubts(state)

    def newly_doubted(self) -> list[EndpointState]:
        """Return the endpoints that the policy doubts now and did not doubt at the last call.

        Their round trip is to be measured anew, by a connection: an endpoint that is farther away than it was, because
        a route has changed, seems slow. Its open connections show no handshake, and it gets too few requests to need
        new ones.
        """
        before = set(self._doubted)
        self._doubted = [state for state in self._states if self.active.doubts(state)]
        return [state for state in self._doubted if state not in before]

    def _probe(self, now: float) -> None:
        if self.active.probes is not None and self.on_probe is not None:
            for state in self.active.probes(now):
                self.on_probe(state)

    @property
    def has_room(self) -> bool:
        """Whether `route` would find an endpoint."""
        return bool(self._available) and self.in_flight < self._limit

    @property
    def in_flight_limit(self) -> float:
        """The most requests in flight at all endpoints together; `inf` where there is no limit."""
        return inf if self._limit == _UNLIMITED else self._limit

    @property
    def has_eligible(self) -> bool:
        """Whether waiting may help: some endpoint is eligible, even if full."""
        return any(state.is_eligible for state in self._by_id.values())

    def tick(self) -> None:
        """Run periodic work: ejections, slow starts and the policy's `tick`. Call about once a second."""
        now = self._now()
        health = self.health
        if health.tick(self.states, now):
            self._reevaluate_all()
        elif health.slow_start:
            health.slow_start.advance(self.states, now)
            self._refresh_and_notify()
        if self._loads is not health.panic.loads and self._apply_loads():
            self._relist()
        if self._has_news:
            self._notify_members()
        if self.active.tick is not None:
            self.active.call(self.active.tick, now)

    def apply_in_flight_limit(self, in_flight: int | None) -> None:
        """Set the limit on requests in flight; None removes it."""
        had_room = self.has_room
        self._limit = _UNLIMITED if in_flight is None else in_flight
        if not had_room and self.has_room and self.on_available is not None:
            self.on_available()

    def release(self) -> None:
        """Let go of all callbacks, whose objects refer to this router, and of the trace."""
        self.explain(None)
        self.on_available = self.on_members = self.on_member = self.on_probe = None
        self.look, self.look_at = _no_sync, inf

    # --- the policy

    @property
    def policy(self) -> Policy:
        """The active policy, without the fallback."""
        return self.active.policy

    def set_policy(self, policy: Policy) -> None:
        """Make `policy` the active one from the next request on; requests in flight are settled under it."""
        self.active.install(policy)
        self.health.panic.keeps_to_regions = self.active.keeps_to_regions
        for state in self._states:
            state.forget_overtaken()
        self._notify_members()
        self._reevaluate_all()

    def explain(self, trace: Trace | None) -> None:
        """Record the explanation of each pick in `trace`, from the next one on; None stops recording."""
        self.active.explain(trace)

    @property
    def trace(self) -> Trace | None:
        """The trace that explanations are recorded in, or None."""
        return self.active.trace

    @property
    def fallback_picks(self) -> int:
        """Fallback picks of the policy in force: it raised, took too long or picked an endpoint not selectable."""
        return self.active.fallback_picks

    @property
    def last_fault(self) -> str | None:
        """Description of the last fault of the policy in force."""
        return self.active.last_fault

    def _loads_changed(self) -> None:
        self.active.use_levels(self._loads)

    def _notify_members(self) -> None:
        """Notify the policy of the current endpoints, without those of priority levels that get no requests."""
        self._has_news = False
        began_at = self._now()
        members = [state for state in self._states if state.is_called] if self._loads else list(self._states)
        self.active.notify_members(members, began_at)
        taken = self._now() - began_at
        self._next_news_at = began_at + NOTIFY_SPACING * taken if taken > NOTIFY_FAST else -inf
