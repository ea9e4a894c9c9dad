"""Types of the fixtures that start workers, and what a worker that was started says of itself."""

from __future__ import annotations

import re
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable

from aiohttp import ClientSession

from workers.server import Worker

StartWorker = Callable[..., Awaitable[Worker]]
RunWorkers = Callable[..., Awaitable[Process]]


def port_of(worker: Worker) -> int:
    return int(worker.url.rpartition(":")[2])


async def ready_port(process: Process) -> int:
    """Read a worker's ready line and return its port."""
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    match = re.search(r" ready on https?://127\.0\.0\.1:(\d+) ", line)
    assert match, line
    return int(match[1])


async def in_flight(session: ClientSession, port: int) -> int:
    """The number of requests in flight that the worker reports."""
    async with session.get(f"http://127.0.0.1:{port}/healthz") as response:
        return int(response.headers["X-Worker-In-Flight"])
