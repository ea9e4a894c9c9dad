"""Oracle policies, which use information that no balancer has, as bounds for other policies. Simulator only.

An oracle implements the policy interface and is constructed with the simulated fleet.

| name | rule |
|---|---|
| `oracle-least-work` | the worker at which this request would begin first, and then end first |
| `oracle-least-work-of-two` | the same among `choices` drawn at random |
| `oracle-central-queue` | M/M/n: every worker takes as many as it has slots, the others wait in one queue |
| `oracle-static-split` | the best constant shares for the given rate, each worker an M/M/1 |
| `oracle-informed` | the worker of least expected cost in its present state |
| `oracle-clairvoyant` | the worker that answers this request first |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heapreplace
from itertools import accumulate, pairwise
from math import ceil, exp, expm1, inf
from operator import itemgetter
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from experiments.errors import BadInputError
from experiments.generator.demand import MASK
from experiments.scenario.event_kinds import HEALTHY, FaultState
from experiments.scenario.oracles import ORACLE_NAMES
from experiments.simulator.theory import static_split
from experiments.simulator.worker import SimulatedWorker
from policies import registry
from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.errors import BadPolicyOption, PoliciesError
from policies.facts import RequestFacts
from policies.policy import Policy
from workers.faults import FaultEffects
from workers.service import Exponential, Fixed, Lognormal, Mixed, Profile, Uniform

if TYPE_CHECKING:
    from experiments.simulator.fleet import SimulatedFleet


class LeastWork:
    """Least remaining work. Requests on the way to a worker count with the mean service time."""

    def __init__(self, fleet: SimulatedFleet, rng: Random) -> None:
        self._workers = fleet.workers
        for worker in fleet.workers.values():
            worker.expect()

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick the worker with the lowest expected time for this request. O(endpoints)."""
        return self._least(available, now)

    def _least(self, drawn: Sequence[EndpointState], now: float) -> EndpointState:
        return min(drawn, key=lambda state: self._price(self._workers[state.id], now))

    def _price(self, worker: SimulatedWorker, now: float) -> float:
        service = worker.seconds_for(worker.model.service.mean)
        ahead = worker.remaining(now) + len(worker.in_transit()) * service / worker.model.slots
        return worker.rtt + service + max(0.0, ahead - worker.half)


class LeastWorkOfFew(LeastWork):
    """Least remaining work among `choices` workers drawn at random (Hellemans and Van Houdt)."""

    def __init__(self, fleet: SimulatedFleet, rng: Random, *, choices: int = 2) -> None:
        super().__init__(fleet, rng)
        self._sample = rng.sample
        self._choices = choices

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick the worker with the least work among those drawn. O(choices)."""
        return self._least(self._sample(available, min(self._choices, len(available))), now)


class CentralQueue:
    """Pick the fastest worker with a free slot. Its endpoints are limited by `most_in_flight`."""

    def __init__(self, fleet: SimulatedFleet, rng: Random) -> None:
        self._workers = fleet.workers

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick the available worker with the shortest round trip plus service time. O(endpoints)."""
        return min(available, key=lambda state: self._price(self._workers[state.id]))

    def _price(self, worker: SimulatedWorker) -> float:
        return worker.rtt + worker.seconds_for(worker.model.service.mean)


