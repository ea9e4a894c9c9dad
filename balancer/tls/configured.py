"""TLS contexts of a configuration: those towards clients and those towards workers."""

from __future__ import annotations

from balancer.config.loading import Settings
from balancer.tls.contexts import ServerTls, TlsProblem, UpstreamTls
from policies.facts import Endpoint


def server_tls_of(settings: Settings) -> dict[str, ServerTls]:
    """Return the TLS contexts for clients by listener, "" for `listen`. Raises `TlsProblem`."""
    found: dict[str, ServerTls] = {}
    for name, tls in settings.tls_tables.items():
        try:
            found[name] = ServerTls(tls, http2=settings.http2.enabled)
        except TlsProblem as problem:
            raise TlsProblem(f"listeners.{name}.{problem}" if name else str(problem)) from None
    return found


def upstream_tls_of(settings: Settings) -> UpstreamTls:
    """Return the TLS contexts for workers. Raises `TlsProblem` for a file that one of the endpoints needs."""
    own = {
        endpoint.id: (endpoint.tls, f"endpoints.{at}.tls.")
        for at, endpoint in enumerate(settings.endpoints)
        if endpoint.tls is not None
    }
    tls = UpstreamTls(settings.upstream_tls, own)
    for endpoint in settings.endpoints:
        tls.of(endpoint.endpoint(), endpoint.alpn)
    if any(source.scheme == "https" for source in settings.discovery.remote):
        tls.of(Endpoint("", "https://localhost", ""))
    return tls
