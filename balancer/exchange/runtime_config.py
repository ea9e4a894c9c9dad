"""The runtime configuration: immutable plain values, created whole and replaced whole.

`Settings` become values only here, for the start and for every reload. A new section needs a field of `RuntimeConfig`
and a line of `runtime_config_of`, and is applied in `Proxy.apply`, or in `Server._adopt` if it concerns the listener.
"""

from __future__ import annotations

from dataclasses import dataclass

from balancer.config.discovery import DiscoveryConfig
from balancer.config.explain import ExplainConfig
from balancer.config.limits import Limits, Timeouts
from balancer.config.load import Settings
from balancer.config.pool_limits import PoolLimits
from balancer.config.queue import AdmissionConfig, QueueConfig, admission_rules
from balancer.config.record import RecordConfig
from balancer.config.sections import EndpointConfig, LogConfig, PolicySpec, UpstreamTlsConfig
from balancer.config.sticky import StickyConfig
from balancer.exchange.admission import AdmissionRules
from balancer.exchange.affinity import ResponseEdits, Stickiness
from balancer.exchange.request_key import KeyOf, key_of
from balancer.exchange.retries import Retries
from balancer.http1.internal_fields import InternalFields
from balancer.membership.active_checks import CheckPlan
from balancer.networks import Network
from balancer.tls.contexts import ServerTls, UpstreamTls
from balancer.upstream.load_probes import ProbePlan
from balancer.upstream.route import RoutesPlan
from policies.endpoint.concurrency_limit import ConcurrencyRules
from policies.facts import Region
from policies.health.health import Health
from policies.overload.hedging import Hedging


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """Runtime values of `Settings`. TLS contexts are created with them, so certificate files are already read."""

    endpoints: tuple[EndpointConfig, ...]
    discovery: DiscoveryConfig
    policy: PolicySpec
    concurrency: ConcurrencyRules | None
    admission_rules: AdmissionRules | None
    stated: tuple[QueueConfig, AdmissionConfig]  # sources of `admission_rules`, which cannot be compared
    queue_is_adaptive: bool
    home_region: Region | None
    retries: Retries
    hedging: Hedging | None
    check_plan: CheckPlan
    probe_plan: ProbePlan
    health: Health
    timeouts: Timeouts
    limits: Limits
    pools: PoolLimits
    routes: RoutesPlan
    trusted_proxies: tuple[Network, ...]
    proxy_protocol: tuple[Network, ...]
    internal_names: tuple[str, ...]
    internal_fields: InternalFields | None
    adds_forwarded: bool
    allowed_methods: frozenset[bytes]
    server_tls: ServerTls | None
    upstream_tls: UpstreamTls
    upstream_tls_config: UpstreamTlsConfig
    sticky: StickyConfig | None
    stickiness: Stickiness | None
    key_of: KeyOf | None
    edits: ResponseEdits | None
    log: LogConfig
    record: RecordConfig
    explain: ExplainConfig
    token: bytes | None

    def meets_clients_like(self, other: RuntimeConfig) -> bool:
        """Return whether a client connection that began under `other` can continue unchanged."""
        return _of_clients(self) == _of_clients(other)


def runtime_config_of(settings: Settings) -> RuntimeConfig:
    """Return the runtime configuration for `settings`. Raises `TlsProblem`."""
    names, token = settings.headers.internal, settings.admin.token
    internal = InternalFields(names) if names else None
    sticky = settings.sticky if settings.sticky.cookie or settings.sticky.header else None
    stickiness = Stickiness(sticky) if sticky is not None else None
    return RuntimeConfig(
        endpoints=settings.endpoints,
        discovery=settings.discovery,
        policy=settings.policy,
        concurrency=settings.concurrency.rules(),
        admission_rules=admission_rules(settings.queue, settings.admission),
        stated=(settings.queue, settings.admission),
        queue_is_adaptive=settings.queue.order == "adaptive",
        home_region=settings.home_region,
        retries=settings.retry.retries(settings.retries),
        hedging=settings.hedging.hedging(),
        check_plan=settings.check_plan(),
        probe_plan=settings.load_probes.plan(),
        health=settings.health(),
        timeouts=_timeouts(settings),
        limits=_limits(settings),
        pools=settings.pool_limits,
        routes=RoutesPlan(settings.names.plan(), settings.route_watch.plan()),
        trusted_proxies=settings.trusted_proxies,
        proxy_protocol=settings.proxy_protocol,
        internal_names=names,
        internal_fields=internal,
        adds_forwarded=settings.headers.forwarded,
        allowed_methods=frozenset(method.encode() for method in settings.http.allow),
        server_tls=settings.server_tls(),
        upstream_tls=settings.client_tls(),
        upstream_tls_config=settings.upstream_tls,
        sticky=sticky,
        stickiness=stickiness,
        key_of=stickiness.key_of if stickiness is not None else key_of(settings.key),
        edits=ResponseEdits(internal, stickiness) if internal or stickiness else None,
        log=settings.log,
        record=settings.record,
        explain=settings.explain,
        token=token.get_secret_value().encode() if token is not None else None,
    )


def _timeouts(settings: Settings) -> Timeouts:
    timeouts = settings.timeouts
    return Timeouts(
        head=timeouts.head,
        request_idle=timeouts.request_idle,
        keep_alive=timeouts.keep_alive,
        first_byte=timeouts.first_byte,
        body_idle=timeouts.body_idle,
        queue=timeouts.queue,
        linger=timeouts.linger,
        tunnel_idle=timeouts.tunnel_idle,
        total=timeouts.total,
        attempt=timeouts.attempt,
        shutdown=timeouts.shutdown,
    )


def _limits(settings: Settings) -> Limits:
    limits = settings.limits
    return Limits(
        head=limits.head,
        fields=limits.fields,
        target=limits.target,
        body=limits.body,
        buffer=limits.buffer,
        queue=limits.queue,
        in_flight=limits.in_flight,
        clients=limits.clients,
    )


def _of_clients(terms: RuntimeConfig) -> tuple[object, ...]:
    return (
        terms.limits,
        terms.trusted_proxies,
        terms.internal_names,
        terms.adds_forwarded,
        terms.allowed_methods,
        terms.stated,
    )
