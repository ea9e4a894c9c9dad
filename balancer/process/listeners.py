"""The listeners of one process beside `listen`: each with its TLS, its PROXY protocol and its routes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

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
    """Entrances of the listeners beside `listen`, whose connections are counted by `first`.

    `make` and `make_http2` return the protocols of a connection whose requests have these routes.
    """

    def __init__(
        self,
        traffic: Mapping[str, TrafficSocket],
        first: HandshakingConnections,
        clusters: NamedClusters,
        make: Callable[[RouteTable], Http1Connection],
        make_http2: Callable[[RouteTable], Http2Connection],
        fronts: Mapping[str, SharedContext],
    ) -> None:
        self._fronts = fronts
        self._arrivals: dict[str, HandshakingConnections] = {}
        self.entrances: list[Entrance] = []
        for name, one in traffic.items():
            if name:
                routes = clusters.routes_of(name)
                self._arrivals[name] = arrivals = HandshakingConnections(
                    first.cluster, partial(make, routes), make_http2=partial(make_http2, routes), beside=first
                )
                self.entrances.append(Entrance(one.sock, arrivals))

    def apply(self, config: RuntimeConfig) -> None:
        """Apply TLS and PROXY protocol to the connections that begin from now on. A removed listener keeps its own."""
        for name, arrivals in self._arrivals.items():
            listener, tls = config.settings.listeners.get(name), config.listener_tls.get(name)
            if listener is not None:
                arrivals.tls = None if tls is None else tls.handshake(self._fronts.get(name))
                arrivals.proxies = listener.proxy_protocol
