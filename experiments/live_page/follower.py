"""The feed of viewers, and what follows one balancer after another for it, over its admin socket or HTTP."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout, UnixConnector

from balancer.control.admin.client import UNIX_SCHEME, target_of
from balancer.control.admin.page.sampler import VIEWER_LIMIT, TooManyViewers, encoded, event
from balancer.control.admin.page.window import HISTORY
from balancer.control.admin.socket_path import found_socket

RETRY = 1.0
"""Seconds after which an interrupted stream is opened again."""

CONNECT_WITHIN = 5.0
QUIET_LIMIT = 60.0
"""Timeouts in seconds: of the connection, and between two snapshots, which are rare with thousands of endpoints."""

MAX_EVENT_BYTES = 16 << 20
"""Size limit of an event in bytes."""


class Follower:
    """Forwards a balancer's snapshots to `feed`; `report` gets a problem, and None once there is a snapshot again."""

    def __init__(self, feed: Feed, report: Callable[[str | None], None]) -> None:
        self._feed = feed
        self._report = report
        self._task: asyncio.Task[None] | None = None

    def follow(self, url: str, token: str | None, cluster: str | None = None) -> None:
        """Follow a cluster of the balancer at `url`, and no other any more."""
        self.leave()
        self._task = asyncio.ensure_future(self._follow(url, token, cluster))

    def leave(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _follow(self, url: str, token: str | None, cluster: str | None) -> None:
        while True:
            await self._feed.watched.wait()
            try:
                await self._forward(url, token, cluster)
            except (ClientError, OSError, ValueError, KeyError, TypeError) as error:
                self._report(f"no snapshots from {url}: {error or type(error).__name__}")
            await asyncio.sleep(RETRY)

    async def _forward(self, url: str, token: str | None, cluster: str | None) -> None:
        """Forward one stream until it ends, or no viewer is left."""
        path = url.removeprefix(UNIX_SCHEME) if url.startswith(UNIX_SCHEME) else found_socket(url)
        connector = None if path is None else UnixConnector(path)
        origin = "http://localhost" if path is not None else url.rstrip("/")
        target = target_of(f"{origin}/-/stream", cluster)
        timeout = ClientTimeout(total=None, sock_connect=CONNECT_WITHIN, sock_read=QUIET_LIMIT)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with (
            ClientSession(connector=connector, timeout=timeout) as session,
            session.get(target, headers=headers, allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise ValueError(f"HTTP {response.status}")
            async for name, data in events_of(response.content.iter_any()):
                if not self._feed.watched.is_set():
                    return
                if name == HISTORY_EVENT:
                    self._feed.add_history(json.loads(data))
                elif name == SNAPSHOT:
                    self._report(None)
                    self._feed.show_snapshot(json.loads(data))


async def events_of(chunks: AsyncIterator[bytes]) -> AsyncIterator[tuple[str, bytes]]:
    """Yield name and data of each server-sent event. Raises `ValueError` for one that is too large."""
    rest = b""
    async for chunk in chunks:
        *blocks, rest = (rest + chunk).split(b"\n\n")
        if len(rest) > MAX_EVENT_BYTES:
            raise ValueError(f"an event of more than {MAX_EVENT_BYTES >> 20} MiB")
        for block in blocks:
            fields = dict(line.partition(b": ")[::2] for line in block.split(b"\n"))
            yield fields.get(b"event", b"").decode(), fields.get(b"data", b"")


HISTORY_EVENT, SNAPSHOT, NOTE = "history", "snapshot", "note"
ORDER = (HISTORY_EVENT, SNAPSHOT, NOTE)
"""A note follows the snapshot, as it may say that no run is in progress and the snapshot is old."""


class Feed:
    """Latest event of each kind. A viewer that reads slowly misses those between; nothing is queued for it."""

    def __init__(self) -> None:
        self._points: deque[dict[str, Any]] = deque(maxlen=HISTORY)
        self._latest: dict[str, bytes] = {}
        self._changed = asyncio.Event()
        self._is_closed = False
        self._viewers = 0
        self.watched = asyncio.Event()
        """Set while there is a viewer."""

    def add_history(self, points: list[dict[str, Any]]) -> None:
        """Add those points of a balancer that are newer; older ones are of a clock that has been set back."""
        newest = self._points[-1]["at"] if self._points else float("-inf")
        if points and points[-1]["at"] < newest:
            self._points.clear()
            newest = float("-inf")
        self._points.extend(point for point in points if point["at"] > newest)
        self._publish(HISTORY_EVENT, [*self._points])

    def show_snapshot(self, snapshot: dict[str, Any]) -> None:
        """Send a snapshot, and keep its point. The page cannot turn to another cluster."""
        snapshot["named"] = []
        point = snapshot["point"]
        if not self._points or point["at"] > self._points[-1]["at"]:
            self._points.append(point)
        else:
            self.add_history([point])
        self._publish(SNAPSHOT, snapshot)

    def show_note(self, note: dict[str, Any]) -> None:
        self._publish(NOTE, note)

    def close(self) -> None:
        """End all streams after what has been published."""
        self._is_closed = True
        self._wake()

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield server-sent events until the feed is closed. Raises `TooManyViewers`."""
        if self._viewers >= VIEWER_LIMIT:
            raise TooManyViewers
        self._viewers += 1
        self.watched.set()
        try:
            sent = {HISTORY_EVENT: self._latest.get(HISTORY_EVENT)}
            yield event(HISTORY_EVENT.encode(), encoded([*self._points]))
            while True:
                changed = self._changed
                for name in ORDER:
                    latest = self._latest.get(name)
                    if latest is not None and latest is not sent.get(name):
                        sent[name] = latest
                        yield latest
                if self._is_closed:
                    return
                await changed.wait()
        finally:
            self._viewers -= 1
            if not self._viewers:
                self.watched.clear()
                self._latest.pop(SNAPSHOT, None)  # old by the time of the next viewer

    def _publish(self, name: str, document: Any) -> None:
        self._latest[name] = event(name.encode(), encoded(document))
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
