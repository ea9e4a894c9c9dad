"""Prequal: probes in advance, and the lowest latency among endpoints that are not too busy.

Wydrowski, Kleinberg, Rumble and Archer, "Load is not what you should balance: Introducing Prequal", NSDI 2024, section
4. After each query `probes` endpoints drawn at random are probed for their requests in flight. The responses are kept
in a pool (`selection/probe_pool.py`) for later queries. A response is hot if its load is above the quantile `q_rif` of
recent loads. If any are cold, the cold one with the least latency is picked, else the one with the least load. Each
query also removes `remove` responses, the oldest and the worst in turn, and a response is used

    b = max(1, (1 + δ) / ((1 − m/n)·probes − remove))

times, with m the pool's size and n the endpoints; b is rounded at random. Where n is not much above m that is
undefined, and `reuse` bounds it.

The latency is the median measured here at a similar load (`LatencyByLoad`); in the paper the worker measures
it, without the network. Load reports in responses count as probes without cost. Where the proxy does not probe, the
policy uses the balancer's own in-flight counts of the endpoints that it would probe. An endpoint of unknown latency
gets one request at a time until it is known.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Sequence
from random import Random
from typing import Annotated, Final

from policies.endpoint.available import Available
from policies.endpoint.per_endpoint import PerEndpoint
from policies.endpoint.state import EndpointState
from policies.facts import Outcome, OutcomeKind, ReportedLoad, RequestFacts
from policies.insight.explanation import Trace
from policies.options import above, at_least, between
from policies.selection.by_score import to_first_byte
from policies.selection.probe_pool import ProbePool, ProbeResponse, load_of
from policies.selection.two_choices import less_loaded_of_two

SAMPLES_PER_DEGREE: Final = 15
"""Samples per degree: a median that one outlier, or two, does not move."""

FORGET_AFTER: Final = 10.0
"""Seconds without a sample after which a degree is unknown. Until then its estimate decays in proportion: an endpoint
that is avoided cannot show that it is fast, so one that seemed a little slower is tried again soon, and one that was
much slower late."""


def degree(in_flight: int) -> int:
    """Return the degree of a load."""
    if in_flight < 4:
        return max(0, in_flight)
    bits = in_flight.bit_length()
    return 2 * bits - 2 + ((in_flight >> (bits - 2)) & 1)


class Degree:
    """Samples at one degree: their `median` in seconds, and the time `at` of the last one."""

    def __init__(self) -> None:
        self.at = self.median = 0.0
        self.clear()

    def clear(self) -> None:
        self._samples: list[float] = []
        self._sorted: list[float] = []
        self._next = 0

    def add(self, seconds: float, now: float) -> None:
        """Add a sample; it replaces the oldest of SAMPLES_PER_DEGREE."""
        samples, ordered = self._samples, self._sorted
        if len(samples) < SAMPLES_PER_DEGREE:
            samples.append(seconds)
        else:
            del ordered[bisect_left(ordered, samples[self._next])]
            samples[self._next] = seconds
            self._next = (self._next + 1) % SAMPLES_PER_DEGREE
        insort(ordered, seconds)
        self.median = ordered[len(ordered) // 2]
        self.at = now


class LatencyByLoad:
    """Recent latencies of one endpoint by degree of load: of 0, 1, 2, 3 requests, and then two degrees per doubling.

    A few samples are kept per degree of load at which the request was sent, and the median of the degree nearest to the
    load asked for is the estimate. A mean over all loads takes a worker that was busy a moment ago for a slow one;
    Prequal without this is much worse (NSDI 2024, section 4.1 and figure 9). So does the load at the time of the
    response: the last request to leave a queue has waited longest, and leaves an empty queue.
    """

    def __init__(self) -> None:
        self._degrees: defaultdict[int, Degree] = defaultdict(Degree)

    def record(self, in_flight: int, seconds: float, now: float) -> None:
        """Record that a request sent with `in_flight` others took `seconds`."""
        here = self._degrees[degree(in_flight)]
        if now - here.at >= FORGET_AFTER:
            here.clear()
        here.add(seconds, now)

    def read(self, in_flight: int, now: float) -> float | None:
        """Return the estimated seconds at that load, from the nearest known degree; None if no degree is known."""
        key = degree(in_flight)
        here = self._degrees.get(key)
        if here is None or now - here.at >= FORGET_AFTER:
            here = self._nearest(key, now)
            if here is None:
                return None
        return here.median * (1.0 - (now - here.at) / FORGET_AFTER)

    def _nearest(self, key: int, now: float) -> Degree | None:
        nearest, found = 1000, None
        for other, there in self._degrees.items():
            distance = abs(other - key)
            if distance < nearest and now - there.at < FORGET_AFTER:
                nearest, found = distance, there
        return found


COLD = "cold-quickest"
"""Reason: the least latency of those that are not hot. Scores are seconds."""

ALL_HOT = "all-hot-least-loaded"
"""Reason: all are hot, so the least load. Scores are requests per weight."""

NO_PROBES = "no-probes"
"""Reason: fewer than two responses are in the pool, so the less loaded of two. The reason of that pick follows."""

PRIOR_SHARE = 0.5
"""Multiple of the latency prior that is assumed for an endpoint of unknown latency while it has no request. With one it
costs more than any other, so that there is one trial at a time and no stampede."""


class Prequal:
    """Prequal: the lowest latency among endpoints that are not too busy, by probes made in advance."""

    reads_reports = True
    trace: Trace | None = None

    def __init__(
        self,
        rng: Random,
        *,
        pool: Annotated[int, "number of probe responses kept", between(2, 1024)] = 16,
        oldest: Annotated[float, "seconds for which one is kept", above(0)] = 1.0,
        q_rif: Annotated[float, "quantile of the loads above which an endpoint is hot", between(0, 1)] = 0.84,
        probes: Annotated[float, "probes per request", between(0.1, 100)] = 3.0,
        remove: Annotated[float, "responses removed per request", between(0, 100)] = 1.0,
        delta: Annotated[
            float, "δ: rate at which responses arrive above the rate at which they are removed", at_least(0)
        ] = 1.0,
        reuse: Annotated[float, "number of uses of one response at most", at_least(1)] = 4.0,
    ) -> None:
        self._random = rng.random
        self._pool = ProbePool(pool, oldest, q_rif)
        self._probes = probes
        self._remove = remove
        self._delta = delta
        self._reuse = reuse
        self._states: Sequence[EndpointState] = ()
        self._latencies: PerEndpoint[LatencyByLoad] = PerEndpoint(LatencyByLoad)
        self._uses = 1.0
        self._due = self._owed = 0.0
        self._is_probed = False

    def members_changed(self, states: Sequence[EndpointState], now: float) -> None:
        """Remove the probes of removed endpoints, and update the number of uses."""
        self._states = states
        self._latencies.members_changed(states, now)
        self._pool.retain(set(states))
        self._uses = uses(self._pool.size, len(states), self._probes, self._remove, self._delta, self._reuse)

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick by the probes in the pool. O(pool)."""
        pool = self._pool
        pool.expire(now)
        if not self._is_probed:
            for state in self._drawn():
                self._add(state, state.in_flight, now)
        best = pool.best(facts, now, min(2, len(available)))
        if self.trace is not None:
            self._explain(self.trace, best, now)
        if best is None:
            return less_loaded_of_two(available, self._random, now, self.trace)
        probe = pool.use(best)
        if probe is not None:
            probe.latency = self._latency(best, probe.in_flight, best.in_flight + 1, now)
        self._owed += self._remove
        while self._owed >= 1.0:
            self._owed -= 1.0
            pool.remove_one()
        return best

    def _explain(self, trace: Trace, best: EndpointState | None, now: float) -> None:
        if best is None:
            trace.note(NO_PROBES)
            return
        probes = self._pool.probes
        loads = {state: load_of(state, probe, now) for state, probe in probes.items()}
        if loads[best] > self._pool.hot_above:
            trace.note(ALL_HOT, loads, loads.values())
        else:
            cold = [state for state, load in loads.items() if load <= self._pool.hot_above]
            trace.note(COLD, cold, [probes[state].latency for state in cold])

    def probes(self, now: float) -> Sequence[EndpointState]:
        self._is_probed = True
        return self._drawn()

    def observe_probe(self, state: EndpointState, load: ReportedLoad, latency: float, now: float) -> None:
        """Add a probe response; one without a load counts with the balancer's own in-flight count."""
        self._add(state, state.in_flight if load.in_flight is None else load.in_flight, now)

    def observe(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        """Record the latency of a success, and add a load report to the pool."""
        if not state.is_member:
            return
        load = outcome.reported_load
        in_flight = None if load is None else load.in_flight
        if outcome.kind is OutcomeKind.OK:
            others = 0 if in_flight is None else max(0, in_flight - state.in_flight)
            self._latencies[state].record(state.latency.last_ahead + others, to_first_byte(outcome), now)
        if in_flight is not None:
            self._add(state, in_flight, now)

    def _add(self, state: EndpointState, in_flight: int, now: float) -> None:
        in_flight = max(in_flight, state.in_flight)  # the balancer's own requests there are a lower bound
        latency = self._latency(state, in_flight, state.in_flight, now)
        times = int(self._uses + self._random())  # rounded at random
        self._pool.add(state, ProbeResponse(in_flight, latency, now, times))

    def _latency(self, state: EndpointState, in_flight: int, of_ours: int, now: float) -> float:
        """Return the latency in seconds at that load, of which `of_ours` requests are this balancer's."""
        latency = self._latencies[state].read(in_flight, now)
        if latency is None:
            return state.latency_prior.latency(state.region, now) * (of_ours + PRIOR_SHARE)
        return latency

    def _drawn(self) -> list[EndpointState]:
        """Draw as many endpoints as there are probes per query, without replacement; unavailable ones are dropped."""
        self._due += self._probes
        count = int(self._due)
        self._due -= count
        states, random = self._states, self._random
        size = len(states)
        if count >= size:
            return [state for state in states if state.is_selectable]
        drawn: list[EndpointState] = []
        while len(drawn) < count:
            state = states[int(random() * size)]
            if state not in drawn:
                drawn.append(state)
        return [state for state in drawn if state.is_selectable]


def uses(pool: int, endpoints: int, probes: float, remove: float, delta: float, most: float) -> float:
    """Return how often a response is used: b of the paper, at most `most`."""
    spare = (1.0 - pool / endpoints) * probes - remove if endpoints else 0.0
    return min(most, max(1.0, (1.0 + delta) / spare)) if spare > 0 else most
