"""Sampler of the live page: one snapshot a second for all viewers of a process, while there is at least one.

A snapshot is computed and encoded once, however many viewers there are. A viewer that reads slowly gets the newest
snapshot when it has read the one before, and misses those between; nothing is queued for it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from time import perf_counter
from typing import Any

from aiohttp import web

from balancer.control.admin.page.window import Window

PERIOD = 1.0
"""Seconds from one snapshot to the next."""

SHARE = 0.02
"""Share of a core that snapshots may take: one that takes longer than `PERIOD` × `SHARE` is followed by a longer
pause, as with hundreds of endpoints.
"""

VIEWER_LIMIT = 64
"""Limit of viewers of one process."""

Samples = Callable[[], Awaitable[Sequence[dict[str, Any]]]]
"""Callable that returns the samples of all processes; none ends the sampler's streams."""


class TooManyViewers(Exception):
    """`VIEWER_LIMIT` viewers watch already."""


class Sampler:
    """Snapshots for the viewers of one process; `samples` reads those that a snapshot is made of."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._window = Window()
        self._task: asyncio.Task[None] | None = None
        self._published = asyncio.Event()
        self._event = b""
        self._is_closed = False
        self.viewers = 0
        self.made = 0
        """Snapshots made since the start."""

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield server-sent events until the sampler is closed: the points of the charts, then the snapshots, the
        newest each time. Raises `TooManyViewers`.
        """
        if self.viewers >= VIEWER_LIMIT:
            raise TooManyViewers
        self.viewers += 1
        try:
            self._start()
            yield event(b"history", encoded([*self._window.points]))
            published = self._published
            if self._event:
                yield self._event
            while not self._is_closed:
                await published.wait()
                if self._published is published:
                    break  # nothing was published: the task has ended, or this is closed
                published = self._published
                yield self._event
        finally:
            self.viewers -= 1

    def close(self) -> None:
        """End all streams."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
        self._published.set()

    def _start(self) -> None:
        """Start the task that makes snapshots; it ends by itself once there are no viewers."""
        if self._task is None or self._task.done():
            self._event, self._published = b"", asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        pause = PERIOD
        try:
            while self.viewers and (samples := await self._samples()):
                made, seconds = await asyncio.to_thread(self._snapshot, samples, pause)
                pause = max(PERIOD, seconds / SHARE)
                self._publish(made)
                await asyncio.sleep(pause)
        finally:
            self._published.set()  # the streams end if nothing more comes

    def _publish(self, made: bytes) -> None:
        self._event = made
        self.made += 1
        self._published.set()
        self._published = asyncio.Event()

    def _snapshot(self, samples: Sequence[dict[str, Any]], period: float) -> tuple[bytes, float]:
        """Return the event of a snapshot and the seconds that making it took; runs in a thread."""
        began_at = perf_counter()
        snapshot = self._window.snapshot(samples) | {"period": round(period, 3)}
        made = event(b"snapshot", encoded(snapshot))
        return made, perf_counter() - began_at


def encoded(document: Any) -> bytes:
    """Return a document as JSON in one line."""
    return json.dumps(document, separators=(",", ":")).encode()


def event(name: bytes, data: bytes) -> bytes:
    """Return a server-sent event (HTML § 9.2); `data` is one line."""
    return b"event: %b\ndata: %b\n\n" % (name, data)


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