class StaticSplit:
    """Random choice with constant shares, optimal for `rate` requests per second."""

    def __init__(self, fleet: SimulatedFleet, rng: Random, *, rate: float) -> None:
        workers = fleet.workers
        mu = [w.model.slots * w.model.speed / w.model.service.mean for w in workers.values()]
        shares, _ = static_split(mu, rate, [w.rtt for w in workers.values()])
        self._until = dict(zip(workers, accumulate(shares), strict=True))
        self._random = rng.random

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Draw a worker by its share; an unavailable one falls to its successor. O(endpoints)."""
        drawn = self._random() * max(self._until.values())
        return next((state for state in available if drawn < self._until[state.id]), available[-1])


FAILURE_COST_S: Final = 1e6
"""Cost in seconds of a request that fails, where clients have no timeout."""


class Spell(NamedTuple):
    """A worker is in this fault state from `begins` to `ends`."""

    begins: float
    ends: float
    fault_state: FaultState
    effects: FaultEffects


class Future:
    """Fault states of one worker, past and future, in order; `began_at` is when the load began."""

    def __init__(self, steps: list[tuple[float, FaultState]], began_at: float) -> None:
        changes = [(-inf, HEALTHY), *((began_at + at, state) for at, state in steps), (inf, HEALTHY)]
        spells = ((at, until, state) for (at, state), (until, _) in pairwise(changes) if at < until)
        self.spells = [Spell(*spell, FaultEffects(spell[-1])) for spell in spells]
        self.least_pace = min(spell.effects.pace for spell in self.spells)
        self.is_uneventful = len(self.spells) == 1
        self._began_at = began_at

    def at(self, instant: float) -> Spell:
        return next(spell for spell in self.spells if instant < spell.ends)

    def admitted(self, at: float) -> Spell | None:
        """The spell in which a request that arrives `at` is admitted: that after a hang; None if it never is."""
        spells = (spell for spell in self.spells if at < spell.ends)
        return next((spell for spell in spells if spell.fault_state.hang < 1.0), None)

    def crashes(self, begins: float, ends: float) -> bool:
        """Whether the process is killed within these instants."""
        return any(
            begins < spell.begins <= ends and spell.fault_state.is_gone and not spell.fault_state.is_graceful
            for spell in self.spells
        )

    def pauses(self, now: float) -> Iterator[tuple[float, float]]:
        """Begin and length of the pauses that begin after `now`, in order."""
        for spell in self.spells:
            pause = spell.fault_state.pause
            if pause is None or spell.ends <= now:
                continue
            at = self._began_at + pause.since
            if pause.every:
                at += max(0.0, ceil((now - at) / pause.every)) * pause.every
            while now < at < spell.ends:
                yield at, pause.length
                at = at + pause.every if pause.every else inf


class Clairvoyant:
    """`oracle-clairvoyant`: where this request is answered first, with all that a simulation knows.

    It knows the work of the request and of all others, those in transit from every balancer included, whether a
    connection is open, and all faults, future ones too: slowness, pauses, hangs and their ends, crashes. A request that
    would fail costs the client's timeout. Of what is drawn on arrival it expects the mean. It decides for each request
    alone and once, among the endpoints that the router offers. So it is a reference that no policy can reach by better
    estimates, but not the optimum of all schedules.
    """

    def __init__(self, fleet: SimulatedFleet, rng: Random) -> None:
        self._fleet = fleet
        self._client = fleet.client
        self._workers = fleet.workers
        self._lost = min(fleet.client.timeout, FAILURE_COST_S)
        self._began_at = -1.0
        self._futures: dict[str, Future] = {}
        for worker in fleet.workers.values():
            worker.expect()

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick the worker with the earliest answer. O(endpoints · (slots + requests in transit)) at worst."""
        if self._began_at != self._fleet.began_at:
            self._look_ahead()
        client = self._client
        place = client.routed & MASK
        best, least = available[0], inf
        for state in available:
            worker, future = self._workers[state.id], self._futures[state.id]
            seconds = client.drawn[worker.profile][place] / worker.model.speed
            lag = connect_seconds(state, worker) + worker.half
            if lag + worker.half + seconds * future.least_pace < least:
                price = self._price(worker, future, now, lag, seconds)
                if price < least:
                    best, least = state, price
        return best

    def _look_ahead(self) -> None:
        """Derive the future of each worker when the load begins; before, none has faults."""
        self._began_at = self._fleet.began_at
        for number, worker in enumerate(self._workers.values()):
            steps = [(step.at, step.fault_state) for step in self._fleet.model.steps if step.worker == number]
            self._futures[worker.id] = Future(steps, self._began_at)

    def _price(
        self, worker: SimulatedWorker, future: Future, now: float, lag: float, seconds: float
    ) -> float:
        """Seconds until the answer, or what a failure costs."""
        at = now + lag
        if future.is_uneventful:
            return self._end(worker, future, at, seconds) + worker.half - now
        spell = future.admitted(at)
        if spell is None or spell.fault_state.is_gone or future.at(now + lag).fault_state.is_gone:
            return self._lost
        at = max(at, spell.begins)
        ends = self._end(worker, future, at, spell.effects.mean(seconds))
        for begins, length in future.pauses(now):
            if begins >= ends:
                break
            ends += max(0.0, min(length, begins + length - at))
        if future.crashes(at, ends):
            return self._lost
        return ends + worker.half - now + spell.effects.lost_share * self._lost

    def _end(self, worker: SimulatedWorker, future: Future, at: float, seconds: float) -> float:
        """End of service of a request that arrives `at`, after those present and those that arrive before."""
        coming = worker.in_transit()
        if worker.shared is not None:
            sharing = len(worker.shared) + len(coming) + 1
            return at + seconds * max(1.0, sharing / worker.model.slots)
        free = worker.slots.free_slots()
        if coming:
            for arrives, drawn in sorted(coming, key=itemgetter(0)):
                if arrives > at:
                    break
                heapreplace(free, max(free[0], arrives) + future.at(arrives).effects.mean(drawn))
        return max(at, free[0]) + seconds


def connect_seconds(state: EndpointState, worker: SimulatedWorker) -> float:
    """Seconds until a connection is open."""
    connections = state.connections
    return 0.0 if connections is None or connections.has_idle else worker.rtt * worker.setup_rtts


LEAST_PAUSE_S: Final = 1.0
"""Seconds that a pause is expected to last at least."""

DELAY_PRICE: Final = 1.0
"""Seconds by which others are delayed for each second that a request waits or is served: it adds to the queue for so
long, and at a utilisation ρ of single slots delays them by ρ / (1 - ρ), so this is that of ρ = 1/2.

Simulated, 30 scenarios, geometric mean of p99: 0.97 of that with 0."""


