"""Listening sockets of the balancer: opened once before the supervisor forks, and passed on at a hot restart. Each
process has their listeners, with TLS, PROXY protocol and routes.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from balancer.build import build
from balancer.cluster.cluster import Cluster
from balancer.cluster.runtime_config import RuntimeConfig
from balancer.config.loading import Settings
from balancer.config.schema.listen import ListenAddress
from balancer.config.schema.listeners import DEFAULT_MODE, url_of
from balancer.control.admin.socket_path import AdminSockets, open_admin_sockets
from balancer.control.named_clusters import NamedClusters
from balancer.downstream.acceptor import Entrance
from balancer.downstream.connection import Http1Connection
from balancer.downstream.http2.connection import Http2Connection
from balancer.downstream.listening_sockets import bind, bind_unix, is_listening, remove_unix
from balancer.downstream.preamble import HandshakingConnections
from balancer.errors import ListenFailed
from balancer.process.socket_handover import Inherited
from balancer.routes.table import RouteTable
from balancer.tls.contexts import SharedContext


@dataclass(frozen=True, slots=True)
class TrafficSocket:
    """A socket for traffic, bound for `listen` of the configuration. `inode` is that of a Unix socket's file, which is
    removed at the end; 0 for one of systemd."""

    listen: str
    sock: socket.socket
    inode: int = 0

    @property
    def address(self) -> ListenAddress:
        """The address for clients, with the actual port."""
        name = self.sock.getsockname()
        return ListenAddress("", 0, name) if isinstance(name, str) else ListenAddress(*name[:2])


@dataclass(frozen=True, slots=True)
class Listening:
    """The traffic sockets by listener, first "" for the `listen` of the top level, and the admin sockets. `discovered`:
    the endpoints that the predecessor knew, for sources that have no answer."""

    traffic: Mapping[str, TrafficSocket]
    admin: AdminSockets
    admin_listen: str | None
    discovered: dict[str, Any]

    @property
    def address(self) -> ListenAddress:
        """The address of `listen`, with the actual port."""
        return self.traffic[""].address

    @property
    def is_closed(self) -> bool:
        """Whether clients are accepted no more."""
        return self.traffic[""].sock.fileno() < 0

    def labelled(self) -> list[tuple[str, socket.socket]]:
        """Return all sockets with their labels, for a hot restart."""
        traffic = [(one.listen, one.sock) for one in self.traffic.values()]
        return [*traffic, *self.admin.labelled(self.admin_listen)]

    def remove(self) -> None:
        """Unlink the Unix sockets, unless another program has bound its own there."""
        for path, inode in self._files():
            remove_unix(path, inode)

    def remove_unused(self) -> None:
        """Unlink the Unix sockets that a successor has not taken over. Call it when this program has closed them."""
        for path, inode in self._files():
            if path and not is_listening(path):
                remove_unix(path, inode)

    def _files(self) -> Iterator[tuple[str, int]]:
        """Yield path and inode of each Unix socket that this program has bound or taken over."""
        yield self.admin.path, self.admin.inode
        for one in self.traffic.values():
            if one.inode:
                yield one.listen.removeprefix("unix:"), one.inode

    def close(self) -> None:
        """Close all sockets."""
        self.admin.close()
        for one in self.traffic.values():
            one.sock.close()


def listening(settings: Settings, complain: Callable[[str], None]) -> Listening:
    """Return the sockets that `settings` ask for, inherited or new. Raises `ListenFailed`.

    A problem with the default admin socket is only reported, to `complain`.
    """
    inherited, traffic = Inherited(settings.listeners), dict[str, TrafficSocket]()
    try:
        traffic[""] = _opened("", settings.listen, DEFAULT_MODE, inherited)
        for name, listener in settings.listeners.items():
            traffic[name] = _opened(name, listener.listen, listener.mode, inherited)
        port = next((one.address.port for one in traffic.values() if not one.address.path), 0)
        admin = open_admin_sockets(settings.admin, port, complain, inherited.admin)
    except BaseException:
        for one in traffic.values():
            one.sock.close()
        raise
    finally:
        inherited.close()
    return Listening(traffic, admin, settings.admin.listen, inherited.discovered)


def _opened(name: str, listen: str, mode: str, inherited: Inherited) -> TrafficSocket:
    """Return the socket of a listener: of systemd, of the predecessor, or new."""
    given = inherited.of_systemd.pop(name, None)
    if given is not None:
        return TrafficSocket(listen, given)
    address, key = ListenAddress.parse_traffic(listen), f"listeners.{name}.listen" if name else "listen"
    sock = inherited.traffic(listen)
    if not address.path:
        return TrafficSocket(listen, sock or bind(address.host, address.port, key))
    try:
        if sock is not None:  # the predecessor may have given it another mode
            os.chmod(address.path, int(mode, 8))
        sock = sock or bind_unix(address.path, int(mode, 8))
        return TrafficSocket(listen, sock, os.stat(address.path).st_ino)
    except OSError as error:
        raise ListenFailed(f"{key}: cannot use {address}: {error.strerror or error}") from None


def ready_line(settings: Settings, listening: Listening, endpoints: int) -> str:
    """Return the readiness message, with the number of `endpoints` known by then."""
    processes = settings.processes
    tls = settings.tls_tables
    urls = (url_of(one.address, is_tls=name in tls) for name, one in listening.traffic.items())
    page = listening.admin.tcp
    live_page = "" if page is None else f", live page http://{ListenAddress(*page.getsockname()[:2])}/-/"
    return (
        f"balancer ready on {' and '.join(urls)} "
        f"(policy {settings.policy.label}, {endpoints} endpoint{'s' if endpoints != 1 else ''}"
        f"{f', {processes} processes' if processes != 1 else ''}, {build()} build){live_page}"
    )


class Listeners:
    """Entrances of all listeners; the connections that have not reached HTTP are counted by `arrivals`, those of
    `listen`.

    `make` and `make_http2` return the protocols of a connection whose requests have these routes.
    """

    def __init__(
        self,
        traffic: Mapping[str, TrafficSocket],
        cluster: Cluster,
        clusters: NamedClusters,
        make: Callable[[RouteTable], Http1Connection],
        make_http2: Callable[[RouteTable], Http2Connection],
        fronts: Mapping[str, SharedContext],
    ) -> None:
        self._fronts = fronts
        self._arrivals: dict[str, HandshakingConnections] = {}
        for name in traffic:
            routes = clusters.routes_of(name)
            self._arrivals[name] = HandshakingConnections(
                cluster,
                partial(make, routes),
                make_http2=partial(make_http2, routes),
                beside=self._arrivals.get(""),
            )
        self.arrivals = self._arrivals[""]
        self.entrances = [Entrance(one.sock, self._arrivals[name]) for name, one in traffic.items()]

    def apply(self, config: RuntimeConfig) -> None:
        """Apply TLS and PROXY protocol to the connections that begin from now on. A removed listener keeps its own."""
        settings = config.settings
        proxies = {name: listener.proxy_protocol for name, listener in settings.listeners.items()}
        proxies[""] = settings.proxy_protocol
        for name, arrivals in self._arrivals.items():
            if name in proxies:
                tls = config.server_tls.get(name)
                arrivals.tls = None if tls is None else tls.handshake(self._fronts.get(name))
                arrivals.proxies = proxies[name]
