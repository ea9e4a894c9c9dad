"""The stream of events behind the live page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from tests.support.admin_requests import local
from tests.support.wire import Wire


async def events_of(wire: Wire) -> AsyncIterator[tuple[str, Any]]:
    """Events of a stream whose response head has been read."""
    text = b""
    while size := int(await wire.until(b"\r\n"), 16):
        text += await wire.exactly(size)
        await wire.exactly(2)
        while b"\n\n" in text:
            block, _, text = text.partition(b"\n\n")
            name, data = block.split(b"\n")
            yield name.removeprefix(b"event: ").decode(), json.loads(data.removeprefix(b"data: "))


async def opened(wire: Wire, *fields: bytes, target: bytes = b"/-/stream") -> AsyncIterator[tuple[str, Any]]:
    """Send the request for the stream and read the head of the response."""
    await wire.send(local(target, *fields))
    head = await wire.head()
    assert (head.status, head.value(b"Content-Type")) == (200, b"text/event-stream")
    return events_of(wire)


async def snapshot_of(events: AsyncIterator[tuple[str, Any]]) -> Any:
    async with asyncio.timeout(20):
        while (found := await anext(events))[0] != "snapshot":
            pass
    return found[1]
