"""Connection closing by the worker: after a number of requests, when idle, or by reset.

A request that was read is answered. Only idle connections are closed; a request that is on its way at that time is
lost, as with any server.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from functools import partial
from random import Random
from typing import cast
from weakref import WeakKeyDictionary

from aiohttp import web

from workers.alarm import DeadlineTimer

_LINGER_ZERO = struct.pack("ii", 1, 0)


class ConnectionClosing:
    """Counts the requests of every connection and closes it when due.

    `idle_span`: an idle connection is closed after a time drawn uniformly from it, in seconds; a span from 0 closes
    some right after a response, without notice. `max_requests`: the span from which each connection draws its limit of
    requests; the last response has `Connection: close`.
    """

    def __init__(
        self,
        timer: DeadlineTimer,
        rng: Random,
        idle_span: tuple[float, float] | None = None,
        max_requests: tuple[int, int] | None = None,
    ) -> None:
        self._timer = timer
        self._rng = rng
        self._idle_span = idle_span
        self._max_requests = max_requests
        self._is_passive = idle_span is None and max_requests is None
        self._begun: WeakKeyDictionary[asyncio.Transport, int] = WeakKeyDictionary()
        self._most: WeakKeyDictionary[asyncio.Transport, int] = WeakKeyDictionary()

    def begin(self, request: web.Request) -> None:
        if not self._is_passive and request.transport is not None:
            self._begun[request.transport] = self._begun.get(request.transport, 0) + 1

    def finish(self, request: web.Request, response: web.StreamResponse) -> None:
        """Handle a finished response: announce the last one, or draw the idle timeout of the connection."""
        if self._is_passive or (transport := request.transport) is None:
            return
        begun = self._begun.get(transport, 0)
        if self._is_last(transport, begun) and not response.prepared:
            response.force_close()
        elif self._idle_span is not None:
            close_at = time.monotonic() + self._rng.uniform(*self._idle_span)
            self._timer.schedule(close_at, partial(self._close_if_idle, request.protocol, transport, begun))

    def _is_last(self, transport: asyncio.Transport, begun: int) -> bool:
        if self._max_requests is None:
            return False
        if transport not in self._most:
            self._most[transport] = self._rng.randint(*self._max_requests)
        return begun >= self._most[transport]

    def _close_if_idle(self, protocol: web.RequestHandler, transport: asyncio.Transport, begun: int) -> None:
        # The same count as before: no request has begun since.
        if self._begun.get(transport) == begun:
            protocol.force_close()


def reset(transport: asyncio.BaseTransport | None) -> None:
    """Reset a connection: a linger time of zero makes the kernel send RST instead of FIN (SO_LINGER)."""
    if transport is None or transport.is_closing():
        return
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
    cast(asyncio.Transport, transport).abort()  # uvloop's is no subclass
