"""What the unit knows of an endpoint at this moment.

Rule of this file: counted here and nowhere else. The router is the only writer; policies and the control
plane read.

Failures count against an endpoint so that it gets fewer requests. But without requests nothing shows that it is well
again: shares of failures fade on both sides alike, and do not change while nobody asks. So blame ends by one of three:

- it returns: a check passes again, or an ejection ends. Whoever says so has reasons; what was before is forgotten, and
  its first failure puts it back (an ejection of its own accord, else the blame, which is then whole);
- a look: LOOK_AFTER its last failure one request goes there as if nothing had been. If that fails, the wait begins
  anew: who fails always costs one request per LOOK_AFTER, however quick its failures are. If it succeeds, two may
  follow, and so on, doubling by the round trip as TCP does;
- nobody hears of it for FORGET_AFTER.
"""

from __future__ import annotations

from math import exp, inf
from typing import Final, Protocol

from policies.health.outlier_detection import Record
from policies.overload.concurrency_limit import Concurrency
from policies.overload.process_share import share
from policies.routing.facts import AdminState, Endpoint, Outcome, OutcomeKind
from policies.stats.latency import FAILURE_COST, FORGET_AFTER, TAU, LatencyModel
from policies.stats.latency_prior import LatencyPrior
from policies.stats.load import Histogram

_OK: Final = OutcomeKind.OK
_TUNNELLED: Final = OutcomeKind.TUNNELLED
_UP: Final = AdminState.UP
_SILENT: Final = frozenset((OutcomeKind.ABANDONED, OutcomeKind.TUNNELLED))
"""Ends that tell nothing of the endpoint."""

LOOK_AFTER: Final = 1.0
"""Seconds after its last failure at which an endpoint is tried again. Within 3 s of being well it is to have its
share: one goes by until the look, a second is left for the answers by which trust doubles."""


class Connections(Protocol):
    """What is known of the connections to one endpoint; whoever keeps them tells."""

    @property
    def is_warm(self) -> bool:
        """Whether a request that is sent now finds one that stands and has room for it."""
        ...

    @property
    def connect_time(self) -> float:
        """Seconds that opening one took lately, until a request could be sent; 0 while nobody knows."""
        ...


