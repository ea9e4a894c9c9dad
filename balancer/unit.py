"""The forwarding unit: what all connections of one process share.

Rule of this file: state and its owners, no protocol. Whoever needs the router, the pools or the time takes it
from here; nothing in the room is global.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Final

from balancer.bounds import Limits, Timeouts
from balancer.checks import CheckPlan, Checks
from balancer.errors import ForwardingError
from balancer.gate import Gate, GateRules
from balancer.hedges import Hedges
from balancer.internal_fields import InternalFields
from balancer.networks import Network, is_within
from balancer.pool import PoolLimits, Pools
from balancer.retries import Retries
from balancer.tls import UpstreamTls
from balancer.tunnel import Tunnels
from balancer.waiting import WaitQueue
from policies.facts import Endpoint, Region
from policies.router import Clock, Router

if TYPE_CHECKING:
    from balancer.access_log import AccessLog
    from balancer.downstream import Downstream
    from balancer.sections import PolicySpec
    from policies.hedging import Hedging

AT_ONCE: Final = -1.0
"""Seconds that nobody has been idle for less than."""


@dataclass(slots=True)
class Counts:
    """Totals since the start. `retried` and `hedged` are further attempts, after another or beside it. `errors` counts
    the answers of our own by reason, `failed_arrivals` the connections that never spoke HTTP: a TLS handshake or PROXY
    header that came to nothing."""

    connections: int = 0
    requests: int = 0
    retried: int = 0
    hedged: int = 0
    hedges_won: int = 0
    abandoned: int = 0
    failed_arrivals: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def count_error(self, error: ForwardingError) -> None:
        """One more request that no worker's answer was passed on for."""
        self.errors[error.reason] += 1


class Unit:
    """Everything that one process forwards with.

    `coarse_now` is the time at the last sweep: good enough for timeouts of seconds, and free to read.
    `date_line` is the field that a response without one gets (RFC 9110 § 6.6.1), of the last sweep, too.
    `keeps_clients`: a client may send its next request on the same connection. `idle_limit` is how many seconds an idle
    one is kept.
    """

    def __init__(
        self,
        router: Router,
        clock: Clock,
        rng: Random,
        *,
        timeouts: Timeouts,
        pool_limits: PoolLimits,
        upstream_limit: int | None = None,
        queue_limit: int = 10_000,
        queue_is_adaptive: bool = False,
        gate_rules: GateRules | None = None,
        limits: Limits | None = None,
        retries: Retries | None = None,
        hedging: Hedging | None = None,
        home_region: Region | None = None,
        trusted_proxies: tuple[Network, ...] = (),
        internal_fields: InternalFields | None = None,
        says_forwarded: bool = False,
        allowed_methods: frozenset[bytes] = frozenset(),
        access_log: AccessLog | None = None,
        upstream_tls: UpstreamTls | None = None,
        check_plan: CheckPlan | None = None,
    ) -> None:
        self.router = router
        self.clock = clock
        self._rng = rng
        self.now = clock.now
        self.coarse_now = clock.now()
        self.started_at = self.coarse_now
        self.timeouts = timeouts
        self.limits = limits or Limits()
        self.access_log = access_log
        self.retries = retries or Retries()
        self.hedges = Hedges(self, hedging) if hedging is not None else None
        self.home_region = home_region
        self.internal_fields = internal_fields
        self.says_forwarded = says_forwarded
        self.allowed_methods = allowed_methods
        self.date_line = b""
        self.is_draining = False
        self.keeps_clients = True
        self.idle_limit = timeouts.keep_alive
        self.counts = Counts()
        self.downstreams: set[Downstream] = set()
        self.on_client_left: Callable[[], None] | None = None
        self.tunnels = Tunnels(self.coarse_now, timeouts.tunnel_idle, timeouts.body_idle)
        levels = len(gate_rules.levels) if gate_rules is not None else 1
        self.queue = WaitQueue(router, clock.now, queue_limit, timeouts.queue, levels, queue_is_adaptive)
        self.gate: Gate | None = None
        if gate_rules is not None:
            self.gate = Gate(gate_rules, router, self.queue, clock.now)
        self.pools = Pools(self.coarse_now, pool_limits, upstream_limit, upstream_tls)
        self.pools.replace([state.endpoint for state in router.states])
        self.checks = Checks(router, self.pools, check_plan or CheckPlan())
        self._trusted = trusted_proxies
        prefix = secrets.token_hex(6).encode()
        self.fresh_id: Callable[[], bytes] = map((prefix + b"-%x").__mod__, count()).__next__
        """A request id that no other process or run will give; without a frame of Python."""

    def drain(self, idle_limit: float = AT_ONCE) -> None:
        """Stop: every client connection ends with the response that it waits for, or when it has been idle for
        `idle_limit` seconds."""
        self.is_draining = True
        self.keeps_clients = False
        self.idle_limit = idle_limit

    def set_crowded(self, is_crowded: bool) -> None:
        """While clients wait in the kernel, those served end after their response: turns go round."""
        self.keeps_clients = not (is_crowded or self.is_draining)

    def use_policy(self, spec: PolicySpec) -> None:
        """Pick by this policy from now on. Raises `PoliciesError`, and then changes nothing."""
        self.router.set_policy(spec.make(self._rng))
        if self.access_log is not None:
            self.access_log.policy_changed(self.now(), spec.name)

    def trusts(self, address: str) -> bool:
        """Whether forwarding fields from this peer are believed."""
        return is_within(address, self._trusted)

    def client_left(self) -> None:
        """A descriptor has become free."""
        if self.on_client_left is not None:
            self.on_client_left()

    def replace_endpoints(self, endpoints: list[Endpoint]) -> None:
        """Route among these from now on; what is in flight elsewhere finishes there."""
        self.pools.replace(endpoints)  # first: the router lets those who wait go at once
        self.router.replace(endpoints)

    @property
    def in_flight(self) -> int:
        """Requests that have an answer coming."""
        return sum(downstream.is_answering for downstream in self.downstreams)
