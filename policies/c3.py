"""C3: ranks endpoints by latency and by a queue that it fears more than in proportion.

Rule of this file: the score of Suresh, Canini, Schmid and Feldmann, "C3: Cutting Tail Latency in Cloud Data Stores via
Adaptive Replica Selection", NSDI 2015, section 3.1:

    Ψ = R − 1/μ + q̂³/μ        q̂ = 1 + os·w + q

R is the mean latency seen here, 1/μ the mean service time and q the mean queue that the worker reports, os what is in
flight there from here, w how many balancers there are (each takes the others for as busy as itself). The cube keeps a
quick endpoint from having a queue that is as long in seconds as a slow one's: that is long in requests, and all of
them wait when it slows down.

Here q̂ is per weight. A worker that reports no service time is taken to need the least latency that was seen of it; one
that reports no queue, none. The paper's rate control is not here: limits and queues belong to the router.
"""

from __future__ import annotations

from random import Random

from policies.by_score import ByScore
from policies.errors import BadPolicyOption
from policies.facts import Outcome, OutcomeKind, ReportedLoad
from policies.load import Ewma
from policies.options import at_least
from policies.pages import Pages
from policies.state import EndpointState

FADE = 3.0
"""Seconds after which a sample counts 1/e. The paper counts by samples (α = .9); by time, a quiet endpoint's past
fades as a busy one's does, and is forgotten after 14 s."""


class Feedback:
    """The three means of one endpoint."""

    __slots__ = ("latency", "queue", "service")

    def __init__(self) -> None:
        self.latency = Ewma(FADE)
        self.queue = Ewma(FADE)
        self.service = Ewma(FADE)

    def hear(self, load: ReportedLoad, now: float) -> None:
        """What the worker says of itself."""
        if load.in_flight is not None:
            self.queue.add(load.in_flight, now)
        if load.service_time is not None:
            self.service.add(load.service_time, now)


class C3(ByScore):
    """The least of three by C3's rank: mean latency, and the cube of the queue that is to be expected."""

    def __init__(
        self, rng: Random, *, choices: int = 3, exponent: float = 3.0, balancers: float = 1.0
    ) -> None:
        super().__init__(rng, choices)
        if not exponent > 0:
            raise BadPolicyOption("exponent", f"must be > 0, got {exponent}")
        self._exponent = exponent
        self._balancers = at_least(1, balancers=balancers)
        self._heard: Pages[Feedback] = Pages(Feedback)

    def members_changed(self, states: list[EndpointState], now: float) -> None:
        """Remember those that are there."""
        self._heard.follow(states)

    def observe(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        """A success tells a latency; any answer may carry a report."""
        if not state.is_member:
            return
        heard = self._heard[state]
        if outcome.kind is OutcomeKind.OK:
            until = outcome.first_byte_at if outcome.first_byte_at is not None else outcome.ended_at
            heard.latency.add(until - outcome.sent_at, now)
        if outcome.reported_load is not None:
            heard.hear(outcome.reported_load, now)

    def observe_probe(self, state: EndpointState, load: ReportedLoad, latency: float, now: float) -> None:
        """Reports count however they come."""
        self._heard[state].hear(load, now)

    def score(self, state: EndpointState, now: float) -> float:
        """Ψ in seconds; who fails seems to have a long queue. Who has not been heard of is as is usual, with no queue."""
        heard = self._heard[state]
        latency = heard.latency.read(now)
        if latency is None:
            latency = state.norms.latency(state.region, now)
        service = heard.service.read(now)
        if service is None:
            service = min(latency, state.latency.floor)
        queue = 1.0 + state.in_flight * self._balancers + (heard.queue.read(now) or 0.0)
        if state.latency.failures:
            queue += FAILING * state.blame(now)
        score: float = latency - service + (queue / state.weight) ** self._exponent * service
        return score
