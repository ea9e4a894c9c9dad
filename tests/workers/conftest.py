"""Workers on real loopback sockets: in this process, or as the program that an experiment starts."""

from __future__ import annotations

import asyncio
import re
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiohttp import ClientSession

from workers.server import Worker
from workers.service import Fixed
from workers.settings import Settings

StartWorker = Callable[..., Awaitable[Worker]]
RunWorkers = Callable[..., Awaitable[Process]]


@pytest.fixture
async def start_worker() -> AsyncIterator[StartWorker]:
    """Starts workers in this process, 1 ms of service unless told otherwise."""
    async with AsyncExitStack() as stack:

        async def start(**settings: Any) -> Worker:
            worker = Worker(Settings(**{"service": Fixed(0.001), **settings}))
            return await stack.enter_async_context(worker)

        yield start


@pytest.fixture
async def session(start_worker: StartWorker) -> AsyncIterator[ClientSession]:
    """A client that is gone before the workers are."""
    async with ClientSession() as session:
        yield session


@pytest.fixture
async def run_workers() -> AsyncIterator[RunWorkers]:
    """Runs `python -m workers …`; whatever still runs at the end is killed."""
    processes: list[Process] = []

    async def run(*arguments: str) -> Process:
        program = (sys.executable, "-m", "workers", *arguments)
        processes.append(await asyncio.create_subprocess_exec(*program, stdout=PIPE, stderr=PIPE))
        return processes[-1]

    yield run
    for process in processes:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.fixture
def ready_port() -> Callable[[Process], Awaitable[int]]:
    """Reads a worker's ready line; its port."""

    async def read(process: Process) -> int:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        match = re.search(r" ready on https?://127\.0\.0\.1:(\d+) ", line)
        assert match, line
        return int(match[1])

    return read
