"""Upstream transport over libcurl's multi interface, driven by the event loop's socket events and timers.

libcurl owns the connections, one set for all endpoints; the pool of an endpoint only counts them. libcurl must not be
called from within its own callbacks.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pycurl

from balancer.errors import ConnectionBroken
from balancer.http.h1.field_list import FieldList
from balancer.tls.contexts import ClientTls
from balancer.upstream.http2.pool import MultiplexedPool
from balancer.upstream.library.connection import LibraryConnection, address_of
from balancer.upstream.library.curl_transfer import CurlTransfer, error_of
from balancer.upstream.library.pool import LibraryPool
from balancer.upstream.pool_context import PoolContext
from balancer.upstream.stream import MultiplexedConnection, UpstreamStream

SPARE_HANDLES = 64
"""Unused curl handles that are kept for reuse."""


class CurlClient:
    """libcurl multi handle shared by all endpoints."""

    def __init__(self, limit: int | None) -> None:
        """Create the multi handle. `limit`: maximum number of connections, None: unlimited."""
        self._loop = asyncio.get_running_loop()
        self._multi: Any = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._on_socket)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._on_timer)
        self._multi.setopt(pycurl.M_PIPELINING, pycurl.PIPE_MULTIPLEX)
        self._multi.setopt(pycurl.M_MAXCONNECTS, limit or 10_000)
        if limit is not None:
            self._multi.setopt(pycurl.M_MAX_TOTAL_CONNECTIONS, limit)
        self._transfers: dict[Any, CurlTransfer] = {}
        self._touched: dict[CurlTransfer, None] = {}
        self._spare: list[Any] = []
        self._timer: asyncio.TimerHandle | None = None
        self._watched: dict[int, int] = {}  # descriptor → POLL_IN, POLL_OUT or both
        self._is_settling_due = False

    async def close(self) -> None:
        """Fail all transfers and close all connections."""
        for transfer in list(self._transfers.values()):
            self.forget(transfer)
            transfer.stream.fail(ConnectionBroken("the connection was closed"))
        self._multi.close()
        for descriptor in list(self._watched):
            self._watch(descriptor, 0)
        if self._timer is not None:
            self._timer.cancel()
        del self._multi  # whose callbacks refer to this

    # --- transfers

    def begin(self, transfer: CurlTransfer) -> None:
        """Start a transfer whose options are set."""
        self._transfers[transfer.handle] = transfer
        self._multi.add_handle(transfer.handle)

    def handle(self) -> Any:
        """Return an unused curl handle, created if none is spare."""
        return self._spare.pop() if self._spare else pycurl.Curl()

    def go_on(self, transfer: CurlTransfer) -> None:
        """Unpause a transfer. libcurl may call its callbacks from within this call."""
        transfer.handle.pause(pycurl.PAUSE_CONT)
        self._settle_soon()

    def touch(self, transfer: CurlTransfer) -> None:
        """Mark a transfer that has events to pass on."""
        self._touched[transfer] = None

    def forget(self, transfer: CurlTransfer) -> None:
        """Remove a transfer. If it is incomplete, libcurl closes its connection unless other transfers share it."""
        handle, transfer.handle = transfer.handle, None
        if handle is None:
            return
        del self._transfers[handle]
        self._multi.remove_handle(handle)
        handle.reset()
        if len(self._spare) < SPARE_HANDLES:
            self._spare.append(handle)

    # --- the loop

    def _on_socket(self, wanted: int, descriptor: int, multi: Any, data: Any) -> None:
        self._watch(descriptor, 0 if wanted == pycurl.POLL_REMOVE else wanted)

    def _watch(self, descriptor: int, wanted: int) -> None:
        before = self._watched.get(descriptor, 0)
        if wanted & pycurl.POLL_IN and not before & pycurl.POLL_IN:
            self._loop.add_reader(descriptor, self._act, descriptor, pycurl.CSELECT_IN)
        elif before & pycurl.POLL_IN and not wanted & pycurl.POLL_IN:
            self._loop.remove_reader(descriptor)
        if wanted & pycurl.POLL_OUT and not before & pycurl.POLL_OUT:
            self._loop.add_writer(descriptor, self._act, descriptor, pycurl.CSELECT_OUT)
        elif before & pycurl.POLL_OUT and not wanted & pycurl.POLL_OUT:
            self._loop.remove_writer(descriptor)
        if wanted:
            self._watched[descriptor] = wanted
        else:
            self._watched.pop(descriptor, None)

    def _on_timer(self, milliseconds: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if milliseconds >= 0:
            self._timer = self._loop.call_later(milliseconds / 1000, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._act(pycurl.SOCKET_TIMEOUT, 0)

    def _act(self, descriptor: int, what: int) -> None:
        self._multi.socket_action(descriptor, what)
        self._settle()

    def _settle_soon(self) -> None:
        if not self._is_settling_due:
            self._is_settling_due = True
            self._loop.call_soon(self._settle)

    def _settle(self) -> None:
        """Pass on the events of marked transfers, then finish the transfers that libcurl has completed."""
        self._is_settling_due = False
        ended = self._ended()
        touched, self._touched = self._touched, {}
        for transfer in touched:
            if transfer not in ended:
                transfer.settle()
        for transfer, (code, message) in ended.items():
            if transfer.handle is not None:
                transfer.count_connects()
                error = error_of(transfer.handle, code, message) if code else None
                self.forget(transfer)
                transfer.ended(error)

    def _ended(self) -> dict[CurlTransfer, tuple[int, str]]:
        ended: dict[CurlTransfer, tuple[int, str]] = {}
        more = 1
        while more and self._transfers:
            more, well, badly = self._multi.info_read()
            for handle in well:
                ended[self._transfers[handle]] = 0, ""
            for handle, code, message in badly:
                ended[self._transfers[handle]] = code, message
        return ended


class CurlConnection(LibraryConnection):
    """`MultiplexedConnection` that represents libcurl for one endpoint."""

    def __init__(self, pool: LibraryPool, tls: ClientTls | None) -> None:
        super().__init__(pool)
        self.client = client_of(pool.pools)
        self.tls = tls
        self.origin = pool.origin
        host, port = pool.origin
        self.url = address_of(host if tls is None else tls.name, port, tls) + "/"

    def begin(self, stream: UpstreamStream, outline: FieldList) -> CurlTransfer:
        transfer = CurlTransfer(self, stream, self.client.handle())
        transfer.describe(outline)
        self.client.begin(transfer)
        return transfer


def client_of(pools: PoolContext) -> CurlClient:
    """Return the libcurl client shared by all endpoints; create it on first use."""
    client: CurlClient | None = pools.clients.get("curl")
    if client is None:
        client = pools.clients["curl"] = CurlClient(pools.limit)
    return client


async def open_client(pool: MultiplexedPool, tls: ClientTls | None) -> MultiplexedConnection:
    """Return what represents libcurl for the endpoint of a `LibraryPool`."""
    return CurlConnection(cast(LibraryPool, pool), tls)
