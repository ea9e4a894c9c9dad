"""Load, latency and health of an endpoint, as the balancer sees them.

Policies and reports read it. It is written by few, each on the event loop's thread:

- `routing/router.py`: requests in flight, outcomes, `busy_since`, `reported_at`;
- `routing/endpoint_set.py`: membership, order, admin state, results of checks, selectability;
- `health/` (called by the endpoint set): health, eligibility, ejection, slow start;
- `balancer/sharing/siblings.py` and `routing/units.py`: counts and latencies of sibling processes and other units, by
  methods of the state;
- the balancer's `control_plane.py` and the simulator: `connections`, the pool of the endpoint.

Failures reduce the requests that an endpoint gets. But without requests nothing shows that it has recovered:
failures and successes decay by the same factor, so the failure share does not change while there are no requests. The
failure penalty therefore ends in one of three ways:

- Recovery is reported: a check passes again, or an ejection ends. The earlier failures are forgotten, and the first new
  failure restores the former state (an ejection, or else the full penalty).
- A trial: TRIAL_AFTER its last failure the endpoint gets one request without penalty. If it fails, the wait starts
  again, so an endpoint that always fails costs one request per TRIAL_AFTER, however fast its failures are. If it
  succeeds, two may follow, and so on, doubling per round trip as in TCP slow start.
- No outcome is recorded for FORGET_AFTER.
"""

from __future__ import annotations

from math import inf
from typing import Final, Protocol

from policies.endpoint.concurrency_limit import Concurrency
from policies.endpoint.ejection import OutlierState
from policies.endpoint.elsewhere import Elsewhere
from policies.endpoint.latency_prior import LatencyPrior
from policies.endpoint.overtaken import Overtaken
from policies.facts import AdminState, Endpoint, Outcome, OutcomeKind
from policies.stats.latency import FAILURE_COST, FORGET_AFTER, TAU, LatencyModel
from policies.stats.load import Histogram
from policies.stats.shared_latency import SharedLatency, pooled

_OK: Final = OutcomeKind.OK
_READY: Final = AdminState.READY

TRIAL_AFTER: Final = 1.0
"""Seconds after its last failure at which an endpoint is tried again. A recovered endpoint is to have its share within
3 s: one passes until the trial, another is left for the responses by which the number of trial requests doubles."""


