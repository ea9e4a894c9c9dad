"""Cluster: state of the data path that all connections of one process share.

It owns state and implements no protocol. Exchanges and connections get the router, the pools and the time from it;
nothing in the package is global. `control/control_plane.py` configures it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from balancer.errors import SHUTTING_DOWN, ForwardingError
from balancer.exchange.admission import Admission
from balancer.exchange.buffering import BufferBudget, Buffering
from balancer.exchange.client_usage import ClientUsages
from balancer.exchange.hedges import Hedges
from balancer.exchange.request_ids import fresh_ids
from balancer.exchange.tunnel import Tunnels
from balancer.exchange.turns import Turns
from balancer.exchange.wait_queue import RequestQueue
from balancer.http.grpc.status import NAMES
from balancer.http.h1.client import HTTP11, OWN_NAME, Client
from balancer.http.h2.reset_counts import ResetCounts
from balancer.syntax.networks import is_within
from balancer.upstream.dial.target import Routes
from balancer.upstream.pools import Pools
from policies.clock import Clock
from policies.routing.router import Router

if TYPE_CHECKING:
    from balancer.config.schema.buffering import BufferingLimits
    from balancer.exchange.affinity import ResponseEdits
    from balancer.exchange.client_connection import ClientConnection
    from balancer.exchange.explaining import Explaining
    from balancer.exchange.runtime_config import RuntimeConfig
    from balancer.http.h1.request_head import KeyOf
    from balancer.log.access_log import AccessLog
    from balancer.log.journal import Journal
    from balancer.rate_limits.limiter import Limiter
    from balancer.tracing.tracing import Tracing
    from policies.insight.canary import Canary
    from policies.overload.hedging import Hedging
    from policies.routing.assignment import Assignment

TICK_SWEEPS: Final = 4
"""Sweeps, of `SWEEP_PERIOD`, between two ticks of the router, which are a second apart."""

CLOSE_ALL_IDLE: Final = -1.0
"""Idle limit in seconds that closes every idle downstream connection."""


STATUSES: Final = 1000
"""Statuses have three digits."""


@dataclass(slots=True)
class Counts:
    """Totals since the start.

    `retried` and `hedged` count further attempts, after another or beside it. `errors` counts error responses by
    reason, `responses` final responses to clients by status; `failed_arrivals` counts connections that never reached
    HTTP because a TLS handshake or PROXY header failed. `connections` and `requests` include those of HTTP/2, whose
    requests are streams: `http2_resets` counts streams that clients have reset, `http2_floods` and `http2_violations`
    connections ended because of a flood or of an error of the protocol. `rpcs` counts those of gRPC by status code.
    """

    connections: int = 0
    requests: int = 0
    retried: int = 0
    hedged: int = 0
    hedges_won: int = 0
    abandoned: int = 0
    failed_arrivals: int = 0
    http2_connections: int = 0
    http2_streams: int = 0
    http2_resets: int = 0
    http2_floods: int = 0
    http2_violations: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    responses: list[int] = field(default_factory=lambda: [0] * STATUSES)
    rpcs: list[int] = field(default_factory=lambda: [0] * len(NAMES))

    def count_error(self, error: ForwardingError) -> None:
        self.errors[error.reason] += 1


class Cluster:
    """What one process forwards to one pool of endpoints with.

    The default cluster owns the client connections; `named` are the named clusters, which
    share its time and its decisions about connections. `name` is that of the pool.

    `cached_time` is the time of the last sweep. It is free to read, but up to a sweep behind: an instant from which a
    timeout is measured is read from `now`, or the timeout would be early.
    `date_line` is the Date field of the last sweep, added to a response without one (RFC 9110 § 6.6.1).
    `keeps_alive`: downstream connections are kept alive after a response. `idle_limit` is how many seconds an idle
    one is kept. `buffering` is None while buffering is off.

    Set by the control plane: `journal` receives an entry for every request that has ended, `access_log` one for every
    refused one; `reads_load`: load reports of workers are parsed; `canary` is the canary of the policy; `explaining` is
    set while clients may ask for explanations; `limiter` has the rate limits of requests that no route matches;
    `policy` is the label of the policy in force; `tracing` is set while the trace context is propagated.
    """

    journal: Journal | None = None
    access_log: AccessLog | None = None
    reads_load = False
    canary: Canary | None = None
    explaining: Explaining | None = None
    named: tuple[Cluster, ...] = ()
    limiter: Limiter | None = None
    policy = ""
    tracing: Tracing | None = None

    def __init__(
        self,
        router: Router,
        clock: Clock,
        config: RuntimeConfig,
        upstream_limit: int | None = None,
        name: str = "",
    ) -> None:
        self.name = name
        self.router = router
        self.now = clock.now
        self.cached_time = self.started_at = clock.now()
        self.date_line = b""
        self.hedges: Hedges | None = None
        self.admission: Admission | None = None
        self.buffering: Buffering | None = None
        self.is_draining = False
        self.keeps_alive = True
        self.counts = Counts()
        self.resets = ResetCounts()
        self.buffer_budget = BufferBudget()
        self.usages = ClientUsages()
        self.turns = Turns()
        self.receiving = 0  # exchanges that receive a whole body before an endpoint is asked
        self.downstreams: dict[
            ClientConnection, None
        ] = {}  # in order of arrival; a set would be in order of addresses
        self.on_client_left: Callable[[], None] | None = None
        self.tunnels = Tunnels(clock.now, config.timeouts.tunnel_idle, config.timeouts.body_idle)
        self.queue = RequestQueue(router, clock.now, config.limits.queue, config.timeouts.queue)
        self.retries = config.retries
        self.pools = Pools(
            self.cached_time,
            config.pools,
            upstream_limit,
            config.upstream_tls,
            routes=Routes(config.network_routes, clock.now),
            now=clock.now,
        )
        self.pools.on_room = self._descriptor_freed
        self.fresh_id = fresh_ids()
        self.own_name = OWN_NAME  # in Via
        self._sweeps = 0
        self.apply(config)

    def apply(self, config: RuntimeConfig) -> None:
        """Apply a runtime configuration, except for what `ControlPlane.apply` applies itself."""
        self.timeouts = config.timeouts
        if not self.is_draining:
            self.idle_limit = config.timeouts.keep_alive
        self.limits = config.limits
        self.client_requests = config.limits.client_requests
        if not self.name:  # else the bound is the front's
            self.usages.budget.total = config.limits.pending
        self.http2 = config.http2
        self.retries.budget.apply(config.retries.budget)
        self.retries = replace(config.retries, budget=self.retries.budget)
        self.home_region = config.home_region
        self.internal_fields = config.internal_fields
        self.key_of: KeyOf | None = config.key_of
        self.edits: ResponseEdits | None = config.edits
        self.adds_forwarded = config.adds_forwarded
        self.allowed_methods = config.allowed_methods
        self._trusted = config.trusted_proxies
        self._flood_exempt = config.flood_exempt
        self.tunnels.idle, self.tunnels.stall = config.timeouts.tunnel_idle, config.timeouts.body_idle
        self.pools.apply(config.pools)
        self.pools.tls = config.upstream_tls
        self.pools.routes.apply(config.network_routes)
        self._apply_buffering(config.buffering)
        self._apply_hedging(config.hedging)
        self._apply_admission(config)

    def _apply_buffering(self, limits: BufferingLimits) -> None:
        """Apply the rules to all bodies from now on; what is kept beyond a lower bound stays until it is sent."""
        budget = self.buffer_budget
        budget.total = limits.total
        is_on = limits.request > 0 or limits.response > 0
        self.buffering = Buffering(limits.request, limits.response, budget) if is_on else None

    def share_buffers(self, front: Cluster) -> None:
        """Use the budgets and the records of clients of another cluster of this process."""
        self.buffer_budget = budget = front.buffer_budget
        self.usages = front.usages
        if self.buffering is not None:
            self.buffering.budget = budget

    def _apply_hedging(self, hedging: Hedging | None) -> None:
        if self.hedges is not None and hedging is None:
            self.hedges.close()
            self.hedges = None
        elif self.hedges is not None and hedging is not None:
            self.hedges.hedging.apply(hedging)
        elif hedging is not None:
            self.hedges = Hedges(self, hedging)

    def _apply_admission(self, config: RuntimeConfig) -> None:
        rules, queue = config.admission_rules, self.queue
        levels = len(rules.levels) if rules is not None else 1
        queue.apply(config.limits.queue, config.timeouts.queue, levels, config.queue_is_adaptive)
        if self.admission is not None and rules is not None:
            self.admission.rules = rules
        else:
            self.admission = Admission(rules, self.router, queue, self.now) if rules is not None else None

    @property
    def every(self) -> tuple[Cluster, ...]:
        """This cluster and the named ones."""
        return (self, *self.named)

    def drain(self, idle_limit: float = CLOSE_ALL_IDLE) -> None:
        """Drain: close each downstream connection after its response, or when idle for `idle_limit` seconds."""
        for cluster in self.every:
            cluster.is_draining = True
            cluster.keeps_alive = False
            cluster.idle_limit = idle_limit

    def cut(self) -> None:
        """End all that is left when the grace period is over."""
        for cluster in self.every:
            cluster.queue.close()  # first: an exchange that ends would make room for the next waiting request
            cluster.tunnels.abort()
        for downstream in list(self.downstreams):
            downstream.abort(SHUTTING_DOWN)

    def set_crowded(self, is_crowded: bool) -> None:
        """Disable keep-alive while clients wait in the kernel's accept queue, so that descriptors are shared in
        turn."""
        keeps_alive = not (is_crowded or self.is_draining)
        for cluster in self.every:
            cluster.keeps_alive = keeps_alive

    def set_time(self, now: float, date_line: bytes) -> None:
        """Set the cached time and the Date field, at the beginning of a sweep."""
        self.cached_time = now
        self.date_line = date_line

    def sweep(self, now: float) -> None:
        """Sweep what does not belong to single connections: admission, tunnels, retry budget, hedges, pools, router."""
        if self.admission is not None:
            self.admission.sweep()
        self.tunnels.check(now)
        self.retries.budget.note(self.counts.requests, now)
        if self.hedges is not None:
            self.hedges.check(now)
        self.pools.prune(now)
        if self.pools.is_short:
            self._share_descriptors()
        self._sweeps += 1
        if self._sweeps % TICK_SWEEPS == 0:
            self.router.tick()

    def wait_for_descriptor(self, assignment: Assignment) -> None:
        """Take back an assignment for which no connection can be opened: until one is closed, or a request ends, all
        further ones wait in the queue."""
        router = self.router
        self.pools.is_short = True
        router.apply_in_flight_limit(router.in_flight - 1)  # first: settling makes room for the next one
        router.withdraw(assignment)

    def _descriptor_freed(self) -> None:
        """Let one more request be sent: a connection has been closed."""
        if not self.pools.is_full:
            self._apply_in_flight_limit(self.router.in_flight + 1)

    def _share_descriptors(self) -> None:
        """Let as many requests be sent as get a connection; without a limit once none waits."""
        free = self.pools.free
        if free and not len(self.queue):
            self.pools.is_short = False
            self.router.apply_in_flight_limit(self.limits.in_flight)
        elif free:
            self._apply_in_flight_limit(self.router.in_flight + free)

    def _apply_in_flight_limit(self, number: int) -> None:
        configured = self.limits.in_flight
        self.router.apply_in_flight_limit(number if configured is None else min(number, configured))

    def trusts(self, address: str) -> bool:
        """Return whether forwarding fields from this peer are believed."""
        return is_within(address, self._trusted)

    def exempts(self, address: bytes) -> bool:
        """Return whether a client may go on in HTTP/2 after floods: many may share its address."""
        return bool(self._flood_exempt) and is_within(address.decode(), self._flood_exempt)

    def client_of(self, address: bytes, authority: bytes, proto: bytes, version: bytes = HTTP11) -> Client:
        """Return what the requests of a connection from `address` have in common."""
        is_trusted = self.trusts(address.decode())
        return Client(
            address,
            authority,
            proto,
            is_trusted,
            self.internal_fields,
            self.adds_forwarded,
            self.allowed_methods,
            self.admission.fields(is_trusted) if self.admission is not None else None,
            self.tracing,
            version,
            self.own_name,
        )

    def client_left(self) -> None:
        """Report that a client's descriptor has become free."""
        if self.on_client_left is not None:
            self.on_client_left()

    @property
    def in_flight(self) -> int:
        """Number of requests of clients that are being answered."""
        return sum(downstream.answering for downstream in self.downstreams)
