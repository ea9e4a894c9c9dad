"""What every policy keeps to, as code: run it on your own.

Rule of this file: a policy is judged by what it does through the router, in a time that is only counted. A
run of a minute takes a fraction of a second, and the same seed gives the same run.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from enum import Enum
from itertools import count
from random import Random

from policies.assignment import Assignment
from policies.ejection import EjectionRules
from policies.facts import Endpoint, Outcome, OutcomeKind, RequestFacts
from policies.fitness import Fitness
from policies.policy import PolicyMaker
from policies.router import Router
from policies.slow_start import SlowStart
from policies.state import EndpointState

REGION = "here"

Answer = Callable[[EndpointState, float], tuple[float, OutcomeKind]]
"""(state, sent at) -> (seconds until the answer, how it ends)."""


class ContractBroken(AssertionError):
    """A policy did what no policy may do."""


class ManualClock:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        """Seconds counted so far."""
        return self.time


def endpoints(*weights: float, region: str = REGION) -> list[Endpoint]:
    """One endpoint per weight, "here-0", "here-1", …, in one region."""
    return [Endpoint(f"{region}-{i}", f"http://{region}-{i}", region, w) for i, w in enumerate(weights)]


def steady(state: EndpointState, now: float) -> tuple[float, OutcomeKind]:
    """An endpoint that answers after 100 ms whatever happens."""
    return 0.1, OutcomeKind.OK


class Trial:
    """A policy, endpoints that answer as told, and what happened: `picked` counts requests, `log` has (sent
    at, id, latency)."""

    def __init__(
        self,
        make: PolicyMaker,
        members: Iterable[Endpoint],
        answer: Answer = steady,
        seed: int = 1,
        fitness: Fitness | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.router = Router(members, make(Random(seed)), self.clock, Random(seed + 1), fitness=fitness)
        self.facts = RequestFacts(region=REGION)
        self.log: list[tuple[float, str, float]] = []
        self._answer = answer
        self._rng = Random(seed + 2)
        self._ends: list[tuple[float, int, Assignment | None, OutcomeKind]] = []
        self._order = count()
        self._tick_at = 1.0

    def send(self) -> EndpointState:
        """Route one request; its answer comes when the clock gets there."""
        assignment = self.router.route(self.facts)
        latency, kind = self._answer(assignment.state, self.clock.time)
        self.log.append((self.clock.time, assignment.state.id, latency))
        self._at(self.clock.time + latency, assignment, kind)
        return assignment.state

    def closed_loop(self, outstanding: int, seconds: float) -> None:
        """Keep that many requests outstanding: each answer is followed by the next request, 0–1 ms later."""
        for _ in range(outstanding):
            self.send()
        self._run(self.clock.time + seconds, lambda: self._at(self.clock.time + self._rng.random() * 1e-3))

    def open_loop(self, rate: float, seconds: float) -> None:
        """Send at random instants (Poisson), `rate` per second, whatever comes back."""
        at, until = self.clock.time, self.clock.time + seconds
        while (at := at + self._rng.expovariate(rate)) < until:
            self._at(at)
        self._run(until, lambda: None)

    def picked(self, since: float = 0.0) -> Counter[str]:
        """Requests per endpoint, of those sent from `since` on."""
        return Counter(endpoint for sent_at, endpoint, _ in self.log if sent_at >= since)

    def mean_latency(self, since: float = 0.0) -> float:
        """Seconds, over the requests sent from `since` on."""
        latencies = [latency for sent_at, _, latency in self.log if sent_at >= since]
        return sum(latencies) / len(latencies)

    def _at(
        self, at: float, assignment: Assignment | None = None, kind: OutcomeKind = OutcomeKind.OK
    ) -> None:
        heapq.heappush(self._ends, (at, next(self._order), assignment, kind))

    def _run(self, until: float, after_answer: Callable[[], None]) -> None:
        while self._ends and self._ends[0][0] <= until:
            self._tick_until(self._ends[0][0])
            self.clock.time, _, assignment, kind = heapq.heappop(self._ends)
            if assignment is None:
                self.send()
                continue
            status = 200 if kind is OutcomeKind.OK else None
            sent_at, now = assignment.routed_at, self.clock.time
            self.router.settle(assignment, Outcome(kind, status, sent_at, now, now))
            after_answer()
        self._tick_until(until)
        self.clock.time = until

    def _tick_until(self, at: float) -> None:
        """Once a second, as the balancer does."""
        while self._tick_at <= at:
            self.clock.time = self._tick_at
            self.router.tick()
            self._tick_at += 1.0


def check(make: PolicyMaker) -> None:
    """Hold a policy to all that no policy may break. Raises ContractBroken, saying what."""
    for rule in (
        stays_within_the_set,
        repeats_itself,
        starves_nobody,
        spares_a_cold_endpoint,
        shuns_failures,
        ends_with_failures,
        returns_in_time,
        bears_a_slow_start,
    ):
        rule(make)


def stays_within_the_set(make: PolicyMaker) -> None:
    """Whatever flips, it picks what is on offer, and raises nothing."""
    trial, rng = Trial(make, endpoints(*[1] * 6)), Random(3)
    for _ in range(300):
        trial.router.set_healthy(f"{REGION}-{rng.randrange(1, 6)}", rng.random() < 0.5)
        trial.open_loop(100, 0.1)
    _demand(trial.router.demoted == 0, f"demoted {trial.router.demoted} times: {trial.router.last_fault}")


def repeats_itself(make: PolicyMaker) -> None:
    """The same seed makes the same run: all randomness is the one that was handed in."""
    one, other = (Trial(make, endpoints(1, 2, 3)) for _ in range(2))
    for trial in (one, other):
        trial.closed_loop(10, 10)
    _demand(one.log == other.log, "the same seed gave two different runs")


def starves_nobody(make: PolicyMaker) -> None:
    """An endpoint that was twenty times slower for 30 s has a third of its fair share again 30 s later."""

    def answer(state: EndpointState, now: float) -> tuple[float, OutcomeKind]:
        return 2.0 if state.id == f"{REGION}-0" and now < 30 else 0.1, OutcomeKind.OK

    trial = Trial(make, endpoints(*[1] * 4), answer)
    trial.open_loop(40, 90)
    share = trial.picked(since=60)[f"{REGION}-0"] / trial.picked(since=60).total()
    _demand(share >= 0.25 / 3, f"an endpoint that had recovered got {share:.1%} of the requests")


def spares_a_cold_endpoint(make: PolicyMaker) -> None:
    """A new endpoint among four loaded ones does not get most of the next twenty requests."""
    trial = Trial(make, endpoints(*[1] * 4))
    trial.closed_loop(80, 10)
    trial.router.replace(endpoints(*[1] * 5))
    picked = Counter(trial.send().id for _ in range(20))
    cold = picked[f"{REGION}-4"]
    _demand(cold <= 12, f"a cold endpoint got {cold} of the next 20 requests")


def ends_with_failures(make: PolicyMaker) -> None:
    """With ejection, which is on by default, the same endpoint gets nothing but a try now and then, and has its share
    again when it is well."""

    def answer(state: EndpointState, now: float) -> tuple[float, OutcomeKind]:
        fails = state.id == f"{REGION}-0" and now < 20
        return (0.005, OutcomeKind.RESET) if fails else (0.1, OutcomeKind.OK)

    fitness = Fitness(Random(4), ejection=EjectionRules(time=10.0))
    trial = Trial(make, endpoints(*[1] * 6), answer, fitness=fitness)
    trial.closed_loop(12, 60)
    failed = trial.picked(since=1) - trial.picked(since=20)
    share = failed[f"{REGION}-0"] / failed.total()
    _demand(share <= 0.005, f"an endpoint that fails every request and is ejected got {share:.2%} of them")
    again = trial.picked(since=40)
    share = again[f"{REGION}-0"] / again.total()
    _demand(share >= 1 / 18, f"an endpoint that is back from its ejection got {share:.1%} of the requests")


def returns_in_time(make: PolicyMaker) -> None:
    """An endpoint that failed every request for 3 s has a third of its fair share at least within the three seconds
    after it is well, whatever said that it was ill, and if nobody did."""
    for told in Told:
        share = share_after_return(make, told)
        _demand(share >= 1 / 18, f"an endpoint that is well by {told.value} got {share:.1%} of the requests")


class Told(Enum):
    """How it comes to be known that an endpoint is well again."""

    BY_A_CHECK = "a check"
    BY_ITS_TIME = "the end of an ejection"
    BY_NOBODY = "nothing but requests"


def share_after_return(make: PolicyMaker, told: Told) -> float:
    """The part that one of six gets in the third second after it is well: after the check passes again, the ejection
    is over, or its requests succeed."""
    rules = EjectionRules(failures=2, time=2.0) if told is Told.BY_ITS_TIME else None
    trial = Trial(
        make, endpoints(*[1] * 6), _failing_from_10_to_13(), fitness=Fitness(Random(4), ejection=rules)
    )
    state = trial.router.find(f"{REGION}-0")
    trial.open_loop(500, 10.5)
    trial.router.set_healthy(state.id, told is not Told.BY_A_CHECK)
    trial.open_loop(500, 2.5)
    trial.router.set_healthy(state.id, True)
    well_at = max(trial.clock.time, state.record.until or 0.0)
    trial.open_loop(500, well_at + 3 - trial.clock.time)
    picked = trial.picked(since=well_at + 2)
    return picked[state.id] / picked.total()


def _failing_from_10_to_13() -> Answer:
    rng = Random(5)  # equal latencies would leave it to the last bit who is quicker

    def answer(state: EndpointState, now: float) -> tuple[float, OutcomeKind]:
        fails = state.id == f"{REGION}-0" and 10 <= now < 13
        return (0.005, OutcomeKind.RESET) if fails else (0.015 + 0.01 * rng.random(), OutcomeKind.OK)

    return answer


def bears_a_slow_start(make: PolicyMaker) -> None:
    """A new endpoint that starts slowly gets no more than a little over its part of a fair share, and all of it in
    the end."""
    trial = Trial(make, endpoints(*[1] * 4), fitness=Fitness(Random(4), slow_start=SlowStart(window=20.0)))
    trial.closed_loop(24, 10)
    trial.router.replace(endpoints(*[1] * 5))
    trial.closed_loop(0, 30)
    first = trial.picked(since=10) - trial.picked(since=14)
    share = first[f"{REGION}-4"] / first.total()
    _demand(
        share <= 0.1, f"a new endpoint got {share:.1%} of the requests in the first fifth of its slow start"
    )
    later = trial.picked(since=32)
    share = later[f"{REGION}-4"] / later.total()
    _demand(share >= 0.2 / 3, f"a new endpoint got {share:.1%} of the requests after its slow start")


def shuns_failures(make: PolicyMaker) -> None:
    """An endpoint that fails within five milliseconds gets at most a little over its fair share, however idle
    it looks."""

    def answer(state: EndpointState, now: float) -> tuple[float, OutcomeKind]:
        return (0.005, OutcomeKind.RESET) if state.id == f"{REGION}-0" else (0.1, OutcomeKind.OK)

    trial = Trial(make, endpoints(*[1] * 6), answer)
    trial.closed_loop(24, 10)
    share = trial.picked()[f"{REGION}-0"] / trial.picked().total()
    _demand(share <= 0.2, f"an endpoint that fails every request got {share:.1%} of them")


def _demand(kept: bool, otherwise: str) -> None:
    if not kept:
        raise ContractBroken(otherwise)
