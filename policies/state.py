"""What the unit knows of an endpoint at this moment.

Rule of this file: counted here and nowhere else. The router is the only writer; policies and the control
plane read.
"""

from __future__ import annotations

from math import inf
from typing import Final

from policies.concurrency import Concurrency
from policies.facts import Endpoint, Outcome, OutcomeKind
from policies.latency import FAILURE_COST, FORGET_AFTER, LatencyModel
from policies.load import Histogram
from policies.norms import Norms

_OK: Final = OutcomeKind.OK
_SILENT: Final = frozenset((OutcomeKind.ABANDONED, OutcomeKind.TUNNELLED))
"""Ends that tell nothing of the endpoint."""


class EndpointState:
    """One endpoint: load, latency, health.

    `id`, `region`, `weight`, `limit` repeat the endpoint's fields as plain attributes because every pick
    reads them; `limit` is `inf` where the endpoint states none. `order` is its place in the configuration.
    `is_listed` is the router's note that it stands in the list of available states, `is_member` that it is
    still configured. `busy_since` is when it last went from idle to busy.
    """

    __slots__ = (
        "busy_since",
        "concurrency",
        "enabled",
        "endpoint",
        "healthy",
        "histogram",
        "id",
        "in_flight",
        "is_listed",
        "is_member",
        "latency",
        "limit",
        "norms",
        "order",
        "outcomes",
        "region",
        "weight",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        order: int = 0,
        norms: Norms | None = None,
        concurrency: Concurrency | None = None,
    ) -> None:
        self.concurrency = concurrency
        self.in_flight = 0
        self.enabled = self.healthy = self.is_member = True
        self.is_listed = False
        self.busy_since = 0.0
        self.latency = LatencyModel()
        self.histogram = Histogram()
        self.outcomes = dict.fromkeys(OutcomeKind, 0)
        self.norms = norms if norms is not None else Norms([self])
        self.order = order
        self._copy(endpoint)

    def _copy(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.id = endpoint.id
        self.region = endpoint.region
        self.weight = endpoint.weight
        self.limit_found()

    def limit_found(self) -> None:
        """Bring `limit` in line with what is stated and what was found out."""
        stated, found = self.endpoint.max_in_flight, self.concurrency
        self.limit = inf if stated is None else stated
        if found is not None and found.limit < self.limit:
            self.limit = found.limit

    def adopt(self, endpoint: Endpoint, order: int) -> None:
        """Take on a new configuration under the same id. Latency learned at another place is not latency
        here."""
        if (endpoint.address, endpoint.region) != (self.endpoint.address, self.endpoint.region):
            self.latency = LatencyModel()
            if self.concurrency is not None:
                self.concurrency = self.concurrency.fresh()
        self._copy(endpoint)
        self.order = order

    @property
    def is_full(self) -> bool:
        """Whether it holds as many requests as it may."""
        return self.in_flight >= self.limit

    @property
    def is_fit(self) -> bool:
        """Whether it may be used at all, were it not full."""
        return self.enabled and self.healthy and self.is_member

    @property
    def available(self) -> bool:
        """Whether it can take a request now."""
        return self.is_fit and not self.is_full

    def count(self, outcome: Outcome, ahead: int) -> None:
        """Learn from how a request that had been sent behind `ahead` others ended.

        Latency is taken to the first byte: the rest depends on the size of the answer and on how fast the
        client reads, which is no merit or fault of the endpoint. The histogram holds whole answers: it is
        for people.
        """
        kind = outcome.kind
        self.outcomes[kind] += 1
        if kind is _OK:
            sent_at, ended_at = outcome.sent_at, outcome.ended_at
            first_byte_at = outcome.first_byte_at
            first = ended_at if first_byte_at is None else first_byte_at
            self.latency.record(first - sent_at, ahead, ended_at)
            self.histogram.record(ended_at - sent_at)
        elif kind not in _SILENT:
            self._charge(outcome)

    def _charge(self, outcome: Outcome) -> None:
        """A failure weighs as much as the slowest successes, however fast it came."""
        slow = self.histogram.quantile(0.99) or 0.0
        self.latency.record_failure(max(slow, outcome.ended_at - outcome.sent_at), outcome.ended_at)

    def is_measured(self, now: float) -> bool:
        """Whether its latency is known and not stale."""
        return self.latency.is_measured(now)

    def predicted_latency(self, now: float, wait_price: float = 1.0) -> float:
        """Seconds that one more request, sent now, is expected to cost; always finite.

        Each second of wait counts `wait_price` seconds: who looks after the pool rather than one request
        prices the wait that the request causes to others, too. An endpoint that is unmeasured gets the
        benefit of the doubt for one request at a time: its own floor or what is usual among its peers,
        whichever is less. While that trial is under way it is dearer than any other.
        """
        latency = self.latency
        measured_at = latency.measured_at
        if now - measured_at < FORGET_AFTER and latency.has_succeeded:
            silence = 0.0
            if self.in_flight:
                busy_since = self.busy_since
                silence = now - (measured_at if measured_at > busy_since else busy_since)
            return latency.predict(self.in_flight, silence, wait_price)
        return self._benefit_of_the_doubt(now)

    def _benefit_of_the_doubt(self, now: float) -> float:
        latency = self.latency
        cost = latency.failure_cost if latency.is_measured(now) else 0.0
        hope = min(latency.floor, self.norms.latency(self.region, now))
        return hope + cost + FAILURE_COST * self.in_flight

    def __repr__(self) -> str:
        marks = {"disabled": not self.enabled, "unhealthy": not self.healthy, "full": self.is_full}
        flags = "".join(f" {mark}" for mark, is_on in marks.items() if is_on)
        return f"<{self.id} {self.in_flight} in flight{flags}>"
