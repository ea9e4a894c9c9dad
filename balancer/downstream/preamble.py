"""Start of a downstream connection: PROXY protocol header and TLS handshake, before HTTP.

An arrival, a connection in this phase, holds a descriptor and nothing else. Arrivals count as clients, the sweep
enforces their timeout from the accept on, which is short at shutdown. Where neither PROXY nor TLS is configured,
a connection is a `Http1Connection` from the start.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, cast

from balancer.cluster.cluster import Cluster
from balancer.downstream.proxy_protocol import Address, BadProxyHeader, parse
from balancer.errors import RequestRejected
from balancer.exchange.responder import ClientSide
from balancer.http.h1.own_responses import ErrorAnswer
from balancer.syntax.networks import Network, is_within
from balancer.tls.contexts import HTTP2, ServerHandshake
from balancer.tls.transport import TlsTransport

DELEGATED = (
    *("write", "write_eof", "can_write_eof", "close", "abort", "is_closing"),
    *("pause_reading", "resume_reading", "is_reading", "set_protocol", "get_protocol"),
    *("set_write_buffer_limits", "get_write_buffer_size"),
)


class ProxiedTransport(asyncio.Transport):
    """Transport that reports the addresses given by the PROXY protocol, `source` and `destination`.

    All methods but `get_extra_info` are the plain transport's own, which saves a call."""

    def __init__(self, transport: asyncio.Transport, source: Address, destination: Address) -> None:
        super().__init__({"peername": source, "sockname": destination})
        self._transport = transport
        for name in DELEGATED:
            setattr(self, name, getattr(transport, name))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        given = super().get_extra_info(name)
        return self._transport.get_extra_info(name, default) if given is None else given


class HandshakingConnections:
    """Connections of a listening socket that have not reached HTTP yet.

    `make` returns the protocol for HTTP/1.1, `make_http2` that of a client which has chosen HTTP/2 by ALPN. Connections
    from `proxies` must begin with a PROXY header; others must not. `beside`: those of another listening socket, which
    counts, sweeps and stops these as well.
    """

    def __init__(
        self,
        cluster: Cluster,
        make: Callable[[], ClientSide],
        tls: ServerHandshake | None = None,
        proxies: tuple[Network, ...] = (),
        make_http2: Callable[[], asyncio.Protocol] | None = None,
        beside: HandshakingConnections | None = None,
    ) -> None:
        self.cluster = cluster
        self.make = make
        self.make_http2 = make_http2
        self.tls = tls
        self.proxies = proxies
        # In order of arrival.
        self._present: dict[HandshakingConnection, None] = {} if beside is None else beside._present

    def __len__(self) -> int:
        return len(self._present)

    def protocol(self, address: str) -> asyncio.Protocol:
        """Return the first protocol of a connection from this peer."""
        is_introduced = is_within(address, self.proxies)
        if self.tls is None and not is_introduced:
            made = self.make()
            made.accepted_from = address
            return made
        return HandshakingConnection(self, is_introduced)

    def sweep(self, now: float) -> None:
        """Abort arrivals that exceed the head timeout, or at shutdown the idle limit; `now` is the cached time."""
        process, longest = self.cluster.process, self.cluster.timeouts.head
        if process.is_draining:
            longest = min(longest, max(process.idle_limit, process.first_request))
        self.give_way(now, longest, len(self._present))

    def give_way(self, now: float, longer_than: float, most: int) -> int:
        """Abort arrivals that began more than `longer_than` seconds ago, the oldest first; return how many, at most
        `most`.
        """
        late = [arrival for arrival in self._present if now - arrival.since > longer_than][:most]
        for arrival in late:
            arrival.abort()
        return len(late)

    def stop(self) -> None:
        """Abort all connections that have not reached HTTP."""
        for arrival in list(self._present):
            arrival.abort()

    def entered(self, arrival: HandshakingConnection) -> None:
        """Register an arrival, which holds a descriptor from now on."""
        self._present[arrival] = None

    def left(self, arrival: HandshakingConnection, *, is_failed: bool) -> None:
        """Remove an arrival that has reached HTTP or, with `is_failed`, has been closed."""
        if arrival not in self._present:
            return
        del self._present[arrival]
        if is_failed:
            self.cluster.process.counts.failed_arrivals += 1
            self.cluster.process.client_left()


class HandshakingConnection(asyncio.Protocol):
    """Protocol of a connection until HTTP begins. `since` is the time of its accept."""

    __slots__ = ("_arrivals", "_header", "_is_introduced", "_tls", "_transport", "since")

    _transport: asyncio.Transport

    def __init__(self, arrivals: HandshakingConnections, is_introduced: bool) -> None:
        self._arrivals = arrivals
        self._is_introduced = is_introduced
        self._header = b""
        self._tls: TlsTransport | None = None
        self.since = arrivals.cluster.now()

    def abort(self) -> None:
        """Abort the connection and count it as failed."""
        self._transport.abort()
        self._arrivals.left(self, is_failed=True)

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._arrivals.entered(self)
        if not self._is_introduced:
            self._begin_http(self._transport, b"")

    def data_received(self, data: bytes) -> None:
        self._header += data
        try:
            header = parse(self._header)
        except BadProxyHeader:
            self.abort()
            return
        if header is None:
            return
        transport: asyncio.Transport = self._transport
        if header.source is not None and header.destination is not None:
            transport = ProxiedTransport(transport, header.source, header.destination)
        self._begin_http(transport, self._header[header.size :])

    def connection_lost(self, error: Exception | None) -> None:
        self._arrivals.left(self, is_failed=True)

    # --- what it becomes

    def _begin_http(self, transport: asyncio.Transport, rest: bytes) -> None:
        protocol: asyncio.Protocol = self._arrivals.make()
        tls = self._arrivals.tls
        if tls is not None:
            protocol = self._tls = TlsTransport(
                tls.context,
                protocol,
                self._handshake_done,
                unnamed=tls.unnamed,
                protocols=tls.protocols,
                certificate_fields=tls.certificate_fields,
            )
        else:
            self._arrivals.left(self, is_failed=False)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if rest:
            protocol.data_received(rest)

    def _handshake_done(self, error: Exception | None) -> None:
        if isinstance(error, ssl.SSLError) and error.reason == "HTTP_REQUEST":
            plain = RequestRejected(400, "plain_http", "this port speaks TLS: use https")
            self._transport.write(ErrorAnswer(plain).response(None, self._arrivals.cluster.process.date_line))
        make, tls, self._tls = self._arrivals.make_http2, self._tls, None
        if error is None and make is not None and tls is not None:
            chosen = tls.get_extra_info("ssl_object").selected_alpn_protocol()
            if chosen == HTTP2:
                tls.set_protocol(make())
        self._arrivals.left(self, is_failed=error is not None)
