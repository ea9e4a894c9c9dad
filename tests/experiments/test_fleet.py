"""Processes: ready when they say so, heard when they fail, and gone afterwards."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from experiments import processes
from experiments.errors import FleetFailedError
from experiments.run.measured import run_loop
from tests.experiments.offspring import children_of

SAY_READY = "print('x ready on http://127.0.0.1:4711 (x)', flush=True)"
SLEEP = "import time; time.sleep(600)"


def is_alive(pid: int) -> bool:
    """Whether a process of this id exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def started(program: str) -> processes.Child:
    """A Python child running `program`."""
    return await processes.start("child", [sys.executable, "-c", program])


async def test_ready_means_its_line_was_read() -> None:
    """The address comes from the line; after stop the process is gone."""
    child = await started(f"{SAY_READY}; {SLEEP}")
    await child.ready()
    assert child.address == ("127.0.0.1", 4711)
    assert child.is_running
    await child.stop()
    assert not is_alive(child.pid)


async def test_one_that_ends_early_is_quoted() -> None:
    """The message carries what it wrote to standard error."""
    child = await started("import sys; sys.exit('port in use')")
    with pytest.raises(FleetFailedError, match="child ended before it was ready: port in use"):
        await child.ready()
    await child.stop()


async def test_one_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the grace SIGKILL ends it."""
    monkeypatch.setattr(processes, "GRACE", 0.1)
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    child = await started(f"{deaf}; {SAY_READY}; {SLEEP}")
    await child.ready()
    await child.stop()
    assert not is_alive(child.pid)


async def test_one_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for the ready line has an end."""
    monkeypatch.setattr(processes, "READY_WITHIN", 0.2)
    child = await started(SLEEP)
    with pytest.raises(FleetFailedError, match="not ready within"):
        await child.ready()
    await child.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells whose child a process is")
def test_one_that_nobody_has_been_told_of_is_ended_too() -> None:
    """Cancelled while it starts: it is gone when the cancellation is through, on the loop that campaigns run on."""
    run_loop(cancelled_while_it_starts())


async def cancelled_while_it_starts() -> None:
    """A child is seen from outside, before whoever started it has heard of it."""
    before = children_of(os.getpid())
    starting = asyncio.ensure_future(started(SLEEP))
    while children_of(os.getpid()) == before:  # noqa: ASYNC110  there is no event: we look from outside
        await asyncio.sleep(0)
    assert not starting.done()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert children_of(os.getpid()) == before


async def test_a_program_that_does_not_exist_is_one_line() -> None:
    """No traceback for a missing interpreter."""
    with pytest.raises(FleetFailedError, match="could not be started"):
        await processes.start("child", ["/nonexistent/python"])
