"""The runtime configuration: the settings and what is made of them, created whole and replaced whole.

It is made only here, for the start and for every reload. A new section needs a field of `RuntimeConfig` only if what is
made of it reads files or has several users; it is applied in `Cluster.apply`, or in `Server._commit_prepared` if it
concerns the listener.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

from balancer.cluster.affinity import Stickiness, key_of
from balancer.config.loading import Settings
from balancer.http.h1.internal_fields import InternalFields
from balancer.http.h1.own_responses import ErrorBodies
from balancer.http.h1.request_head import KeyOf
from balancer.http.h2.limits import FIELD_OVERHEAD, Http2Limits
from balancer.tls.contexts import ServerTls, UpstreamTls, server_tls_of, upstream_tls_of


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """Settings with what is made of them once, for all that use it. TLS contexts are among this, so certificate files
    are already read.
    """

    settings: Settings
    http2: Http2Limits | None  # None: HTTP/2 is not spoken with clients
    internal_fields: InternalFields | None
    server_tls: Mapping[str, ServerTls]
    upstream_tls: UpstreamTls
    stickiness: Stickiness | None
    key_of: KeyOf | None
    token: bytes | None
    error_bodies: ErrorBodies | None
    named: Mapping[str, RuntimeConfig]  # of the named clusters

    def meets_clients_like(self, other: RuntimeConfig) -> bool:
        """Return whether a client connection that began under `other` can continue unchanged."""
        return _of_clients(self) == _of_clients(other)


def runtime_config_of(settings: Settings) -> RuntimeConfig:
    """Return the runtime configuration for `settings`. Raises `ConfigError`."""
    names, token = settings.headers.internal, settings.admin.token
    sticky = settings.sticky
    stickiness = Stickiness(sticky) if sticky.cookie or sticky.header else None
    if settings.discovery.kubernetes is not None:
        import_module(
            "balancer.cluster.discovery.kubernetes.source"
        )  # in a thread at a reload: it takes long
    settings.read_bodies()
    return RuntimeConfig(
        settings=settings,
        http2=_http2_limits(settings),
        internal_fields=InternalFields(names) if names else None,
        server_tls=server_tls_of(settings),
        upstream_tls=upstream_tls_of(settings),
        stickiness=stickiness,
        key_of=stickiness.key_of if stickiness is not None else key_of(settings.key),
        token=token.get_secret_value().encode() if token is not None else None,
        error_bodies=_error_bodies(settings),
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
    settings = config.settings
    headers = settings.headers.internal, settings.headers.forwarded
    stated = settings.limits, settings.queue, settings.admission, settings.tracing
    return headers, stated, settings.trusted_proxies, frozenset(settings.http.allow)
