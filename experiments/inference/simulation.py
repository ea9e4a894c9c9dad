"""Requests for inference in virtual time: the balancer's own router and policy, and the workers' own engine model.

A run is a function of its arguments: events at one instant are in a fixed order, and nothing is drawn here.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from heapq import heappop, heappush
from math import inf, nan
from typing import Final, NamedTuple

from experiments.inference.exchange import SimulatedExchange
from experiments.inference.refusals import Refusals
from experiments.recorded.inference_trace import Prompts
from experiments.run_data import Floats, Kind
from experiments.scenario.mechanisms import SharedTable
from experiments.simulator.clock import VirtualClock
from experiments.simulator.columns import NO_WORKER, Columns, code_of
from experiments.simulator.simulation import SimulationError
from policies.endpoint.state import EndpointState
from policies.errors import NoEndpointAvailable, Overloaded
from policies.facts import BUSY_STATUS, NONE_TRIED, Outcome, OutcomeKind, ReportedLoad, RequestFacts
from policies.prompts import Answer, Prompt
from policies.routing.assignment import Assignment
from policies.routing.router import Router
from workers.inference.engine import FIRST_TOKEN, Engine, Sequence

OK: Final = int(Kind.OK)
ERROR_STATUS: Final = int(Kind.ERROR_STATUS)
TIMEOUT: Final = int(Kind.TIMEOUT)
OK_STATUS: Final = 200
PATH: Final = "/v1/chat/completions"

REFUSED: Final = 0
"""What an engine sends back, beside the kinds of its events: that its queue is full."""

COMING: Final = 1
BACK: Final = 2
PROBED: Final = 3
"""Events of an engine `n` have the number 4 n; those of requests on their way to it, of what comes back and of answers
to probes, so much more."""

TICK: Final = -1
REPORT: Final = -2
GIVE_UP: Final = -3
HEARD: Final = -4
REPORT_SENT: Final = -5
"""Numbers of events that concern no engine. A report of router `n` to the others has the number −5 − n."""

TICK_SECONDS: Final = 1.0

_push: Final = heappush
_pop: Final = heappop


class OpenConnections(NamedTuple):
    """Connections to an engine, of which one is always open. Implements `Connections`."""

    round_trip: float
    has_idle: bool = True
    connect_time: float = 0.0


class InferenceRequest:
    """A request. `worker` is the number of the engine of its last attempt, whose `assignment` it has."""

    tried = NONE_TRIED

    def __init__(
        self, number: int, due: float, facts: RequestFacts, sequence: Sequence, refusals: Refusals
    ) -> None:
        self.number = number
        self.due = due
        self.facts = facts
        self.refusals = refusals
        self.router = refusals.router
        self.assignment: Assignment | None = None
        self.sequence = sequence
        self.worker = -1
        self.attempts = 0
        self.is_over = False


class InferenceSimulation:
    """Sends prompts at `due` instants, ascending, through `routers` to `engines`, which have the routers' order.

    `places` is the number of the router of each request. `round_trips` are seconds to each engine and back. A request
    that has no first token `timeout` seconds after it was due is given up, one that is refused is sent to every other
    engine that is free, unless `retries` is 0. Policies learn engines' load every `refresh` seconds, for inf never; for
    0 before each request, but those that probe by their probes. With `shared` the routers report to each other.

    The results are `columns`, and lists by request number: `first_at` in seconds (nan: never), `cached` and `generated`
    tokens.
    """

    def __init__(
        self,
        clock: VirtualClock,
        routers: list[Router],
        engines: list[Engine],
        round_trips: list[float],
        region: str,
        retries: int,
        timeout: float,
        refresh: float,
        shared: SharedTable | None = None,
    ) -> None:
        self._clock = clock
        self._routers = routers
        self._refusals = [Refusals(router, retries) for router in routers]
        self._engines = engines
        self._halves: list[float] = [seconds / 2 for seconds in round_trips]
        self._region = region
        self._timeout = timeout
        self._refresh = refresh
        self._periods: list[tuple[float, int]] = [(timeout, GIVE_UP)] if timeout < inf else []
        if any(router.active.tick is not None for router in routers):
            self._periods.append((TICK_SECONDS, TICK))
        self._events: list[tuple[float, int]] = []
        self._exchange: SimulatedExchange | None = None
        if shared is not None and len(routers) > 1:
            self._exchange = SimulatedExchange(routers, shared, self._ask)
        self._at: list[float] = [inf] * len(engines)
        """When each engine's next event is scheduled, the earliest where there are several."""
        self._coming: list[deque[InferenceRequest]] = [deque() for _ in engines]
        self._back: list[deque[tuple[int, InferenceRequest]]] = [deque() for _ in engines]
        self._open: dict[int, InferenceRequest] = {}
        """Requests that wait for their first token, oldest first."""
        self._probes: list[deque[Router]] = [deque() for _ in engines]
        for router in routers:
            for state, seconds in zip(router.states, round_trips, strict=True):
                state.connections = OpenConnections(seconds)
            if refresh == 0 and router.active.probes is not None:
                router.on_probe = partial(self._probe, router)
        self._left = 0
        self._reported_at = -inf
        self.retried = 0
        self.columns = Columns(0, None, 0.0)
        self.first_at: list[float] = []
        self.cached: list[int] = []
        self.generated: list[int] = []

    def run(self, instants: Floats, places: list[int], prompts: Prompts) -> None:
        """Send all requests and wait for their ends. Raises `SimulationError`."""
        due: list[float] = instants.tolist()
        count = self._left = len(due)
        self.columns = Columns(count, instants, 0.0)
        self.first_at = [nan] * count
        self.cached, self.generated = [0] * count, [0] * count
        events, clock = self._events, self._clock
        for seconds, number in self._periods:
            _push(events, (seconds, number))
        if self._exchange is not None:
            self._exchange.begin()
        number, next_due = 0, self._expect(due[0]) if count else inf
        while self._left:
            at = events[0][0] if events else inf
            if next_due < at:
                clock.at = next_due
                self._send(number, places[number], prompts, next_due)
                number += 1
                next_due = self._expect(due[number]) if number < count else inf
            elif at < inf:
                clock.at = at
                self._fire(_pop(events)[1], at)
            else:
                raise SimulationError(f"{self._left} requests wait for something that will never happen")
        for router in self._routers:
            router.on_probe = None
        self.columns.flush()
        self._audit(prompts)

    def _expect(self, due: float) -> float:
        """Schedule the last report before a request, whose instant is returned: no other report is read."""
        if 0 < self._refresh < inf:
            at = due // self._refresh * self._refresh
            if at > self._reported_at:
                self._reported_at = at
                _push(self._events, (at, REPORT))
        return due

    def _ask(self, at: float, router: int) -> None:
        """Schedule a report to other routers, or that they hear one."""
        _push(self._events, (at, REPORT_SENT - router))

    def _changed(self, router: Router, now: float) -> None:
        if self._exchange is not None:
            self._exchange.changed(router, now)

    # --- a request

    def _send(self, number: int, place: int, prompts: Prompts, now: float) -> None:
        refusals, session = self._refusals[place], prompts.sessions[number]
        router = refusals.router
        refusals.requests += 1
        prompt = Prompt(
            prompts.tokens[number], prompts.blocks[number], prompts.block_tokens, "", session, 0, True
        )
        seen = prompt if router.active.reads_prompts else None
        facts = RequestFacts("POST", PATH, self._region, session or None, 0, NONE_TRIED, seen)
        sequence = Sequence(prompts.blocks[number], prompts.tokens[number], prompts.output[number])
        request = sequence.tag = InferenceRequest(number, now, facts, sequence, refusals)
        self._open[number] = request
        self._route(request, now)

    def _route(self, request: InferenceRequest, now: float) -> None:
        router, facts = request.router, request.facts
        tried = request.refusals.left_out(request.tried, now)
        facts = RequestFacts("POST", PATH, facts.region, facts.key, request.attempts, tried, facts.prompt)
        if self._refresh == 0 and router.on_probe is None:
            self._report(router, now)
        try:
            assignment = router.route(facts)
        except (NoEndpointAvailable, Overloaded):
            self._end(request, ERROR_STATUS, BUSY_STATUS, now)
            return
        self._changed(router, now)
        worker = assignment.state.order
        request.assignment, request.worker = assignment, worker
        request.attempts += 1
        half = self._halves[worker]
        if half:
            self._coming[worker].append(request)
            _push(self._events, (now + half, 4 * worker + COMING))
        else:
            self._arrive(request, now)

    def _arrive(self, request: InferenceRequest, now: float) -> None:
        if request.is_over:
            return
        engine = self._engines[request.worker]
        if engine.submit(request.sequence, now):
            self._schedule(request.worker, engine)
        else:
            self._return(REFUSED, request, now)

    def _return(self, kind: int, request: InferenceRequest, now: float) -> None:
        worker = request.worker
        half = self._halves[worker]
        if half:
            self._back[worker].append((kind, request))
            _push(self._events, (now + half, 4 * worker + BACK))
        else:
            self._received(kind, request, now)

    def _received(self, kind: int, request: InferenceRequest, now: float) -> None:
        assignment = request.assignment
        if request.is_over or assignment is None:
            return
        if kind == FIRST_TOKEN:
            del self._open[request.number]
            self.first_at[request.number] = now
            assignment.answered(now)
            request.router.first_token(assignment, now)
            self._changed(request.router, now)
        elif kind == REFUSED:
            tried = request.tried = request.tried | {assignment.state.id}
            may_retry = request.refusals.may_retry(assignment.state.id, tried, now)
            self._settle(request, OutcomeKind.BUSY, BUSY_STATUS, None, now)
            if not may_retry:
                self._end(request, ERROR_STATUS, BUSY_STATUS, now)
                return
            self.retried += 1
            self._route(request, now)
        else:
            sequence, answer = request.sequence, Answer()
            answer.first_token_at, answer.last_token_at = self.first_at[request.number], now
            answer.tokens, answer.prompt_tokens = sequence.generated, sequence.tokens
            answer.cached_tokens = sequence.cached
            self._settle(request, OutcomeKind.OK, OK_STATUS, answer, now)
            self._end(request, OK, OK_STATUS, now)

    def _settle(
        self, request: InferenceRequest, kind: OutcomeKind, status: int, answer: Answer | None, now: float
    ) -> None:
        assignment = request.assignment
        assert assignment is not None
        first_at = now if answer is None else answer.first_token_at
        prompt = request.facts.prompt
        outcome = Outcome(
            kind, status or None, assignment.routed_at, first_at, now, 0, 0, None, prompt, answer
        )
        request.router.settle(assignment, outcome)
        self._changed(request.router, now)

    def _end(self, request: InferenceRequest, kind: int, status: int, now: float) -> None:
        number = request.number
        self._open.pop(number, None)
        request.is_over = True
        self._left -= 1
        self.columns.put(number, now, request.worker if kind == OK else NO_WORKER)
        self.columns.codes[number] = code_of(kind, status, request.attempts)
        if kind == OK:
            self.cached[number] = request.sequence.cached
            self.generated[number] = request.sequence.generated

    # --- events

    def _fire(self, number: int, now: float) -> None:
        if number >= 0:
            worker, what = divmod(number, 4)
            if what == COMING:
                self._arrive(self._coming[worker].popleft(), now)
            elif what == BACK:
                self._received(*self._back[worker].popleft(), now)
            elif what == PROBED:
                router = self._probes[worker].popleft()
                load = self._load_of(worker, now)
                router.probed(router.states[worker], load, 2 * self._halves[worker], now)
            else:
                self._advance(worker, now)
        elif number == GIVE_UP:
            self._give_up(now)
        elif number <= HEARD:
            assert self._exchange is not None
            if number == HEARD:
                self._exchange.deliver(now)
            else:
                self._exchange.send(REPORT_SENT - number, now)
        else:
            for router in self._routers:
                if number == REPORT:
                    self._report(router, now)
                else:
                    router.tick()
            if number == TICK:
                _push(self._events, (now + TICK_SECONDS, TICK))

    def _advance(self, worker: int, now: float) -> None:
        engine = self._engines[worker]
        if now >= self._at[worker]:
            self._at[worker] = inf
        for event in engine.advance(now):
            request = event.sequence.tag
            assert isinstance(request, InferenceRequest)
            self._return(event.kind, request, now)
        self._schedule(worker, engine)

    def _schedule(self, worker: int, engine: Engine) -> None:
        """Schedule the engine's next event, unless one is scheduled that is as early."""
        at = engine.next_at
        if at < self._at[worker]:
            self._at[worker] = at
            _push(self._events, (at, 4 * worker))

    def _give_up(self, now: float) -> None:
        """Give up the oldest requests without a first token: limits are equal, so they are in order."""
        again = now + self._timeout
        for request in list(self._open.values()):
            if request.due + self._timeout > now:
                again = request.due + self._timeout
                break
            engine, assignment = self._engines[request.worker], request.assignment
            engine.cancel(request.sequence, now)  # does nothing before it has arrived
            self._schedule(request.worker, engine)
            if assignment is not None and not assignment.is_settled:
                self._settle(request, OutcomeKind.ABANDONED, 0, None, now)
            self._end(request, TIMEOUT, 0, now)
        _push(self._events, (again, GIVE_UP))

    def _report(self, router: Router, now: float) -> None:
        """Report the load of all engines to a router."""
        for state in router.states:
            router.probed(state, self._load_of(state.order, now), 0.0, now)

    def _probe(self, router: Router, state: EndpointState) -> None:
        """Probe an engine, after the request that triggers it. The answer takes a round trip, and is as of its end."""
        worker = state.order
        self._probes[worker].append(router)
        _push(self._events, (self._clock.at + 2 * self._halves[worker], 4 * worker + PROBED))

    def _load_of(self, worker: int, now: float) -> ReportedLoad:
        engine = self._engines[worker]
        waiting = engine.waiting
        return ReportedLoad(waiting + engine.running, waiting=waiting, kv_usage=engine.kv_usage(now))

    def _audit(self, prompts: Prompts) -> None:
        """Check that every request has ended once and nothing is left behind. Raises `SimulationError`."""
        for router in self._routers:
            if router.in_flight:
                raise SimulationError(f"{router.in_flight} requests are in flight for ever")
        for engine in self._engines:
            if engine.waiting or engine.running:
                raise SimulationError(f"{engine.waiting + engine.running} sequences are left at an engine")
        for number, kind in enumerate(self.columns.kinds.tolist()):
            if kind == OK and self.generated[number] != prompts.output[number]:
                raise SimulationError(f"request {number} got {self.generated[number]} tokens")
