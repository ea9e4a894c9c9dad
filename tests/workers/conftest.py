"""Workers on real loopback sockets: in this process, or as the program that an experiment starts.

Time is virtual here (see virtual_time.py) unless a test is marked `real_time`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.support.programs import running
from tests.workers.started import RunWorkers, StartWorker
from tests.workers.virtual_time import SERVICE, Clock, VirtualTimeLoop
from workers import alarm
from workers.server import Worker
from workers.service import Fixed
from workers.settings import Settings

CLOCK = Clock()
"""One for all tests. It only moves forward."""


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """A hook of pytest-asyncio: returns the loop's factory for a test."""
    return (
        {"real": asyncio.new_event_loop} if _is_real(item) else {"virtual": partial(VirtualTimeLoop, CLOCK)}
    )


@pytest.fixture(autouse=True)
def clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock behind `time.monotonic()`, except in tests marked `real_time`."""
    if not _is_real(request.node):
        monkeypatch.setattr(time, "monotonic", CLOCK)
        monkeypatch.setattr(alarm, "TimerfdAlarm", alarm.LoopAlarm)
    return CLOCK


def _is_real(item: pytest.Item) -> bool:
    return item.get_closest_marker("real_time") is not None


@pytest.fixture
async def start_worker() -> AsyncIterator[StartWorker]:
    """Starts workers in this process, with service time `SERVICE` by default."""
    async with AsyncExitStack() as stack:

        async def start(**settings: Any) -> Worker:
            worker = Worker(Settings(**{"service": Fixed(SERVICE), **settings}))
            return await stack.enter_async_context(worker)

        yield start


@pytest.fixture
async def session(start_worker: StartWorker) -> AsyncIterator[ClientSession]:
    """A client that is closed before the workers are."""
    async with ClientSession() as session:
        yield session


@pytest.fixture
async def run_workers() -> AsyncIterator[RunWorkers]:
    """Runs `python -m workers …`; processes that are left at the end are killed."""
    async with running("workers") as run:
        yield run
