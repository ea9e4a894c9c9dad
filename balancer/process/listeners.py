"""The listeners of one process: each with its TLS, its PROXY protocol and its routes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from balancer.cluster.cluster import Cluster
from balancer.cluster.runtime_config import RuntimeConfig
from balancer.control.named_clusters import NamedClusters
from balancer.downstream.acceptor import Entrance
from balancer.downstream.connection import Http1Connection
from balancer.downstream.http2.connection import Http2Connection
from balancer.downstream.preamble import HandshakingConnections
from balancer.process.listening import TrafficSocket
from balancer.routes.table import RouteTable
from balancer.tls.contexts import SharedContext


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
