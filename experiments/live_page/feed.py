"""Feed of the viewers of an experiment: newest snapshot and note, and the points of the charts of all runs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any

from balancer.control.admin.page.sampler import VIEWER_LIMIT, TooManyViewers, encoded, event
from balancer.control.admin.page.window import HISTORY

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
        """Send a note about the experiment."""
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
