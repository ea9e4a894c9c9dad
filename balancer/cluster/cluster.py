"""Cluster: a group of endpoints and what forwards requests to them, one for each `[clusters.NAME]` and a default one.

It owns router, connection pools, wait queue, retry budget and limits, and implements no protocol.
`control/control_plane.py` configures it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from balancer.clients.client_usage import ClientUsage
from balancer.cluster.admission import Admission, admission_rules
from balancer.cluster.affinity import Stickiness
from balancer.cluster.explaining import Explaining
from balancer.cluster.hedge_timer import HedgeTimer
from balancer.cluster.retry_rules import Retries
from balancer.cluster.runtime_config import RuntimeConfig
from balancer.cluster.wait_queue import RequestQueue
from balancer.config.loading import Settings
from balancer.config.schema.limits import BufferingLimits, Timeouts
from balancer.errors import ForwardingError
from balancer.http.grpc.status import NAMES
from balancer.http.h1.client import HTTP11, Client
from balancer.http.h1.load_report import LoadReports
from balancer.http.h1.own_responses import BodyForm, error_body, openai_body
from balancer.http.h1.request_head import KeyOf
from balancer.inference.prompt_reader import PromptReader
from balancer.log.journal import Journal
from balancer.process_context import ProcessContext
from balancer.rate_limits.limiter import Limiter
from balancer.syntax.networks import is_within
from balancer.upstream.dial.target import Routes
from balancer.upstream.pools import Pools
from policies.insight.canary import Canary
from policies.overload.hedging import Hedging
from policies.overload.rests import Rests
from policies.routing.assignment import Assignment
from policies.routing.router import Router

TICK_SWEEPS: Final = 4
"""Sweeps, of `SWEEP_PERIOD`, between two ticks of the router, which are a second apart."""

STATUSES: Final = 1000
"""Statuses have three digits."""


class OpenTunnel(Protocol):
    """A tunnel, as the cluster needs it."""

    @property
    def bytes_in(self) -> int: ...
    @property
    def bytes_out(self) -> int: ...
    def check(self, now: float, idle: float, stall: float, /) -> None: ...
    def abort(self) -> None: ...


class Tunnels:
    """All open tunnels, and byte totals of all tunnels since the start."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self._open: dict[OpenTunnel, None] = {}  # in order of opening
        self._bytes_in = self._bytes_out = 0
        self.opened = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[OpenTunnel]:
        return iter(list(self._open))

    def add(self, tunnel: OpenTunnel) -> None:
        self._open[tunnel] = None
        self.opened += 1

    def remove(self, tunnel: OpenTunnel) -> None:
        """Remove a closed tunnel and add up its bytes."""
        self._open.pop(tunnel, None)
        self._bytes_in += tunnel.bytes_in
        self._bytes_out += tunnel.bytes_out

    @property
    def bytes_in(self) -> int:
        """Bytes received from clients since the start."""
        return self._bytes_in + sum(tunnel.bytes_in for tunnel in self)

    @property
    def bytes_out(self) -> int:
        """Bytes sent to clients since the start."""
        return self._bytes_out + sum(tunnel.bytes_out for tunnel in self)

    def check(self, now: float, timeouts: Timeouts) -> None:
        """Enforce the timeouts of all tunnels; called by the sweep."""
        idle, stall = timeouts.tunnel_idle, timeouts.body_idle
        for tunnel in self:
            tunnel.check(now, idle, stall)

    def abort(self) -> None:
        """Close all tunnels at once: the balancer stops."""
        for tunnel in self:
            tunnel.abort()


@dataclass(slots=True)
class RequestCounts:
    """Totals since the start.

    `retried` and `hedged` count further attempts, after another or beside it. `errors` counts error responses by
    reason, `worker_errors` those of workers that a client got in full (5xx, a failed RPC, busy by `retry.busy`),
    `responses` final responses to clients by status, `rpcs` those of gRPC by status code.
    """

    requests: int = 0
    retried: int = 0
    hedged: int = 0
    hedges_won: int = 0
    abandoned: int = 0
    worker_errors: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    responses: list[int] = field(default_factory=lambda: [0] * STATUSES)
    rpcs: list[int] = field(default_factory=lambda: [0] * len(NAMES))

    def count_error(self, error: ForwardingError) -> None:
        self.errors[error.reason] += 1


