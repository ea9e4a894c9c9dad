"""The balancer without sockets: its protocols, router, pools and sweep on transports made of lists.

The transports do to protocols what uvloop does, in the same order, and know no HTTP. Every outside action is a method
of `Peer` or `Wireless`, so a run is a list of calls, and the same list gives the same bytes. There are no threads,
one descriptor, and time advances by command.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from itertools import count
from typing import Any, Self, cast

from balancer.clients.client_usage import ClientConnection
from balancer.cluster.cluster import Cluster
from balancer.config.loading import Settings
from balancer.control.admin.access import Entrance
from balancer.control.admin.application import AdminApplication
from balancer.control.admin.exchange import AdminExchange, AdminPeer
from balancer.control.control_plane import ControlPlane
from balancer.control.named_clusters import NamedClusters
from balancer.downstream.connection import Http1Connection
from balancer.downstream.http2.connection import Http2Connection
from balancer.downstream.timeouts import Sweep
from balancer.exchange.exchange import Exchange
from balancer.exchange.responder import Responder
from balancer.http.h1.client import Client
from balancer.http.h1.request_head import Request
from balancer.process.server import build, build_cluster
from tests.support.virtual import Escaped, VirtualLoop

_END = b""
"""End of the peer's data, in a transport's inbox."""

OURS = ("127.0.0.1", 8080)
CLIENTS = "192.0.2.7"
MIRROR = "192.0.2.99"
DATE = "Thu, 01 Jan 1970 00:00:01 GMT"
"""That of every sweep: two runs of the same events must not differ by the time of day."""

QUIET, _HELD_OPEN = os.pipe()
"""A descriptor without data, for the kernel query of `UpstreamConnection.is_quiet`."""


def reload_with(control_plane: ControlPlane, **tables: Any) -> None:
    """Apply the present configuration with other tables."""
    config = control_plane.config
    control_plane.apply(replace(config, settings=config.settings.model_copy(update=tables)))
    control_plane.cluster.process.apply(control_plane.config.settings)


class Socket:
    """The part of a socket that the balancer uses."""

    def __init__(self) -> None:
        self.is_abortive = False

    def fileno(self) -> int:
        return QUIET

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        """Empty: no window information."""
        return b""

    def setsockopt(self, level: int, option: int, value: object) -> None:
        self.is_abortive |= (level, option) == (socket.SOL_SOCKET, socket.SO_LINGER)


class Wire(asyncio.Transport):
    """A connection as the balancer's protocol sees it: uvloop's `UVStream` with lists in place of the kernel."""

    def __init__(self, loop: VirtualLoop, peer: Peer, protocol: asyncio.Protocol, address: Any) -> None:
        super().__init__()
        self._loop = loop
        self._peer = peer
        self._protocol: asyncio.Protocol | asyncio.BufferedProtocol | None = protocol
        self._extra = {"socket": Socket(), "peername": address, "sockname": OURS}
        self._inbox: deque[bytes] = deque()
        self._buffer = bytearray()
        self._high, self._low = 65536, 16384
        self._is_reading = True
        self._is_closing = self._is_lost = self._is_gone = self._is_ended = self._is_full = False

    # --- asyncio.Transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._extra.get(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def is_closing(self) -> bool:
        return self._is_closing

    def is_reading(self) -> bool:
        return self._is_reading

    def can_write_eof(self) -> bool:
        return True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 65536 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._must_be_alive()
        if self._is_ended:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._is_lost or not data:
            return
        self._put(bytes(data))
        if len(self._buffer) > self._high and not self._is_full and self._protocol is not None:
            self._is_full = True
            self._protocol.pause_writing()

    def _put(self, data: bytes) -> None:
        """Send, or keep in the buffer what the peer does not take."""
        self._peer.writes.append(len(self._peer.received) + len(self._buffer))
        self._buffer += data
        if not self._peer.is_stalled:
            self.drain(len(self._buffer))

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.write(data)

    def write_eof(self) -> None:
        self._must_be_alive()
        if not self._is_ended:
            self._is_ended = True
            self.drain(0)

    def pause_reading(self) -> None:
        if not self._is_closing:
            self._is_reading = False

    def resume_reading(self) -> None:
        if not (self._is_reading or self._is_closing):
            self._is_reading = True
            self._loop.call_soon(self._deliver)

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing, self._is_reading = True, False
            if not self._buffer:
                self._lose(None)

    def abort(self) -> None:
        self._lose(None)

    # --- the peer's side

    def arrive(self, data: bytes) -> None:
        """Receive bytes or the end from the peer."""
        self._inbox.append(data)
        self._deliver()

    def reset(self, error: OSError) -> None:
        """The peer has reset the connection: unread and unwritten bytes are lost."""
        self._lose(error)

    def drain(self, size: int) -> None:
        """The peer reads `size` bytes."""
        if size and self._buffer:
            self._peer.received += self._buffer[:size]
            del self._buffer[:size]
            self._loop.call_soon(self._peer.react)
        self._resume_writing()
        if not self._buffer and self._is_closing:
            self._lose(None)
        elif not self._buffer and self._is_ended:
            self._peer.ending = self._peer.ending or "end"

    def _resume_writing(self) -> None:
        if self._is_full and len(self._buffer) <= self._low and self._protocol is not None:
            self._is_full = False
            self._protocol.resume_writing()

    def _must_be_alive(self) -> None:
        if self._is_gone:
            raise RuntimeError(f"unable to perform operation on {self!r}; the handler is closed")

    def _deliver(self) -> None:
        while self._inbox and self._is_reading and self._protocol is not None:
            if self._inbox[0]:
                self._read(self._protocol)
            elif (
                self._protocol.eof_received()
            ):  # it stays in the inbox, so that reading again reports it again
                self._is_reading = False
            else:
                self.close()

    def _read(self, protocol: asyncio.Protocol | asyncio.BufferedProtocol) -> None:
        """Deliver one read; a buffered protocol gets as much as its buffer holds."""
        data = self._inbox.popleft()
        if not isinstance(protocol, asyncio.BufferedProtocol):
            protocol.data_received(data)
            return
        buffer = memoryview(protocol.get_buffer(-1))
        size = min(len(buffer), len(data))
        if size < len(data):
            self._inbox.appendleft(data[size:])
        buffer[:size] = data[:size]
        protocol.buffer_updated(size)

    def _lose(self, error: OSError | None) -> None:
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self._is_reading = False
        if error is None:
            is_reset = bool(self._buffer) or self._extra["socket"].is_abortive
            self._peer.ending = "reset" if is_reset else self._peer.ending or "end"
        self._buffer.clear()
        self._loop.call_soon(self._say_lost, error)

    def _say_lost(self, error: OSError | None) -> None:
        protocol, self._protocol = self._protocol, None
        self._is_gone = True
        self._inbox.clear()
        if protocol is not None:
            protocol.connection_lost(error)


class Peer:
    """The other end of a connection: a client, or a worker that the balancer has connected to.

    `received` is all that it has read, `writes` the offset in it of each write of the balancer, `ending` how the
    balancer ended its side: None, "end" (FIN) or "reset". `on_received` is called after bytes have arrived.
    """

    def __init__(self) -> None:
        self.received = bytearray()
        self.writes: list[int] = []
        self.ending: str | None = None
        self.is_stalled = False
        self.has_ended = False
        self.on_received: Callable[[Peer], None] | None = None
        self.wire: Wire | None = None

    def attach(self, wire: Wire) -> None:
        """Set the connection."""
        self.wire = wire

    @property
    def is_open(self) -> bool:
        """Whether the connection is open at this end."""
        return self.wire is not None and not self.wire.is_closing()

    @property
    def address(self) -> str:
        """Its own address."""
        assert self.wire is not None
        return str(self.wire.get_extra_info("peername")[0])

    @property
    def unread(self) -> int:
        """Bytes that the balancer has buffered for this end."""
        return self.wire.get_write_buffer_size() if self.wire is not None else 0

    def send(self, data: bytes) -> None:
        """Send bytes that arrive as one read."""
        if data and self.is_open and not self.has_ended and self.wire is not None:
            self.wire.arrive(data)

    def end(self) -> None:
        """Half-close: send no more."""
        if self.is_open and not self.has_ended and self.wire is not None:
            self.has_ended = True
            self.wire.arrive(_END)

    def end_early(self) -> None:
        """Half-close, which the transport reports at once, as with TLS: also while reading is paused."""
        assert self.wire is not None
        self.wire.get_protocol().eof_received()  # type: ignore[attr-defined]  # the balancer's own

    def vanish(self) -> None:
        """Reset the connection."""
        if self.wire is not None:
            self.wire.reset(ConnectionResetError(104, "Connection reset by peer"))

    def stall(self) -> None:
        """Stop reading."""
        self.is_stalled = True

    def take(self, size: int | None = None) -> None:
        """Read `size` buffered bytes; None: all, and keep reading."""
        self.is_stalled = self.is_stalled and size is not None
        if self.wire is not None and self.unread:
            self.wire.drain(self.unread if size is None else size)

    def react(self) -> None:
        """Call `on_received`."""
        if self.on_received is not None:
            self.on_received(self)


class AdminStub:
    """In place of the admin application: admits every request, and closes connections that it takes over."""

    is_ready = True
    readiness = "serving"

    def admits(self, head: bytes, entrance: Entrance) -> bool:
        return True

    def log_answer(self, request: Request, client: Client, arrived_at: float, status: int, size: int) -> None:
        """No access log."""

    def take_over(self, transport: asyncio.Transport, request: bytes) -> None:
        transport.set_protocol(asyncio.Protocol())
        transport.close()


def table_of(value: Any) -> Any:
    """A table from a tuple of pairs, a list of tables from a tuple of those; others as they are."""
    if not (isinstance(value, tuple) and all(isinstance(each, tuple) for each in value)):
        return value
    if all(isinstance(each[0], str) for each in value):
        return {name: table_of(inner) for name, inner in value}
    return [table_of(each) for each in value]


@lru_cache(maxsize=64)
def settings(workers: int, options: tuple[tuple[str, Any], ...]) -> Settings:
    """Validated settings, cached because validation takes longer than a run."""
    endpoints = [{"id": f"w{i}", "address": f"http://192.0.2.1{i}:80", "region": "r"} for i in range(workers)]
    checks = {"first_connect": False}
    defaults: dict[str, Any] = {
        "policy": "round-robin",
        "seed": 1,
        "endpoints": endpoints,
        "health_checks": checks,
    }
    tables = {name: table_of(value) for name, value in options}
    mirror = tables.pop("mirror", None)
    if mirror is not None:
        endpoint = {"id": "m0", "address": f"http://{MIRROR}:80", "region": "r"}
        defaults["clusters"] = {"mirror": {"endpoints": [endpoint]}}
        defaults["routes"] = [{"cluster": "default", "mirror": {"cluster": "mirror", "share": 1.0, **mirror}}]
    return Settings(**defaults | tables)


class Wireless:
    """A balancer with its clients and workers; as a context manager its code runs inside.

    `workers` are the connections that the balancer has opened, in order; each gets `worker_script` as its
    `on_received`. `dialling` decides about the next ones: "accept", "refuse", "hang", "end" (accept and close at
    once) or "fault" (an exception that no network causes). `options` are configuration keys, with tables as tuples of
    pairs: `retries=0, timeouts=(("head", 1.0),)`. With `mirror`, keys of a route's mirror, all requests are copied to a
    pool of one endpoint; `copies_to` are the connections to it, which have their own script and `mirror_dialling`.
    """

    def __init__(self, endpoints: int = 1, **options: Any) -> None:
        self.loop = VirtualLoop(self._dial)
        self.control_plane = build(settings(endpoints, tuple(options.items())), self.loop)
        self.cluster = self.control_plane.cluster
        self.cluster.process.fresh_id = map(b"id-%x".__mod__, count()).__next__
        self.clients: list[Peer] = []
        self.workers: list[Peer] = []
        self.worker_script: Callable[[Peer], None] | None = None
        self.dialling = "accept"
        self.copies_to: list[Peer] = []
        self.mirror_script: Callable[[Peer], None] | None = None
        self.mirror_dialling = "accept"
        self.named_clusters = NamedClusters(
            self.control_plane, lambda name, one: build_cluster(one, self.cluster.process, name=name)
        )
        config = self.control_plane.config
        self.named_clusters.commit(
            config,
            {name: build_cluster(one, self.cluster.process, name=name) for name, one in config.named.items()},
        )
        self._sweep = Sweep(self.cluster.process, self._look, date=lambda: DATE)

    def __enter__(self) -> Self:
        self.loop.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.__exit__()

    def client(self, address: str = CLIENTS) -> Peer:
        """Connect a client."""
        peer = Peer()
        self.clients.append(peer)
        routes = self.named_clusters.routes
        connection = Http1Connection(self.cluster, self._admin_exchange, routes, self._http2)
        self._connect(peer, connection, (address, 50000 + len(self.clients)))
        return peer

    def _http2(self) -> Http2Connection:
        assert self.cluster.http2 is not None
        routes = self.named_clusters.routes
        return Http2Connection(self.cluster, self.cluster.http2, self._admin_exchange, routes)

    def _look(self, now: float) -> None:
        self.cluster.sweep(now)
        self.control_plane.checks.sweep(now)
        self.named_clusters.sweep(now)

    def _admin_exchange(self, connection: AdminPeer, request: Request) -> AdminExchange:
        return AdminExchange(connection, cast(AdminApplication, AdminStub()), request, Entrance.TRAFFIC)

    @property
    def clusters(self) -> list[Cluster]:
        return [self.cluster, *(one.cluster for one in self.named_clusters.every)]

    @property
    def downstreams(self) -> dict[ClientConnection, None]:
        return self.cluster.process.downstreams

    def turn(self) -> None:
        """Run all callbacks that are due without time passing. Raises `Escaped`."""
        self.loop.turn()

    def advance(self, seconds: float) -> None:
        """Let time pass, then sweep all deadlines."""
        self.loop.advance(seconds)
        list(self._sweep.slices(self.loop.now()))
        self.loop.turn()

    def leave(self) -> None:
        """Reset all clients and workers, and cancel dials."""
        self.dialling = self.mirror_dialling = "refuse"
        for peer in [*self.clients, *self.workers, *self.copies_to]:
            peer.vanish()
        self.turn()
        for cluster in self.clusters:
            for pool in cluster.pools.by_id.values():
                pool.close()
        self.turn()

    def left_behind(self) -> list[str]:
        """After `leave`: connections that are still referred to. The garbage collector runs only if needed."""
        names = [("client", peer) for peer in self.clients]
        names += [("worker", peer) for peer in [*self.workers, *self.copies_to]]
        wires = [(name, weakref.ref(peer.wire)) for name, peer in names if peer.wire is not None]
        for _, peer in names:
            peer.wire = None
        for generation in (1, 2):  # the costly full collection only if needed
            if any(wire() for _, wire in wires):
                gc.collect(generation)
        return [f"{name}: {gc.get_referrers(alive)}" for name, wire in wires if (alive := wire()) is not None]

    def _connect(self, peer: Peer, protocol: asyncio.Protocol, address: tuple[str, int]) -> Wire:
        wire = Wire(self.loop, peer, protocol, address)
        peer.attach(wire)
        protocol.connection_made(wire)
        return wire

    def _dial(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> asyncio.Future[Any]:
        future = self.loop.create_future()
        is_copy = host == MIRROR
        dialling = self.mirror_dialling if is_copy else self.dialling
        if dialling == "refuse":
            future.set_exception(ConnectionRefusedError(111, "Connection refused"))
        elif dialling == "fault":
            future.set_exception(RuntimeError("out of order"))
        elif dialling != "hang":
            peer = Peer()
            peer.on_received = self.mirror_script if is_copy else self.worker_script
            (self.copies_to if is_copy else self.workers).append(peer)
            protocol = factory()
            future.set_result((self._connect(peer, protocol, (host, port)), protocol))
            if dialling == "end":
                peer.end()
        return future


def charged(cluster: Cluster) -> int:
    """Bytes that the bodies of a process are charged with: those of its clients' responses and requests."""
    clients: list[Responder] = []
    for downstream in cluster.process.downstreams:
        if isinstance(downstream, Http2Connection):
            clients += {**downstream._streams, **downstream._ended}.values()
        elif isinstance(downstream, Responder):
            clients.append(downstream)
    size = 0
    for client in clients:
        handler = getattr(client, "_handler" if client.is_stream else "_answering", None)
        kept = handler.kept if isinstance(handler, Exchange) else None
        size += sum(one.charge.size for one in (client, kept) if one is not None and one.charge is not None)
    return size


