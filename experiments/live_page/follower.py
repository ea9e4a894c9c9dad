"""Follow the stream of one balancer after another, over its admin socket or HTTP, while anybody watches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

from aiohttp import ClientError, ClientSession, ClientTimeout, UnixConnector

from balancer.control.admin.client import UNIX_SCHEME, target_of
from balancer.control.admin.socket_path import found_socket
from experiments.live_page.feed import HISTORY_EVENT, SNAPSHOT, Feed

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
        """Follow none."""
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
