"""Routes of the live page: the document, the stream of snapshots, and the policies to choose from."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from aiohttp import web

from balancer.admin.channel import Channel, is_from_sibling
from balancer.admin.endpoint_routes import problem
from balancer.admin.page.document import page
from balancer.admin.page.policies_report import policies_report
from balancer.admin.page.sample import process_sample
from balancer.admin.page.sampler import VIEWER_LIMIT, Sampler, TooManyViewers

if TYPE_CHECKING:
    from balancer.control_plane import ControlPlane

STALL_LIMIT = 30.0
"""Seconds after which a viewer that does not read is disconnected."""

SAMPLE = "/-/sample"
"""Path at which a sibling process answers with its sample."""

STREAM_FIELDS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # else nginx would collect events before it forwards them
}


class PageRoutes:
    """Routes of the live page of a proxy; one sampler for all viewers of this process."""

    def __init__(self, control_plane: ControlPlane, channel: Channel | None = None) -> None:
        self._control_plane = control_plane
        self._channel = channel
        self.sampler = Sampler(self._samples)
        self._stalled: set[asyncio.Transport] = set()

    def routes(self) -> Iterable[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/-/", self._page),
            web.get("/-/stream", self._stream, allow_head=False),
            web.get("/-/policies", self._policies),
            web.get(SAMPLE, self._sample),
        ]

    def close(self) -> None:
        """End all streams at once, also those whose viewer does not read."""
        self.sampler.close()
        for transport in self._stalled:
            transport.abort()

    async def _page(self, request: web.Request) -> web.Response:
        body, fields = page()
        return web.Response(body=body, content_type="text/html", charset="utf-8", headers=fields)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Send events until the viewer leaves or the process ends."""
        async with aclosing(self.sampler.events()) as events:
            try:
                first = await anext(events)
            except TooManyViewers:
                return problem(503, f"stream: {VIEWER_LIMIT} viewers watch already")
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
        self._stalled.add(transport)
        try:
            async with asyncio.timeout(STALL_LIMIT):
                await response.write(event)
        finally:
            self._stalled.discard(transport)

    async def _policies(self, request: web.Request) -> web.Response:
        return web.json_response(await asyncio.to_thread(policies_report))

    async def _sample(self, request: web.Request) -> web.Response:
        """Answer a sibling process."""
        if not is_from_sibling(request):
            raise web.HTTPNotFound
        return web.json_response(await process_sample(self._control_plane))

    async def _samples(self) -> Sequence[dict[str, Any]]:
        own = process_sample(self._control_plane)
        if self._channel is None:
            return [await own]
        answers = await self._channel.gather(SAMPLE)
        return [await own, *map(json.loads, answers)]