def miscounted(clusters: Sequence[Cluster]) -> str:
    """What is wrong with the counts of clients (`ClientUsages`): they add up, and return to zero with the requests."""
    process = clusters[0].process
    records = process.usages._by_network.values()
    for one in records:
        if one.bytes < 0 or not 0 <= one.tunnels <= one.requests:
            return f"{one.requests} requests, {one.tunnels} tunnels and {one.bytes} bytes of {one.network!r}"
    requests, size = sum(one.requests for one in records), sum(one.bytes for one in records)
    served = process.in_flight + sum(len(each.tunnels) for each in clusters)
    if requests > served or size != process.usages.budget.kept or (size and not requests):
        return f"{requests} of {served} requests, {size} of {process.usages.budget.kept} bytes"
    return "" if records or not process.downstreams else "connected clients have no record"


@contextmanager
def buffering(endpoints: int = 1, **options: Any) -> Iterator[Wireless]:
    """A balancer that buffers as `options` say; at the end nothing is kept."""
    with Wireless(endpoints, **options) as stage:
        yield stage
        budget = stage.cluster.process.buffer_budget
        assert budget.kept == charged(stage.cluster)
        stage.leave()
        assert budget.kept == 0
        assert [state.in_flight for state in stage.cluster.router.states] == [0] * endpoints
        assert not stage.left_behind()


def sends(stage: Wireless, peer: Peer, *pieces: bytes) -> None:
    """Send pieces, each of which arrives before the next."""
    for piece in pieces:
        peer.send(piece)
        stage.turn()


__all__ = ["Escaped", "Peer", "Wireless", "buffering", "charged", "miscounted", "sends"]
