"""The admin interface: sockets and access of every request whose path begins with /-/.

It reads and changes the balancer and is never in the path of a forwarded request. Requests arrive on a Unix
socket, on a TCP address of its own and, with the token, on the traffic port: Heroku gives a process only one port.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from balancer.control.admin.access import Entrance, is_admitted
from balancer.control.admin.connection import AdminConnection
from balancer.control.admin.exchange import AdminExchange, AdminPeer
from balancer.control.admin.health import PANIC, SERVING, readiness
from balancer.control.admin.socket_path import AdminSockets
from balancer.control.control_plane import ControlPlane
from balancer.control.reload import Reloads
from balancer.errors import ForwardingError
from balancer.http.h1.request_head import Request
from balancer.log.formats import NOT_CONNECTED, TARGET_LIMIT, Entry, fault_of
from balancer.log.output import complain
from balancer.syntax.printable import one_line

if TYPE_CHECKING:
    from balancer.control.admin.channel import SiblingChannel
    from balancer.control.admin.handlers import AdminHandlers

CLIENT_LIMIT = 64
"""Limit of connections to `admin.listen` that are not admitted yet; further ones are reset."""


class AdminApplication:
    """The admin interface of a process: its listening sockets, and the handlers, imported for the first request."""

    def __init__(
        self,
        control_plane: ControlPlane,
        reloads: Reloads,
        token: bytes | None = None,
        channel: SiblingChannel | None = None,
        sockets: AdminSockets | None = None,
    ) -> None:
        self._control_plane = control_plane
        self._cluster = control_plane.cluster
        self._reloads = reloads
        self.token = token
        self._channel = channel
        self._sockets = sockets or AdminSockets()
        self._servers: list[asyncio.AbstractServer] = []
        self._clients: dict[AdminConnection, None] = {}  # in order of arrival
        self._handlers: AdminHandlers | None = None
        self._loading: asyncio.Task[None] | None = None
        self._waiting: list[WaitingClient] = []
        self._is_running = False

    def _new_handlers(self) -> AdminHandlers:
        """Return the handlers. Their import, with aiohttp, takes a fifth of a second and 14 MiB."""
        from balancer.control.admin.handlers import AdminHandlers

        return AdminHandlers(lambda: self.token, self.log, self._control_plane, self._reloads, self._channel)

    def _protocol(self, entrance: Entrance) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        if self._handlers is None:
            return WaitingClient(entrance, self._wait)
        return self._handlers.protocol(entrance)

    def _wait(self, client: WaitingClient) -> None:
        """Serve a client as soon as the handlers are imported."""
        self._waiting.append(client)
        if self._loading is None:
            self._loading = asyncio.get_running_loop().create_task(self._load())

    async def _load(self) -> None:
        """Import the handlers in a thread, and serve those that wait. If that fails they are disconnected, and the next
        client tries again.
        """
        try:
            self._handlers = await asyncio.to_thread(self._new_handlers)
        except Exception as error:  # a faulty installation may raise anything
            complain(f"admin: cannot load the handlers: {one_line(str(error) or type(error).__name__)}")
            self._loading = None
        waiting, self._waiting = self._waiting, []
        for client in waiting:
            if self._handlers is None:
                client.transport.abort()
            elif not client.transport.is_closing():
                client.transport.resume_reading()
                self.take_over(client.transport, bytes(client.received), client.entrance)

    async def start(self) -> None:
        """Start listening; one of several processes first applies the runtime overrides of its siblings.

        The handlers are imported at once where monitoring is expected: an import during traffic delays requests."""
        self._is_running = True
        if self._channel is not None or self._sockets.tcp is not None or self.token is not None:
            self._handlers = self._new_handlers()
        if self._channel is not None and self._handlers is not None:
            await self._handlers.join_siblings()
        loop, sockets = asyncio.get_running_loop(), self._sockets
        if sockets.unix is not None:
            keeps_file: dict[str, Any] = {}
            if sys.version_info >= (3, 13) and isinstance(
                loop, asyncio.SelectorEventLoop
            ):  # uvloop never removes the file
                keeps_file["cleanup_socket"] = False
            self._servers.append(
                await loop.create_unix_server(
                    partial(self._protocol, Entrance.SOCKET), sock=sockets.unix, **keeps_file
                )
            )
        if sockets.tcp is not None:
            self._servers.append(
                await loop.create_server(lambda: AdminConnection(self._cluster, self), sock=sockets.tcp)
            )

    async def reload_everywhere(self) -> list[str]:
        """Reload the configuration in all processes, as `AdminHandlers.reload_everywhere`."""
        assert self._handlers is not None  # one of several processes
        return await self._handlers.reload_everywhere()

    def close(self) -> None:
        """Stop accepting connections; open ones stay."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        self._sockets.close()

    async def stop(self) -> None:
        """Stop accepting connections, finish open requests and close."""
        self.close()
        self._is_running = False
        if self._loading is not None:
            await self._loading
        if self._handlers is not None:
            await self._handlers.stop()

    def take_over(
        self, transport: asyncio.Transport, request: bytes, entrance: Entrance = Entrance.TRAFFIC
    ) -> None:
        """Answer `request`, as a rule a whole HTTP message admitted by its head, on `transport`, and close it."""
        if not self._is_running:
            transport.close()
            return
        protocol = self._protocol(entrance)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(request)

    # --- requests on client connections

    def exchange(self, connection: AdminPeer, request: Request) -> AdminExchange:
        """Return the handler of an admin request on the traffic port."""
        return AdminExchange(connection, self, request, Entrance.TRAFFIC)

    def exchange_on_listener(self, connection: AdminPeer, request: Request) -> AdminExchange:
        """Return the handler of a request on the admin listener."""
        return AdminExchange(connection, self, request, Entrance.LISTEN)

    # --- access

    def admits(self, head: bytes, entrance: Entrance) -> bool:
        """Return whether a request on a client connection is admitted, by its head."""
        return is_admitted(head, entrance, self.token)

    def enter(self, client: AdminConnection) -> bool:
        """Register one more connection to `admin.listen`; at the limit the oldest that waits for its client gives way.
        Return False if none does.
        """
        if len(self._clients) >= CLIENT_LIMIT:
            oldest = next((each for each in self._clients if each.is_waiting), None)
            if oldest is None:
                return False
            self.leave(oldest)
            oldest.abort()
        self._clients[client] = None
        return True

    def leave(self, client: AdminConnection) -> None:
        """Remove a connection that closed, or was admitted and handed over."""
        self._clients.pop(client, None)

    def log_answer(
        self, request: Request, peer: AdminPeer, status: int, size: int, error: ForwardingError | None
    ) -> None:
        """Log a request on the traffic port that was answered without the application: by an error, or `size` bytes."""
        now, fault = self._cluster.now(), fault_of(error, self._cluster.process.error_bodies)
        self.log(Entry(
            now, fault, status, request.method, request.target[:TARGET_LIMIT], b"", request.raw,
            request.fields.is_http10, peer.client, None, 0, NOT_CONNECTED, (peer.arrived[0], now), 0.0, 0.0,
            None, 0, size,
        ))  # fmt: skip

    def log(self, entry: Entry, head: bytes | None = None) -> None:
        """Log a request; `head` has the fields of its head if those of `entry` are not complete."""
        log = self._cluster.process.access_log
        if log is not None and log.logs_admin and (entry.fault or log.takes(entry.status, None)):
            entry.policy = self._cluster.policy
            if log.chosen is not None:
                entry.extra = log.chosen.extra(entry.head if head is None else head, b"")
            log.add(entry)

    # --- readiness

    @property
    def is_ready(self) -> bool:
        """Whether some endpoint may answer, and the balancer is not draining."""
        return self.readiness in (SERVING, PANIC)

    @property
    def date_line(self) -> bytes:
        """The Date field of the last sweep."""
        return self._control_plane.cluster.process.date_line

    @property
    def readiness(self) -> str:
        """Readiness in words that name no endpoint and no number: everybody may ask for it."""
        return readiness(self._control_plane)


class WaitingClient(asyncio.Protocol):
    """A client whose request waits for the handlers. What it sends until then is kept, but not read on."""

    def __init__(self, entrance: Entrance, wait: Callable[[WaitingClient], None]) -> None:
        self.entrance = entrance
        self.received = bytearray()
        self._wait = wait

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._wait(self)

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.transport.pause_reading()