class Informed:
    """`oracle-informed`: the least expected cost in the present state, without the work of any request.

    It knows of each worker its present speed, slots, discipline, round trip and faults, the distribution of service
    times, how many requests are there or on their way to it from every balancer, and whether a connection is open. It
    knows neither the work of a request nor what happens next. It decides for each request alone and once, among the
    endpoints that the router offers: what a balancer could do whose estimates were exact.

    The present is taken to last. A request to a worker that is gone or has no room costs the client's timeout; one that
    a fault takes costs it times the present share of such requests (`FaultEffects.lost_share`). A pause is expected to
    last as long again as it has lasted, and at least `LEAST_PAUSE_S`.
    """

    def __init__(self, fleet: SimulatedFleet, rng: Random) -> None:
        self._workers = fleet.workers
        self._lost = min(fleet.client.timeout, FAILURE_COST_S)
        self._variance = {worker.id: variance_of(worker.model.service) for worker in fleet.workers.values()}
        for worker in fleet.workers.values():
            worker.expect()
            worker.is_tracked = True

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick the endpoint of least cost, of equal ones the first. O(endpoints + requests in transit)."""
        return min(available, key=lambda state: self._price(state, self._workers[state.id], now))

    def _price(self, state: EndpointState, worker: SimulatedWorker, now: float) -> float:
        """Expected cost in seconds."""
        model = worker.model
        coming = sorted(at for at, _ in worker.in_transit())
        if worker.is_down or len(worker.present) + len(coming) >= model.slots + model.queue:
            return self._lost
        lag = connect_seconds(state, worker) + worker.half
        service = worker.seconds_for(model.service.mean)
        pause = max(LEAST_PAUSE_S, now - worker.paused_since) if now < worker.paused_until else 0.0
        ahead = expected_ahead(worker, coming, service, now + pause, now + lag)
        at_worker = max(0.0, pause - lag)
        if worker.shared is not None:
            service *= max(1.0, (ahead + 1.0) / model.slots)
        elif ahead > model.slots - 1:
            residual = mean_residual(service, worker.effects.variance(self._variance[worker.id]))
            residual *= min(1.0, ahead + 1.0 - model.slots)
            at_worker += (residual + max(0.0, ahead - model.slots) * service) / model.slots
        failed = worker.effects.lost_share * self._lost
        return lag + worker.half + (at_worker + service) * (1.0 + DELAY_PRICE) + failed


def expected_ahead(
    worker: SimulatedWorker, coming: list[float], service: float, begins: float, at: float
) -> float:
    """Expected number of requests that are at the worker when one arrives `at`; it serves from `begins` on.

    A fluid model, exact for what is in service if that is exponential: each busy slot ends 1 / `service` a second."""
    ahead = float(len(worker.present))
    for arrives in coming:
        if arrives <= at:
            ahead = drained(ahead, worker.model.slots, service, arrives - begins) + 1.0
            begins = max(begins, arrives)
    return drained(ahead, worker.model.slots, service, at - begins)


def drained(ahead: float, slots: int, service: float, seconds: float) -> float:
    """Expected number that is left of `ahead` after some seconds."""
    if seconds <= 0.0 or ahead <= 0.0:
        return ahead
    if not service:
        return 0.0
    until_free = max(0.0, ahead - slots) * service / slots
    if seconds <= until_free:
        return ahead - seconds * slots / service
    return min(ahead, slots) * exp((until_free - seconds) / service)


def mean_residual(mean: float, variance: float) -> float:
    """Mean residual life of a service in seconds, E[S²] / 2 E[S]."""
    return (mean + variance / mean) / 2 if mean else 0.0


def variance_of(profile: Profile) -> float:
    match profile:
        case Fixed():
            return 0.0
        case Uniform(low, high):
            return (high - low) ** 2 / 12
        case Lognormal(mean, sigma):
            return mean**2 * expm1(sigma**2)
        case Mixed(short, long, share):
            return share * (1 - share) * (long - short) ** 2
        case Exponential(mean):
            return mean**2


CONSTRUCTORS: tuple[Callable[..., Policy], ...] = (
    LeastWork,
    LeastWorkOfFew,
    CentralQueue,
    StaticSplit,
    Informed,
    Clairvoyant,
)
ORACLES = dict(zip(ORACLE_NAMES, CONSTRUCTORS, strict=True))


def make_policy(fleet: SimulatedFleet, rng: Random) -> Policy:
    """Construct the policy of the fleet's model. Raises `BadInputError`."""
    spec: dict[str, Any] = dict(fleet.model.policy)
    name = spec.pop("name")
    if name in ORACLES:
        try:
            return ORACLES[name](fleet, rng, **spec)
        except TypeError as error:
            raise BadInputError(f"policy '{name}': {error}") from None
    try:
        return registry.make(name, spec, rng)
    except (PoliciesError, BadPolicyOption) as error:
        raise BadInputError(str(error)) from None
