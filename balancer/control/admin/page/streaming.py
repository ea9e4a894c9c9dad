"""Server-sent events to the viewers of a page, each at the pace at which it reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from aiohttp import web

from balancer.control.admin.page.sampler import VIEWER_LIMIT, TooManyViewers

STALL_LIMIT = 30.0
"""Seconds after which a viewer that does not read is disconnected."""

STREAM_FIELDS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # else nginx would collect events before it forwards them
}


class EventStreams:
    """The open streams of a page. `stalled` are the connections of viewers that have not read the last event."""

    def __init__(self) -> None:
        self.stalled: set[asyncio.Transport] = set()

    def close(self) -> None:
        """Disconnect the viewers that do not read; the streams of others end with their events."""
        for transport in self.stalled:
            transport.abort()

    async def respond(self, request: web.Request, source: AsyncGenerator[bytes, None]) -> web.StreamResponse:
        """Send the events of `source` until it ends or the viewer leaves; 503 where it raises `TooManyViewers`."""
        async with aclosing(source) as events:
            try:
                first = await anext(events)
            except TooManyViewers:
                problem = {"error": f"stream: {VIEWER_LIMIT} viewers watch already"}
                return web.json_response(problem, status=503)
            response = web.StreamResponse(headers=STREAM_FIELDS)
            try:
                await response.prepare(request)
                await self._send(request, response, first)
                async for event in events:
                    await self._send(request, response, event)
            except ConnectionError:
                pass  # the viewer has left
            except TimeoutError:
                if request.transport is not None:
                    request.transport.abort()
        return response

    async def _send(self, request: web.Request, response: web.StreamResponse, event: bytes) -> None:
        """Write an event, waiting until the viewer has read most of the ones before. Raises `TimeoutError`."""
        transport = request.transport
        if transport is None:
            raise ConnectionResetError
        self.stalled.add(transport)
        try:
            async with asyncio.timeout(STALL_LIMIT):
                await response.write(event)
        finally:
            self.stalled.discard(transport)
