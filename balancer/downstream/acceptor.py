"""Acceptor: accept client connections from the listening socket while descriptors are available.

Other clients wait in the kernel's backlog, where waiting costs nothing and the client sees a connection. Meanwhile each
downstream connection closes after its response, so that descriptors are shared in turn.
"""

from __future__ import annotations

import asyncio
import select
import socket

from balancer.cluster.cluster import Cluster
from balancer.downstream.connection_balance import PAUSE, ConnectionBalance
from balancer.downstream.preamble import HandshakingConnections
from balancer.errors import ListenFailed

BACKLOG = 4096
"""Maximum connections in the kernel's accept queue; net.core.somaxconn caps it."""

BATCH = 16
"""Connections accepted per loop iteration: each costs some 40 µs, and a thousand reconnecting at once should delay no
other work."""

QUIET_BEFORE_CLOSE = 1.0
"""Minimum idle seconds before a downstream connection may be closed in favour of a waiting client."""

SLOWEST_START = 3.0
"""Seconds after which a handshake or a head that is not whole gives way to a waiting client: a segment that was lost
twice is resent after 1 s and 2 s more (RFC 6298)."""


def bind(host: str, port: int, key: str = "listen") -> socket.socket:
    """Return a listening socket. Raises `ListenFailed`, whose message names the configuration's `key`."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ListenFailed(f"{key}: cannot use {host}:{port}: {error.strerror}") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise ListenFailed(f"{key}: cannot use {host}:{port}: {error.strerror}") from None
    sock.setblocking(False)
    return sock


def bound_unsent(sock: socket.socket, size: int) -> None:
    """Limit the unsent bytes that the kernel buffers to about `size` for each connection accepted from `sock`.

    Send buffers grow to megabytes each. With a thousand slow readers they fill the memory shared by all sockets of the
    machine (tcp_mem in tcp(7)); then the kernel drops segments of all connections, and they are resent after 200 ms.
    """
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, size)


class Acceptor:
    """Accepts connections and gives them the protocols of `arrivals`, at most `limit` at a time."""

    def __init__(
        self,
        sock: socket.socket,
        cluster: Cluster,
        arrivals: HandshakingConnections,
        limit: int,
        evenness: ConnectionBalance | None = None,
    ) -> None:
        bound_unsent(sock, cluster.limits.buffer)
        self._sock = sock
        self._balance = evenness  # balances connections with other processes that accept from the same socket
        self._waiting: asyncio.TimerHandle | None = None
        self._cluster = cluster
        self._arrivals = arrivals
        self.limit = limit
        self._loop = asyncio.get_running_loop()
        self._arriving: set[asyncio.Task[None]] = set()
        self._is_listening = False
        cluster.process.on_client_left = self._client_left

    @property
    def has_room(self) -> bool:
        """Return whether one more client can be served."""
        return self._clients < self.limit

    @property
    def _clients(self) -> int:
        return len(self._cluster.process.downstreams) + len(self._arrivals) + len(self._arriving)

    def start(self) -> None:
        self._note()
        self._listen()

    async def stop(self) -> None:
        """Stop accepting. The kernel closes connections still in the backlog unless another process shares the
        socket."""
        self._pause()
        if self._waiting is not None:
            self._waiting.cancel()
        if self._balance is not None:
            self._balance.leave()
        self._cluster.process.on_client_left = None
        self._sock.close()
        if self._arriving:
            await asyncio.wait(self._arriving)

    def sweep(self, now: float) -> None:
        """Close connections that are late with their handshake or their head, and idle keep-alive connections, longest
        idle first, while clients wait for a descriptor; called by the sweep.

        Resumes accepting if there is room, which a failed arrival may have made.
        """
        self._arrivals.sweep(now)
        if self._is_listening or self._waiting is not None or self._sock.fileno() < 0:
            return
        if self.has_room:
            self._listen()
            return
        is_crowded = self._has_backlog()
        self._cluster.process.set_crowded(is_crowded)
        if not is_crowded:
            return
        oldest_first = sorted(self._cluster.process.downstreams, key=lambda downstream: downstream.idle_since)
        closed = self._arrivals.give_way(now, SLOWEST_START, BATCH)
        for downstream in oldest_first:
            if closed >= BATCH:
                return
            closed += downstream.close_if_idle(now, QUIET_BEFORE_CLOSE) or downstream.end_late_head(
                now, SLOWEST_START
            )

    def _listen(self) -> None:
        self._is_listening = True
        self._cluster.process.set_crowded(False)
        self._loop.add_reader(self._sock.fileno(), self._ready)

    def _pause(self) -> None:
        if self._is_listening:
            self._is_listening = False
            self._loop.remove_reader(self._sock.fileno())

    def _client_left(self) -> None:
        self._note()
        if not self._is_listening and self._waiting is None and self.has_room:
            self._listen()

    def _note(self) -> None:
        if self._balance is not None:
            self._balance.note(self._clients)

    def _yield_to_siblings(self) -> None:
        """Pause accepting in favour of sibling processes, then take one connection if it is still waiting."""
        self._pause()
        self._waiting = self._loop.call_later(PAUSE, self._take_one)

    def _take_one(self) -> None:
        self._waiting = None
        if self.has_room:
            self._listen()
            self._accept()

    def _ready(self) -> None:
        for _ in range(BATCH):
            if self._balance is not None and self._balance.is_ahead(self._clients):
                self._yield_to_siblings()
                return
            if not self._accept():
                return

    def _accept(self) -> bool:
        """Accept one client. Returns whether one was accepted, so that more may wait."""
        if not self.has_room:
            self._pause()
            self._cluster.process.set_crowded(self._has_backlog())
            return False
        try:
            client, address = self._sock.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return False
        except OSError:  # descriptors are exhausted outside this process; try again when one of ours is free
            self._pause()
            return False
        client.setblocking(False)
        task = self._loop.create_task(self._arrive(client, address[0]))
        self._arriving.add(task)
        task.add_done_callback(self._arriving.discard)
        self._note()
        return True

    async def _arrive(self, client: socket.socket, address: str) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: self._arrivals.protocol(address), client)
        except OSError:  # the client disconnected before the accept completed
            client.close()

    def _has_backlog(self) -> bool:
        waiting = select.poll()
        waiting.register(self._sock.fileno(), select.POLLIN)
        return bool(waiting.poll(0))
