"""Child processes: ready line, early end, SIGTERM and SIGKILL, cancelled start."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from experiments.errors import BadInputError, FleetFailedError
from experiments.measured.fleet import all_ready
from experiments.measured.runner import run_loop
from experiments.platform import processes
from tests.experiments.offspring import children_of

SAY_READY = "print('x ready on http://127.0.0.1:4711 (x)', flush=True)"
SLEEP = "import time; time.sleep(600)"


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def started(program: str) -> processes.Child:
    """A Python child running `program`."""
    return await processes.start("child", [sys.executable, "-c", program])


async def test_the_address_is_read_from_the_ready_line() -> None:
    """After stop the process is gone."""
    child = await started(f"{SAY_READY}; {SLEEP}")
    await child.ready()
    assert child.address == ("127.0.0.1", 4711)
    assert child.is_running
    await child.stop()
    assert not is_alive(child.pid)


async def test_configuration_in_the_environment_does_not_reach_the_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On Heroku, for one, $PORT is the port of another program."""
    for name in ("PORT", "WEB_CONCURRENCY", "BALANCER_POLICY", "balancer_seed"):
        monkeypatch.setenv(name, "5000")
    monkeypatch.setenv("KEPT", "kept")
    names = ["PORT", "WEB_CONCURRENCY", "BALANCER_POLICY", "balancer_seed", "KEPT"]
    child = await started(f"import os, sys; sys.exit(str([os.environ.get(name) for name in {names}]))")
    with pytest.raises(FleetFailedError, match=r"\[None, None, None, None, 'kept'\]"):
        await child.ready()
    await child.stop()


async def test_an_early_end_is_reported_with_standard_error() -> None:
    child = await started("import sys; sys.exit('port in use')")
    with pytest.raises(FleetFailedError, match="child ended before it was ready: port in use"):
        await child.ready()
    await child.stop()


async def test_a_process_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "GRACE", 0.1)
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    child = await started(f"{deaf}; {SAY_READY}; {SLEEP}")
    await child.ready()
    await child.stop()
    assert not is_alive(child.pid)


async def test_the_wait_for_the_ready_line_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "READY_WITHIN", 0.2)
    child = await started(SLEEP)
    with pytest.raises(FleetFailedError, match="not ready within"):
        await child.ready()
    await child.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells whose child a process is")
def test_a_process_whose_start_is_cancelled_is_stopped() -> None:
    """On the event loop that campaigns use."""
    run_loop(cancelled_while_it_starts())


async def cancelled_while_it_starts() -> None:
    """The child is found from outside, before the call that starts it has returned."""
    before = children_of(os.getpid())
    starting = asyncio.ensure_future(started(SLEEP))
    while children_of(os.getpid()) == before:  # noqa: ASYNC110  there is no event: we look from outside
        await asyncio.sleep(0)
    assert not starting.done()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert children_of(os.getpid()) == before


async def test_a_missing_program_is_reported_in_one_line() -> None:
    with pytest.raises(FleetFailedError, match="could not be started"):
        await processes.start("child", ["/nonexistent/python"])


async def test_the_first_failure_of_many_children_is_raised_itself() -> None:
    """On CPython before 3.11.4, too, where an error raised within `except*` stays in a group."""
    children = [await started(f"import sys; sys.exit('no {name}')") for name in ("port", "memory")]
    with pytest.raises(FleetFailedError, match=r"child ended before it was ready: no (port|memory)"):
        await all_ready(children)
    for child in children:
        await child.stop()


async def test_a_failure_among_coroutines_of_any_kind_is_raised_itself() -> None:
    """Its type decides the exit code, so it may not arrive in a group."""
    for kind in (FleetFailedError, BadInputError, ValueError, OSError):

        async def fail(kind: type[Exception] = kind) -> None:
            raise kind("failed")

        with pytest.raises(kind, match="failed"):
            await processes.all_of([fail(), asyncio.sleep(600)])
