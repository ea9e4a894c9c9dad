"""The proxy: state that all connections of one process share.

It owns state and implements no protocol. Other modules get the router, the pools and the time from it; nothing in the
package is global.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Final

from balancer.config.transports import transports_of
from balancer.downstream.networks import is_within
from balancer.errors import ForwardingError
from balancer.exchange.admission import Admission
from balancer.exchange.explaining import Explaining, Explanations
from balancer.exchange.hedges import Hedges
from balancer.exchange.tunnel import Tunnels
from balancer.exchange.wait_queue import RequestQueue
from balancer.log.journal import Journal, journal_of
from balancer.membership.active_checks import Checks
from balancer.membership.discovery import Discovery
from balancer.membership.registry import EndpointRegistry, without_reuse
from balancer.recording.recording import Recording
from balancer.upstream.load_probes import LoadProbes
from balancer.upstream.pools import Pools
from balancer.upstream.route import Routes
from policies.insight.canary import Canary
from policies.insight.shadow import Shadow, Shadowed
from policies.policy import Policy
from policies.routing.affinity import StickyCounts
from policies.routing.clock import Clock
from policies.routing.facts import Endpoint
from policies.routing.router import Router

if TYPE_CHECKING:
    from balancer.config.runtime import RuntimeConfig
    from balancer.config.sections import PolicySpec
    from balancer.config.sticky import StickyConfig
    from balancer.downstream.connection import DownstreamConnection
    from balancer.exchange.affinity import ResponseEdits, Stickiness
    from balancer.exchange.request_key import KeyOf
    from balancer.log.access_log import AccessLog
    from balancer.recording.recorder import Recorder
    from policies.overload.hedging import Hedging

CLOSE_ALL_IDLE: Final = -1.0
"""Idle limit in seconds that closes every idle downstream connection."""


@dataclass(slots=True)
class Counts:
    """Totals since the start.

    `retried` and `hedged` count further attempts, after another or beside it. `errors` counts error responses by
    reason; `failed_arrivals` counts connections that never reached HTTP because a TLS handshake or PROXY header failed.
    """

    connections: int = 0
    requests: int = 0
    retried: int = 0
    hedged: int = 0
    hedges_won: int = 0
    abandoned: int = 0
    failed_arrivals: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def count_error(self, error: ForwardingError) -> None:
        self.errors[error.reason] += 1


@dataclass(slots=True)
class ReloadCounts:
    """Reload totals since the start.

    `problem` is the error of the last reload, None if it succeeded; `waiting` are the changed keys that take effect
    only at the next start.
    """

    done: int = 0
    refused: int = 0
    problem: str | None = None
    waiting: tuple[str, ...] = ()


class Proxy:
    """Everything that one process forwards with.

    `cached_time` is the cached time of the last sweep: precise enough for timeouts of seconds, and free to read.
    `date_line` is the Date field of the last sweep, added to a response without one (RFC 9110 § 6.6.1).
    `keeps_alive`: downstream connections are kept alive after a response. `idle_limit` is how many seconds an idle
    one is kept. `terms` is the runtime configuration; `policy` is the policy in force, which may differ from the
    configured one. `journal` receives an entry for every request that has ended; `reads_load`: load reports of workers
    are parsed. `explaining` is set while clients may ask for explanations.
    """

    def __init__(
        self,
        router: Router,
        clock: Clock,
        rng: Random,
        terms: RuntimeConfig,
        *,
        upstream_limit: int | None = None,
        access_log: AccessLog | None = None,
    ) -> None:
        self.router = router
        self.clock = clock
        self._rng = rng
        self.now = clock.now
        self.cached_time = clock.now()
        self.started_at = self.cached_time
        self.policy = terms.policy
        self._inner = router.policy
        self.shadows: tuple[Shadow, ...] = ()
        self.canary: Canary | None = None
        self._update_shadows()
        self._sticky: StickyConfig | None = None
        self._access_log = access_log
        self._recorder: Recorder | None = None
        self.journal: Journal | None = None
        self.reads_load = False
        self._update_observers()
        self.hedges: Hedges | None = None
        self.gate: Admission | None = None
        self.date_line = b""
        self.is_draining = False
        self.keeps_alive = True
        self.counts = Counts()
        self.reload_counts = ReloadCounts()
        self.sticky_counts = StickyCounts()
        self.downstreams: dict[
            DownstreamConnection, None
        ] = {}  # in order of arrival; a set would be in order of addresses
        self.on_client_left: Callable[[], None] | None = None
        self.tunnels = Tunnels(self.cached_time, terms.timeouts.tunnel_idle, terms.timeouts.body_idle)
        self.queue = RequestQueue(router, clock.now, terms.limits.queue, terms.timeouts.queue)
        self.retries = terms.retries
        self.pools = Pools(
            self.cached_time,
            terms.pools,
            upstream_limit,
            terms.upstream_tls,
            routes=Routes(terms.routes, clock.now),
            now=clock.now,
        )
        self.pools.transports = transports_of(terms.endpoints)
        self.pools.without_reuse = without_reuse(terms.endpoints)
        self.pools.replace([state.endpoint for state in router.states])
        self._link_pools()
        self.checks = Checks(router, self.pools, terms.check_plan)
        self.load_probes = LoadProbes(router, self.pools, clock.now)
        prefix = secrets.token_hex(6).encode()
        self.fresh_id: Callable[[], bytes] = map((prefix + b"-%x").__mod__, count()).__next__
        """Return a request id that is unique across processes and runs; runs no Python frame."""
        self.registry = EndpointRegistry(self, terms)
        self.discovery = Discovery(self.registry)
        self.recording = Recording(self, clock)
        self.explanations = Explanations(router, clock.now)
        self.apply(terms)

    def apply(self, terms: RuntimeConfig) -> None:
        """Apply a runtime configuration, except for endpoints and policy, which may have been changed since it was
        loaded."""
        self.terms = terms
        self.timeouts = terms.timeouts
        if not self.is_draining:
            self.idle_limit = terms.timeouts.keep_alive
        self.limits = terms.limits
        self.retries.budget.follow(terms.retries.budget)
        self.retries = replace(terms.retries, budget=self.retries.budget)
        self.home_region = terms.home_region
        self.internal_fields = terms.internal_fields
        self.stickiness: Stickiness | None = terms.stickiness
        self.key_of: KeyOf | None = terms.key_of
        self.edits: ResponseEdits | None = terms.edits
        self.adds_forwarded = terms.adds_forwarded
        self.allowed_methods = terms.allowed_methods
        self._trusted = terms.trusted_proxies
        self.tunnels.idle, self.tunnels.stall = terms.timeouts.tunnel_idle, terms.timeouts.body_idle
        self.pools.apply(terms.pools)
        self.pools.tls = terms.upstream_tls
        self.pools.routes.use(terms.routes)
        self.checks.use(terms.check_plan)
        self.load_probes.use(terms.probe_plan)
        self.router.apply_health(terms.health)
        self.router.apply_concurrency(terms.concurrency)
        self._apply_hedging(terms.hedging)
        self._apply_admission(terms)
        self.recording.apply(terms.record)
        self.explaining: Explaining | None = self.explanations.apply(terms.explain)
        if terms.sticky != self._sticky:
            self._sticky = terms.sticky
            self._use(self._inner)
        self.router.limit(terms.limits.in_flight)  # last: waiting requests may be sent at once

    def _apply_hedging(self, hedging: Hedging | None) -> None:
        if self.hedges is not None and hedging is None:
            self.hedges.close()
            self.hedges = None
        elif self.hedges is not None and hedging is not None:
            self.hedges.hedging.follow(hedging)
        elif hedging is not None:
            self.hedges = Hedges(self, hedging)

    def _apply_admission(self, terms: RuntimeConfig) -> None:
        rules, queue = terms.admission_rules, self.queue
        levels = len(rules.levels) if rules is not None else 1
        queue.apply(terms.limits.queue, terms.timeouts.queue, levels, terms.queue_is_adaptive)
        if self.gate is not None and rules is not None:
            self.gate.rules = rules
        else:
            self.gate = Admission(rules, self.router, queue, self.now) if rules is not None else None

    def drain(self, idle_limit: float = CLOSE_ALL_IDLE) -> None:
        """Drain: close each downstream connection after its response, or when idle for `idle_limit` seconds."""
        self.is_draining = True
        self.keeps_alive = False
        self.idle_limit = idle_limit

    def set_crowded(self, is_crowded: bool) -> None:
        """Disable keep-alive while clients wait in the kernel's accept queue, so that descriptors are shared in
        turn."""
        self.keeps_alive = not (is_crowded or self.is_draining)

    def apply_policy(self, spec: PolicySpec) -> None:
        """Apply a routing policy. Raises `PoliciesError`, and then changes nothing."""
        self._use(spec.make(self._rng))
        self.policy = spec
        if self.access_log is not None:
            self.access_log.policy_changed(self.now(), spec.name)

    def _use(self, policy: Policy) -> None:
        self._inner = policy
        self._update_shadows()
        stickiness = self.stickiness
        self.router.set_policy(
            policy if stickiness is None else stickiness.around(policy, self.sticky_counts)
        )
        self._update_observers()

    @property
    def access_log(self) -> AccessLog | None:
        """The access log, None if it is off."""
        return self._access_log

    @access_log.setter
    def access_log(self, log: AccessLog | None) -> None:
        self._access_log = log
        self._update_observers()

    @property
    def recorder(self) -> Recorder | None:
        """The recorder, None unless a recording runs."""
        return self._recorder

    @recorder.setter
    def recorder(self, recorder: Recorder | None) -> None:
        self._recorder = recorder
        self._update_observers()

    def _update_shadows(self) -> None:
        policy = self._inner
        self.shadows = policy.shadows if isinstance(policy, Shadowed) else ()
        live = policy.live if isinstance(policy, Shadowed) else policy
        self.canary = live if isinstance(live, Canary) else None

    def _update_observers(self) -> None:
        self.journal = journal_of(self._access_log, self._recorder)
        self.reads_load = self._recorder is not None or hasattr(self._inner, "observe")

    def trusts(self, address: str) -> bool:
        """Return whether forwarding fields from this peer are believed."""
        return is_within(address, self._trusted)

    def client_left(self) -> None:
        """Report that a client's descriptor has become free."""
        if self.on_client_left is not None:
            self.on_client_left()

    def replace_endpoints(self, endpoints: list[Endpoint]) -> None:
        """Replace the endpoints; requests in flight at removed ones finish."""
        self.pools.replace(endpoints)  # first: the router sends waiting requests at once
        self.router.replace(endpoints)
        self._link_pools()
        self.checks.follow()

    def put_endpoint(self, endpoint: Endpoint) -> None:
        """Add or change one endpoint, without a scan of the others."""
        self.pools.put(endpoint)  # first: the router sends waiting requests at once
        self.router.put(endpoint)
        self.router.find(endpoint.id).connections = self.pools.by_id[endpoint.id]
        self.checks.follow_one(endpoint.id, endpoint.address)

    def drop_endpoint(self, endpoint_id: str) -> None:
        """Remove one endpoint; its requests in flight finish."""
        self.pools.drop(endpoint_id)
        self.router.drop(endpoint_id)
        self.checks.follow_one(endpoint_id, None)

    def _link_pools(self) -> None:
        for state in self.router.states:
            state.connections = self.pools.by_id[state.id]

    @property
    def in_flight(self) -> int:
        """Number of downstream connections with a request in progress."""
        return sum(downstream.is_answering for downstream in self.downstreams)
