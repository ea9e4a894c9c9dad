"""Fixtures of the balancer's tests: a stage, programs, a name server, the program's event loop, no environment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from balancer.process.server import new_event_loop
from tests.support.name_server import NameServer
from tests.support.programs import Run, Start, running, starting
from tests.support.stage import Stage, quiet_loop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The event loop of the program."""
    return {"loop": new_event_loop}


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what a platform sets, from which settings take a port and a number of processes."""
    monkeypatch.delenv("PORT", raising=False)
    monkeypatch.delenv("WEB_CONCURRENCY", raising=False)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    """A stage that must be clean at the end of the test."""
    stage = Stage()
    with quiet_loop() as loop_errors:
        yield stage
        await stage.close()
        assert loop_errors == []


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts balancers as programs; those still running at the end are killed."""
    async with starting() as start:
        yield start


@pytest.fixture
async def run() -> AsyncIterator[Run]:
    """Runs `python -m balancer …`; processes still running at the end are killed."""
    async with running() as run:
        yield run


@pytest.fixture
async def names(stage: Stage) -> AsyncIterator[NameServer]:
    """A name server on loopback."""
    server = NameServer()
    await server.start()
    yield server
    server.stop()