def share_of_process(whole: int, index: int, of: int) -> int:
    """Return the share of process `index` in a limit `whole` of all `of` processes together, at least 1.

    The shares add up to `whole` unless it is less than `of`.
    """
    return max(1, whole // of + (index < whole % of))


class Connections(Protocol):
    """State of the upstream connections to one endpoint, reported by the connection pool."""

    @property
    def has_idle(self) -> bool:
        """Whether a request sent now finds an open connection with room for it."""
        ...

    @property
    def connect_time(self) -> float:
        """Seconds that opening a connection took lately, until a request could be sent; 0 if unknown."""
        ...

    @property
    def round_trip(self) -> float:
        """Seconds of the last TCP handshake, or a configured round trip if that is longer; 0 if unknown."""
        ...


class EndpointState:
    """State of one endpoint: load, latency, health.

    `id`, `region`, `weight`, `limit` repeat the endpoint's fields as plain attributes because every pick reads them;
    `limit` is `inf` where the endpoint has none. A slow start reduces `weight` and `limit`.
    """

    __slots__ = (
        "_before_look",
        "_overtaken",
        "_silent_since",
        "_slow_start_limit",
        "_waited",
        "_waited_until",
        "admin_state",
        "awaiting",
        "busy_since",
        "concurrency",
        "connections",
        "elsewhere",
        "endpoint",
        "estimate",
        "failures",
        "histogram",
        "id",
        "in_flight",
        "is_called",
        "is_eligible",
        "is_healthy",
        "is_member",
        "is_reachable",
        "is_selectable",
        "latency",
        "latency_prior",
        "limit",
        "order",
        "other_outcomes",
        "part",
        "parts",
        "passes_checks",
        "proven_at",
        "published",
        "published_at",
        "record",
        "region",
        "reported_at",
        "sent",
        "share",
        "siblings",
        "successes",
        "units",
        "weight",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        order: int = 0,
        latency_prior: LatencyPrior | None = None,
        concurrency: Concurrency | None = None,
    ) -> None:
        self.concurrency = concurrency
        self.connections: Connections | None = None  # None: connections are not tracked
        self.reported_at = -inf  # when it last reported its load to a load probe
        self.in_flight = 0  # requests of all sibling processes and of other units
        self.elsewhere = 0  # the estimated part of the others in it
        self.siblings, self.units = Elsewhere(), Elsewhere()
        self.awaiting = 0  # requests of this process that have no response head yet
        self.part, self.parts = 0, 1  # this process and their number: each has its share of `limit`
        self.published: memoryview[int] | None = None  # counts for siblings; None: this process is alone
        self.published_at = 0  # index of this process's own count
        self.admin_state = AdminState.READY
        self.passes_checks = self.is_reachable = True  # result of active checks; whether these got an answer
        self.is_member = True  # still configured
        self.is_healthy = False  # ready, a member, and all of checks and outlier detection are good
        self.is_eligible = False  # it may be used, possibly because a panic ignores its health
        self.is_called = True  # its priority level gets requests
        self.is_selectable = False  # it is in the router's list of available states
        self.record = OutlierState()
        self.sent = 0  # requests of this process so far, by which they are numbered
        self._overtaken: Overtaken | None = None  # None: not read
        self.share = 1.0  # of its weight, during a slow start
        self.busy_since = 0.0  # when it last went from idle to busy with requests of this process
        self.proven_at = -inf  # latest time at which a request was sent that has succeeded
        self._silent_since = self._waited = self._waited_until = 0.0
        self.estimate: object = None  # what a policy keeps of it; see `LeastCost`
        self.latency = LatencyModel()
        self.histogram = Histogram()
        self.successes = 0  # requests that have succeeded since the start, and established tunnels
        self.other_outcomes = dict.fromkeys(OutcomeKind, 0)  # all but OK, by outcome
        self.failures = 0  # requests that it has failed since the start
        self._before_look = 0  # in-flight minus successes at the last failure: what the trial may exceed
        self.latency_prior = latency_prior if latency_prior is not None else LatencyPrior([self])
        self.order = order  # position in the configuration
        self._copy(endpoint)

    def _copy(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.id = endpoint.id
        self.region = endpoint.region
        self.apply_slow_start(self.share, inf)

    def update_limit(self) -> None:
        """Update `limit` from the configured limit, the adaptive limit and what a slow start allows."""
        found, most = self.concurrency, self._slow_start_limit
        if found is not None and found.limit < most:
            most = float(found.limit)
        if most < inf:  # both are of all processes together
            most = float(share_of_process(int(most), self.part, self.parts))
        configured = self.endpoint.max_in_flight
        if configured is not None:
            most = min(most, share_of_process(configured, self.part, self.parts))
        self.limit = most

    def set_process(self, part: int, parts: int) -> None:
        """Set this process's index and the number of sibling processes, which share the endpoint's limit."""
        self.part, self.parts = part, parts
        self.update_limit()

    def apply(self, endpoint: Endpoint, order: int) -> None:
        """Apply a new configuration under the same id. A change of address or region discards what was learned; that
        of the address alone, as of another worker, also what is known of its health."""
        has_moved = endpoint.address != self.endpoint.address
        if has_moved or endpoint.region != self.region:
            self._forget_service(None if self.concurrency is None else Concurrency(self.concurrency.rules))
        if has_moved:
            self._forget_health()
        self._copy(endpoint)
        self.order = order

    def return_as(self, endpoint: Endpoint, order: int, concurrency: Concurrency | None) -> None:
        """Begin anew after a removal, except for requests in flight and counters."""
        self.is_member = self.is_called = True
        self.admin_state = AdminState.READY
        self.share = 1.0
        self._forget_service(concurrency)
        self._forget_health()
        self._copy(endpoint)
        self.order = order

    def _forget_service(self, concurrency: Concurrency | None) -> None:
        self.latency = LatencyModel()
        self.concurrency = concurrency

    def _forget_health(self) -> None:
        self.record = OutlierState()
        self.passes_checks = self.is_reachable = True
        self.is_healthy = self.is_eligible = False

    def await_one(self, change: int, now: float) -> None:
        """Count one more request without a response head, or with `change` −1 one less."""
        if change < 0 or not self.awaiting:
            self._silent_since = now
        self._waited = self.waited(now)
        self._waited_until = now
        self.awaiting += change

    def answer(self, number: int, now: float) -> None:
        """Count the request of this number as answered, or as ended."""
        self.await_one(-1, now)
        if self._overtaken is not None:
            self._overtaken.answer(number)

    @property
    def overtaken(self) -> Overtaken:
        """Requests that wait although later ones were answered; kept from the first read on, as each request costs."""
        if self._overtaken is None:
            self._overtaken = Overtaken(self.sent, self.awaiting)
        return self._overtaken

    def forget_overtaken(self) -> None:
        """Keep no overtaken requests until they are read again."""
        self._overtaken = None

    def await_none(self, now: float) -> None:
        """Count one request less that waits for a response head, because it is not sent yet."""
        self._waited = self.waited(now)
        self._waited_until = now
        self.awaiting -= 1

    def waited(self, now: float) -> float:
        """Return the sum of the seconds that requests of this process have waited for their response heads."""
        return self._waited + self.awaiting * (now - self._waited_until)

    def overdue(self, now: float) -> float:
        """Return how many answers are expected since the last one, at the recent mean latency (Little's law).

        Requests of this process alone count. The least latency is subtracted from the time: no answer comes sooner."""
        latency = self.latency
        if not self.awaiting or not latency.successes:
            return 0.0
        silence = now - self._silent_since - latency.floor
        return self.awaiting * silence / latency.mean if silence > 0.0 else 0.0

    @property
    def is_full(self) -> bool:
        """Whether this process has as many requests in flight there as it may."""
        return self.in_flight - self.elsewhere >= self.limit

    @property
    def in_flight_here(self) -> int:
        """Requests that this process has in flight there."""
        return self.in_flight - self.elsewhere

    def update_elsewhere(self, elsewhere: int, now: float) -> None:
        """Update the requests that sibling processes have in flight; a stale report decays to the mean."""
        siblings = self.siblings
        self._believe(siblings, elsewhere, now, (now - siblings.counted_at) / 2.0)

    def update_units(self, in_flight: int, now: float, age: float) -> None:
        """Update the requests that other units have in flight; the report is `age` seconds old when it is used."""
        self._believe(self.units, in_flight, now, age)

    def _believe(self, source: Elsewhere, count: int, now: float, age: float) -> None:
        service = self.latency.mean if self.latency.successes > 0.0 else 0.0
        self._change_elsewhere(source.update(count, now, age, service))

    def _change_elsewhere(self, change: int) -> None:
        self.in_flight += change
        self.elsewhere += change

    def pool_latency(self, source: Elsewhere, latency: SharedLatency) -> None:
        """Include the measurements that `source` reports now, in place of its former ones."""
        source.latency = latency
        self.latency.pool(pooled((self.siblings.latency, self.units.latency), TAU))

    def forget_units(self) -> None:
        self._change_elsewhere(self.units.forget())
        self.pool_latency(self.units, self.units.latency)

    def publish(self, counts: memoryview[int], at: int) -> None:
        """Publish this process's requests in flight to sibling processes in `counts[at]` from now on."""
        self.published, self.published_at = counts, at
        counts[at] = self.in_flight_here

    def stop_sharing(self) -> None:
        """Stop sharing in-flight counts with sibling processes."""
        self.published = None
        self._change_elsewhere(self.siblings.forget())

    def apply_slow_start(self, share: float, most: float) -> None:
        """Apply a slow start: `share` of its weight, at most `most` requests. 1 and `inf` end the slow start."""
        self.share = share
        self.weight = self.endpoint.weight * share
        self._slow_start_limit = most
        self.update_limit()

    @property
    def enabled(self) -> bool:
        return self.admin_state is _READY

    @property
    def is_ejected(self) -> bool:
        return self.record.until is not None

    @property
    def passes_health(self) -> bool:
        """Whether active checks pass and it is not ejected."""
        return self.passes_checks and self.record.until is None

    @property
    def outcomes(self) -> dict[OutcomeKind, int]:
        """Requests since the start by their outcome."""
        others = sum(number for kind, number in self.other_outcomes.items() if kind.is_success)
        return {**self.other_outcomes, _OK: self.successes - others}

    @property
    def available(self) -> bool:
        """Whether it can take a request now: eligible, of a level that gets requests, and not full."""
        return self.is_eligible and self.is_called and not self.is_full

    def count(self, outcome: Outcome, ahead: int, number: int) -> bool:
        """Record the outcome of the request of this number, which was sent behind `ahead` others.

        Returns whether it is a failure of the endpoint.

        Latency is measured to the first byte: the rest depends on the response size and on the client's reading speed,
        not on the endpoint. The histogram holds whole responses, for display.
        """
        kind = outcome.kind
        if kind is _OK:
            self.successes += 1
            sent_at, ended_at = outcome.sent_at, outcome.ended_at
            if sent_at > self.proven_at:
                self.proven_at = sent_at
            first_byte_at = outcome.first_byte_at
            first = ended_at if first_byte_at is None else first_byte_at
            if self._overtaken is not None:
                self._overtaken.succeed(number, self.sent, self.awaiting, first - sent_at, ended_at)
            self.latency.record(first - sent_at, ahead, ended_at)
            self.histogram.record(ended_at - sent_at)
            return False
        self.other_outcomes[kind] += 1
        if kind.is_success:
            self.successes += 1
        is_failure = kind.is_failure
        if is_failure:
            self._record_failure(outcome)
        return is_failure

    def _record_failure(self, outcome: Outcome) -> None:
        """Record a failure, which costs as much as the slowest successes, however fast it came."""
        self.failures += 1
        self._before_look = self.in_flight_here - self.successes
        slow = self.histogram.quantile(0.99) or 0.0
        self.latency.record_failure(max(slow, outcome.ended_at - outcome.sent_at), outcome.ended_at)

    def is_measured(self, now: float) -> bool:
        """Whether its latency is known and not stale."""
        return now - self.latency.measured_at < FORGET_AFTER

    def failure_penalty(self, now: float) -> float:
        """Return the failure share (0..1) of recent requests; 0 where one more request is a trial that is due.

        Beyond the requests that were out at the last failure, as many may be out as have succeeded since, and one more.
        """
        latency = self.latency
        if not latency.failures or now - latency.measured_at >= FORGET_AFTER:
            return 0.0
        is_trusted = self.in_flight_here <= self.successes + self._before_look
        return 0.0 if is_trusted and now - latency.failed_at >= TRIAL_AFTER else latency.failure_share

    def predicted_latency(self, now: float, wait_price: float = 1.0) -> float:
        """Return the seconds that one more request, sent now, is expected to cost; always finite.

        Each second of wait counts `wait_price` seconds: a policy that optimizes the cluster rather than one request
        also prices the wait that the request causes to others. An unmeasured endpoint gets one trial request at a time,
        at the lesser of its own floor and the latency prior of its peers. While that trial is under way it costs more
        than any other.
        """
        latency = self.latency
        measured_at = latency.measured_at
        if now - measured_at < FORGET_AFTER and latency.successes > 0.0:
            silence = 0.0
            if self.in_flight != self.elsewhere:  # the age of requests of sibling processes is unknown
                busy_since = self.busy_since
                silence = now - (measured_at if measured_at > busy_since else busy_since)
            seconds = latency.predict(self.in_flight, silence, wait_price)
            return seconds + latency.charge * self.failure_penalty(now) if latency.failures else seconds
        return self._unmeasured_latency(now)

    def _unmeasured_latency(self, now: float) -> float:
        latency = self.latency
        cost = latency.charge * self.failure_penalty(now)
        hope = min(latency.floor, self.latency_prior.latency(self.region, now))
        return hope + cost + FAILURE_COST * self.in_flight

    def __repr__(self) -> str:
        marks = {"unhealthy": not self.passes_checks, "ejected": self.is_ejected, "full": self.is_full}
        words = [] if self.enabled else [self.admin_state.value]
        flags = "".join(f" {word}" for word in (*words, *(mark for mark, is_on in marks.items() if is_on)))
        return f"<{self.id} {self.in_flight} in flight{flags}>"