class EndpointState:
    """One endpoint: load, latency, health.

    `id`, `region`, `weight`, `limit` repeat the endpoint's fields as plain attributes because every pick
    reads them; `limit` is `inf` where the endpoint states none. While it warms up, `share` (0..1) is less than 1,
    and `weight` and `limit` are less than the endpoint's. `order` is its place in the configuration.

    `standing` is what the operator wants, `healthy` what checks say and `is_reachable` whether they could ask,
    `record` what its failures have led to. `is_sound`: all of these are good, and it is still configured
    (`is_member`). `is_fit`: it may be used, be it because a panic ignores its health. `is_listed` is the router's
    note that it stands in the list of available states. `busy_since` is when it last went from idle to busy with
    requests of this process, `failures` how many requests it has failed since the start.

    `connections` tells what opening one would cost; None where nobody keeps account of them.

    `in_flight` is of the whole unit; `elsewhere` of it, as far as is known, are other processes'. What is this
    process's own stands in `told[row]`, which they read; `told` is None where this process is alone. It is `part` of
    so many `parts` that each have their share of `limit`.
    """

    __slots__ = (
        "_before_look",  # how many more were in flight at the last failure than had succeeded since the start
        "_heard_at",
        "_most",
        "_usual",  # number of requests elsewhere
        "busy_since",
        "concurrency",
        "connections",
        "elsewhere",
        "endpoint",
        "failures",
        "healthy",
        "histogram",
        "id",
        "in_flight",
        "is_fit",
        "is_listed",
        "is_member",
        "is_reachable",
        "is_sound",
        "latency",
        "limit",
        "norms",
        "order",
        "outcomes",
        "part",
        "parts",
        "record",
        "region",
        "row",
        "share",
        "standing",
        "told",
        "weight",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        order: int = 0,
        norms: LatencyPrior | None = None,
        concurrency: Concurrency | None = None,
    ) -> None:
        self.concurrency = concurrency
        self.connections: Connections | None = None
        self._usual = 0.0
        self._heard_at = -inf
        self.in_flight = self.elsewhere = self.row = self.part = 0
        self.parts = 1
        self.told: memoryview[int] | None = None
        self.standing = AdminState.UP
        self.healthy = self.is_reachable = self.is_member = True
        self.is_sound = self.is_fit = self.is_listed = False  # until the router has judged
        self.record = Record()
        self.share = 1.0
        self.busy_since = 0.0
        self.latency = LatencyModel()
        self.histogram = Histogram()
        self.outcomes = dict.fromkeys(OutcomeKind, 0)
        self.failures = self._before_look = 0
        self.norms = norms if norms is not None else LatencyPrior([self])
        self.order = order
        self._copy(endpoint)

    def _copy(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.id = endpoint.id
        self.region = endpoint.region
        self.warm(self.share, inf)

    def limit_found(self) -> None:
        """Bring `limit` in line with what is stated, what was found out, and what a slow start allows."""
        found, most = self.concurrency, self._most
        if found is not None and found.limit < most:
            most = float(found.limit)
        if most < inf:  # both are of the whole unit
            most = float(share(int(most), self.part, self.parts))
        self.limit = min(self._stated_limit(), most)

    def _stated_limit(self) -> float:
        """What this process has of the endpoint's `max_in_flight`; `inf` where there is none."""
        whole = self.endpoint.max_in_flight
        return inf if whole is None else share(whole, self.part, self.parts)

    def take_part(self, part: int, parts: int) -> None:
        """It is one of so many processes that may each send it a part of what it takes."""
        self.part, self.parts = part, parts
        self.limit_found()

    def adopt(self, endpoint: Endpoint, order: int) -> None:
        """Take on a new configuration under the same id. What was learned at another place is not so here."""
        if (endpoint.address, endpoint.region) != (self.endpoint.address, self.endpoint.region):
            self.latency = LatencyModel()
            if self.concurrency is not None:
                self.concurrency = self.concurrency.fresh()
            self.record = Record()
            self.healthy = self.is_reachable = True
            self.is_sound = self.is_fit = False
        self._copy(endpoint)
        self.order = order

    @property
    def is_full(self) -> bool:
        """Whether it holds as many requests of ours as it may."""
        return self.in_flight - self.elsewhere >= self.limit

    @property
    def in_flight_here(self) -> int:
        """Requests of this process at it."""
        return self.in_flight - self.elsewhere

    def hear(self, elsewhere: int, now: float) -> None:
        """So many requests of others are at it, it is said. What is older than a service when it is used is history:
        whoever was idle then has been found by all since. So it is believed by its age, and for the rest the mean."""
        age = now - self._heard_at
        self._heard_at = now
        believed = elsewhere
        service = self.latency.mean if self.latency.has_succeeded else 0.0
        if age < FORGET_AFTER and service > 0.0:
            self._usual += (elsewhere - self._usual) * (1.0 - exp(-age / TAU))
            fresh = exp(-age / (2.0 * service))
            believed = round(self._usual + (elsewhere - self._usual) * fresh)
        else:
            self._usual = float(elsewhere)
        self.in_flight += believed - self.elsewhere
        self.elsewhere = believed

    def stand_alone(self) -> None:
        """Nobody else is to know of it any more, nor to be heard of."""
        self.told = None
        self.in_flight -= self.elsewhere
        self.elsewhere = 0

    def warm(self, share: float, most: float) -> None:
        """It gets this share of its weight, and holds at most so many requests; 1 and `inf`: it is warm."""
        self.share = share
        self.weight = self.endpoint.weight * share
        self._most = most
        self.limit_found()

    @property
    def enabled(self) -> bool:
        """Whether the operator wants it to take requests."""
        return self.standing is _UP

    @property
    def is_ejected(self) -> bool:
        """Whether its failures have put it out for a while."""
        return self.record.until is not None

    @property
    def is_well(self) -> bool:
        """Whether neither checks nor failures speak against it."""
        return self.healthy and self.record.until is None

    @property
    def successes(self) -> int:
        """Requests that ended well since the start; a tunnel that stood was one."""
        outcomes = self.outcomes
        return outcomes[_OK] + outcomes[_TUNNELLED]

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
        self.failures += 1
        self._before_look = self.in_flight_here - self.successes
        slow = self.histogram.quantile(0.99) or 0.0
        self.latency.record_failure(max(slow, outcome.ended_at - outcome.sent_at), outcome.ended_at)

    def returned(self) -> None:
        """It is well again, by whatever said that it was not: what it did before is not held against it."""
        self.latency.renew()

    def is_measured(self, now: float) -> bool:
        """Whether its latency is known and not stale."""
        return self.latency.is_measured(now)

    def blame(self, now: float) -> float:
        """Which part (0..1) of what ended lately has failed; 0 where one more request is a look that is due.

        As many may be out beyond those that were out at the last failure as have succeeded since, and one more.
        """
        latency = self.latency
        if not latency.failures or now - latency.measured_at >= FORGET_AFTER:
            return 0.0
        is_trusted = self.in_flight_here <= self.successes + self._before_look
        return 0.0 if is_trusted and now - latency.failed_at >= LOOK_AFTER else latency.failure_share

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
            if self.in_flight != self.elsewhere:  # of what others have out we do not know how old it is
                busy_since = self.busy_since
                silence = now - (measured_at if measured_at > busy_since else busy_since)
            seconds = latency.predict(self.in_flight, silence, wait_price)
            return seconds + latency.charge * self.blame(now) if latency.failures else seconds
        return self._benefit_of_the_doubt(now)

    def _benefit_of_the_doubt(self, now: float) -> float:
        latency = self.latency
        cost = latency.charge * self.blame(now)
        hope = min(latency.floor, self.norms.latency(self.region, now))
        return hope + cost + FAILURE_COST * self.in_flight

    def __repr__(self) -> str:
        marks = {"unhealthy": not self.healthy, "ejected": self.is_ejected, "full": self.is_full}
        words = [] if self.enabled else [self.standing.value]
        flags = "".join(f" {word}" for word in (*words, *(mark for mark, is_on in marks.items() if is_on)))
        return f"<{self.id} {self.in_flight} in flight{flags}>"
