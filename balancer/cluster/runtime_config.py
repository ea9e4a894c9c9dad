"""The runtime configuration: immutable plain values, created whole and replaced whole.

`Settings` become values only here, for the start and for every reload. A new section needs a field of `RuntimeConfig`
and a line of `runtime_config_of`, and is applied in `Cluster.apply`, or in `Server._commit_prepared` if it concerns the
listener.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from balancer.cluster.admission import AdmissionRules, admission_rules
from balancer.cluster.affinity import ResponseEdits, Stickiness
from balancer.cluster.request_key import key_of
from balancer.cluster.retry_rules import Retries, retries_of
from balancer.config.loading import Settings
from balancer.config.problems import ConfigError
from balancer.config.schema.buffering import BufferingLimits
from balancer.config.schema.discovery import DiscoveryConfig
from balancer.config.schema.endpoint import EndpointConfig, UpstreamTlsConfig
from balancer.config.schema.explain import ExplainConfig
from balancer.config.schema.health import HealthChecksConfig
from balancer.config.schema.limits import Limits, Timeouts
from balancer.config.schema.listeners import ListenerConfig
from balancer.config.schema.load_probes import LoadProbesConfig
from balancer.config.schema.log import LogConfig
from balancer.config.schema.policy_spec import PolicySpec
from balancer.config.schema.pool_limits import PoolLimits
from balancer.config.schema.queue import AdmissionConfig, QueueConfig
from balancer.config.schema.rate_limits import RateLimitConfig
from balancer.config.schema.record import RecordConfig
from balancer.config.schema.routes import RouteConfig
from balancer.config.schema.sections import HeadersConfig, NormaliseConfig
from balancer.config.schema.sticky import StickyConfig
from balancer.config.schema.tracing import TracingConfig
from balancer.http.h1.internal_fields import InternalFields
from balancer.http.h1.own_responses import ErrorBodies
from balancer.http.h1.request_head import KeyOf
from balancer.http.h2.limits import FIELD_OVERHEAD, Http2Limits
from balancer.syntax.networks import Network
from balancer.tls.configured import listener_tls_of, server_tls_of, upstream_tls_of
from balancer.tls.contexts import ServerTls, UpstreamTls
from balancer.upstream.dial.target import RoutesPlan
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
    health_checks: HealthChecksConfig
    seed: int | None
    load_probes: LoadProbesConfig
    health: Health
    timeouts: Timeouts
    limits: Limits
    http2: Http2Limits | None  # None: HTTP/2 is not spoken with clients
    buffering: BufferingLimits
    pools: PoolLimits
    network_routes: RoutesPlan
    trusted_proxies: tuple[Network, ...]
    flood_exempt: tuple[Network, ...]
    proxy_protocol: tuple[Network, ...]
    headers: HeadersConfig
    internal_names: tuple[str, ...]
    internal_fields: InternalFields | None
    adds_forwarded: bool
    allowed_methods: frozenset[bytes]
    server_tls: ServerTls | None
    listeners: Mapping[str, ListenerConfig]
    listener_tls: Mapping[str, ServerTls]
    upstream_tls: UpstreamTls
    upstream_tls_config: UpstreamTlsConfig
    sticky: StickyConfig | None
    stickiness: Stickiness | None
    key_of: KeyOf | None
    edits: ResponseEdits | None
    log: LogConfig
    record: RecordConfig
    explain: ExplainConfig
    tracing: TracingConfig
    token: bytes | None
    routes: tuple[RouteConfig, ...]
    error_bodies: ErrorBodies | None
    normalise: NormaliseConfig
    rate_limits: tuple[RateLimitConfig, ...]
    named: Mapping[str, RuntimeConfig]  # of the named clusters

    def meets_clients_like(self, other: RuntimeConfig) -> bool:
        """Return whether a client connection that began under `other` can continue unchanged."""
        return _of_clients(self) == _of_clients(other)


def runtime_config_of(settings: Settings) -> RuntimeConfig:
    """Return the runtime configuration for `settings`. Raises `TlsProblem`, or `ConfigError` for another file."""
    names, token = settings.headers.internal, settings.admin.token
    internal = InternalFields(names) if names else None
    sticky = settings.sticky if settings.sticky.cookie or settings.sticky.header else None
    stickiness = Stickiness(sticky) if sticky is not None else None
    try:
        settings.read_bodies()
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return RuntimeConfig(
        endpoints=settings.endpoints,
        discovery=settings.discovery,
        policy=settings.policy,
        concurrency=settings.concurrency.rules(),
        admission_rules=admission_rules(settings.queue, settings.admission),
        stated=(settings.queue, settings.admission),
        queue_is_adaptive=settings.queue.order == "adaptive",
        home_region=settings.home_region,
        retries=retries_of(settings.retry, settings.retries),
        hedging=settings.hedging.hedging(),
        health_checks=settings.health_checks,
        seed=settings.seed,
        load_probes=settings.load_probes,
        health=settings.health(),
        timeouts=settings.timeouts,
        limits=settings.limits,
        http2=_http2_limits(settings),
        buffering=settings.buffering,
        pools=settings.pool_limits,
        network_routes=RoutesPlan(settings.names, settings.route_watch),
        trusted_proxies=settings.trusted_proxies,
        flood_exempt=settings.http2.flood_exempt,
        proxy_protocol=settings.proxy_protocol,
        headers=settings.headers,
        internal_names=names,
        internal_fields=internal,
        adds_forwarded=settings.headers.forwarded,
        allowed_methods=frozenset(method.encode() for method in settings.http.allow),
        server_tls=server_tls_of(settings),
        listeners=settings.listeners,
        listener_tls=listener_tls_of(settings),
        upstream_tls=upstream_tls_of(settings),
        upstream_tls_config=settings.upstream_tls,
        sticky=sticky,
        stickiness=stickiness,
        key_of=stickiness.key_of if stickiness is not None else key_of(settings.key),
        edits=ResponseEdits(internal, stickiness) if internal or stickiness else None,
        log=settings.log,
        record=settings.record,
        explain=settings.explain,
        tracing=settings.tracing,
        token=token.get_secret_value().encode() if token is not None else None,
        routes=settings.routes,
        error_bodies=_error_bodies(settings),
        normalise=settings.normalise,
        rate_limits=settings.rate_limits,
        named={name: runtime_config_of(settings.of_cluster(name)) for name in settings.clusters},
    )


def _http2_limits(settings: Settings) -> Http2Limits | None:
    config, limits = settings.http2, settings.limits
    if not config.enabled:
        return None
    header_list = limits.head + FIELD_OVERHEAD * limits.fields
    return Http2Limits(streams=config.max_streams, stream_window=config.window, header_list=header_list)


def _error_bodies(settings: Settings) -> ErrorBodies | None:
    found = {name: (body.content_type.encode(), body.content) for name, body in settings.errors.items()}
    return ErrorBodies(found) if found else None


def _of_clients(config: RuntimeConfig) -> tuple[object, ...]:
    return (
        config.limits,
        config.trusted_proxies,
        config.internal_names,
        config.adds_forwarded,
        config.allowed_methods,
        config.stated,
        config.tracing,
    )