class Cluster:
    """What requests are forwarded to one group of endpoints with; `name` is "" for the default one, which client
    connections belong to, and requests that no route leads elsewhere.
    """

    # Set by the control plane.
    journal: Journal | None = None  # receives an entry for every request that has ended
    reads_load = False  # load reports of workers are parsed
    canary: Canary | None = None  # of the policy
    explaining: Explaining | None = None  # set while clients may ask for explanations
    limiter: Limiter | None = None  # the rate limits of requests that no route matches
    prompts: PromptReader | None = None  # while the policy reads prompts, or with `kind = "inference"`
    policy = ""  # label of the policy in force

    def __init__(
        self,
        router: Router,
        process: ProcessContext,
        config: RuntimeConfig,
        upstream_limit: int | None = None,
        name: str = "",
    ) -> None:
        self.name = name
        self.router = router
        self.process = process
        self.now = now = process.now  # here too, for the path of a request
        self.counts = RequestCounts()
        self.reports = LoadReports()
        self.hedges: HedgeTimer | None = None
        self.admission: Admission | None = None
        self.buffering: BufferingLimits | None = None  # None while buffering is off
        self.receiving = 0  # exchanges that receive a whole body before an endpoint is asked
        self.tunnels = Tunnels(now)
        self.queue = RequestQueue(router, now, config.settings.limits.queue, config.settings.timeouts.queue)
        self.retries = Retries(config.settings.retry, config.settings.retries)
        self.rests = Rests()
        self.pools = Pools(
            process.cached_time,
            config.settings,
            upstream_limit,
            config.upstream_tls,
            routes=Routes(config.settings.names, config.settings.route_watch, now),
            seed=config.settings.seed,
            now=now,
        )
        self.pools.on_room = self._descriptor_freed
        self.own_requests: dict[ClientUsage, int] | None = (
            None  # by client, where the limit is this cluster's own
        )
        self._sweeps = 0
        self.apply(config)

    def count_apart(self, shared: int) -> None:
        """Count the requests of each client here where their limit is not the `shared` one of the top level."""
        if self.limits.client_requests == shared:
            self.own_requests = None
        else:
            self.client_requests = 0  # so that each request is looked at
            self.own_requests = self.own_requests or {}

    def apply(self, config: RuntimeConfig) -> None:
        """Apply a runtime configuration, except for what `ControlPlane.apply` applies itself."""
        settings = config.settings
        self.timeouts = settings.timeouts
        self.limits = limits = settings.limits
        self.client_requests = limits.client_requests
        self.body_limit = limits.body
        self.half_close = settings.half_close
        self.error_form: BodyForm = openai_body if settings.answers_as_openai else error_body
        self.http2 = config.http2
        self.retries.apply(settings.retry, settings.retries)
        self.home_region = settings.home_region
        self.internal_fields = config.internal_fields
        self.key_of: KeyOf | None = config.key_of
        by_field = settings.key.by in ("header", "cookie")  # a sticky cookie names an endpoint
        self.has_session_keys = by_field or settings.sticky.header is not None
        self.cookies: Stickiness | None = config.stickiness if settings.sticky.cookie else None
        self.adds_forwarded = settings.headers.forwarded
        self.allowed_methods = frozenset(method.encode() for method in settings.http.allow)
        self._trusted = settings.trusted_proxies
        self._flood_exempt = settings.http2.flood_exempt
        self.pools.apply(settings, config.upstream_tls)
        kept = settings.buffering
        self.buffering = kept if kept.request > 0 or kept.response > 0 else None
        self._apply_hedging(settings.hedging.hedging())
        self._apply_admission(settings)

    def _apply_hedging(self, hedging: Hedging | None) -> None:
        if self.hedges is not None and hedging is None:
            self.hedges.close()
            self.hedges = None
        elif self.hedges is not None and hedging is not None:
            self.hedges.hedging.apply(hedging)
        elif hedging is not None:
            self.hedges = HedgeTimer(self.now, hedging)

    def _apply_admission(self, settings: Settings) -> None:
        rules, queue = admission_rules(settings.queue, settings.admission), self.queue
        levels = len(rules.levels) if rules is not None else 1
        is_adaptive = settings.queue.order == "adaptive"
        queue.apply(self.limits.queue, self.timeouts.queue, levels, is_adaptive)
        if self.admission is not None and rules is not None:
            self.admission.rules = rules
        else:
            self.admission = Admission(rules, self.router, queue, self.now) if rules is not None else None

    def close(self) -> None:
        """End what waits, is tunnelled or hedged."""
        self.queue.close()  # first: an exchange that ends would make room for the next waiting request
        self.tunnels.abort()
        if self.hedges is not None:
            self.hedges.close()

    def sweep(self, now: float) -> None:
        """Sweep what does not belong to single connections: admission, tunnels, retry budget, hedges, pools, router."""
        if self.admission is not None:
            self.admission.sweep()
        self.tunnels.check(now, self.timeouts)
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

    def left_out(self, tried: frozenset[str]) -> frozenset[str]:
        """Return `tried`, with the endpoints that rest unless no others are available, a backup if `tried` has any."""
        both, router = tried | self.rests.resting(self.now()), self.router
        return both if (router.has_untried if tried else router.has_others)(both) else tried

    def trusts(self, address: str) -> bool:
        """Return whether forwarding fields from this peer are believed."""
        return is_within(address, self._trusted)

    def exempts(self, address: bytes) -> bool:
        """Return whether a client may go on in HTTP/2 after floods: many may share its address."""
        return bool(self._flood_exempt) and is_within(address.decode(), self._flood_exempt)

    def client_of(
        self,
        address: bytes,
        authority: bytes,
        proto: bytes,
        version: bytes = HTTP11,
        tls_version: str = "",
        certificate: bytes | None = None,
    ) -> Client:
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
            self.process.tracing,
            version,
            self.process.own_name,
            tls_version,
            certificate,
        )
