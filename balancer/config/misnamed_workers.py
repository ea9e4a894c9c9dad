"""Warnings about https workers that get the Host of another server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from balancer.config.loading import Settings
from balancer.config.schema.discovery import FileDiscovery
from balancer.config.schema.endpoint import ADDRESS, EndpointConfig, sent_host, tls_name
from balancer.config.schema.named_clusters import ClusterSettings
from balancer.syntax.urls import host_in


def misnamed_workers(
    settings: Settings, read: Callable[[FileDiscovery], Sequence[EndpointConfig]]
) -> Iterator[str]:
    """Yield a line for each https endpoint, and each source of them, whose requests have another Host than the name for
    which its certificate is verified. `read` returns the endpoints of a file."""
    for name, cluster in {"": settings, **settings.clusters}.items():
        file = cluster.discovery.file
        of_file = () if file is None else read(file)
        yield from _misnamed(cluster, of_file, f"clusters.{name}." if name else "")


def _misnamed(cluster: ClusterSettings, of_file: Sequence[EndpointConfig], field: str) -> Iterator[str]:
    listed = {f"endpoints.{at}": one for at, one in enumerate(cluster.endpoints)}
    listed |= {f"discovery.file.endpoints.{at}": one for at, one in enumerate(of_file)}
    places = [
        (place, one.address, one.host, (one.tls or cluster.upstream_tls).server_name)
        for place, one in listed.items()
    ] + [
        (f"discovery.dns.{at}", f"{one.scheme}://{one.name}", one.host, cluster.upstream_tls.server_name)
        for at, one in enumerate(cluster.discovery.dns)
    ]
    for place, origin, wanted, server_name in places:
        name = tls_name(origin)
        names = [each for each in (name, server_name) if each and origin.startswith("https:")]
        host = host_in(sent_host(wanted, origin).encode()).decode()
        if wanted is not None and names and host not in names:
            whose = f"is {wanted}" if host else "is the client's"
            yield (
                f"{field}{place}.host: the Host {whose}, but the server is {names[-1]}, and may answer 404 or 421 to "
                f'other names; host = "{ADDRESS if name else server_name}" sends its own'
            )
