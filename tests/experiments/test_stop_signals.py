"""Stop signals: handlers are put back after a loop, and a load in turns restores the balancer's policy."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from experiments.errors import STOPPED
from experiments.platform.terminal import (
    interruptible,
    signals_ignored,
    signals_interrupt,
    stop_signals,
)
from policies.stats.load import RATIO, SHORTEST, Histogram
from tests.support.wire import Message, ScriptedWorker, answering, response

Run = Callable[[Coroutine[Any, Any, None]], None]


@contextmanager
def handled(number: signal.Signals, handler: Any) -> Iterator[None]:
    """Handle a signal of this process by `handler` for a while."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_handlers_are_in_place_again_after_the_loop(run: Run, number: signal.Signals) -> None:
    """An event loop by itself leaves the default, by which the next signal ends the process at once."""
    inside: list[Any] = []

    async def work() -> None:
        inside.append(signal.getsignal(number))

    with signals_interrupt():
        outside = signal.getsignal(number)
        run(interruptible(work()))
        assert outside is signal.default_int_handler
        assert inside != [outside]
        assert signal.getsignal(number) is outside
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_signal_cancels_once(number: signal.Signals) -> None:
    """The second one does not disturb the clean-up."""
    steps: list[str] = []

    async def work() -> None:
        try:
            signal.raise_signal(number)
            await asyncio.Event().wait()
        finally:
            signal.raise_signal(number)
            await asyncio.sleep(0)
            steps.append("cleaned up")

    with pytest.raises((asyncio.CancelledError, KeyboardInterrupt)):
        asyncio.run(interruptible(work()))
    assert steps == ["cleaned up"]


async def ends_in_the_same_moment() -> None:
    signal.raise_signal(signal.SIGINT)
    await asyncio.sleep(0)


async def ignores_the_cancellation() -> None:
    signal.raise_signal(signal.SIGINT)
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()


@pytest.mark.parametrize("work", [ends_in_the_same_moment, ignores_the_cancellation])
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_stop_signal_is_not_lost(run: Run, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Or a campaign would go on with its next run."""
    with pytest.raises((asyncio.CancelledError, KeyboardInterrupt)):
        run(interruptible(work()))


class Interrupted:
    """Compiled code looks at no signal, so the first code after it may be that of a destructor."""

    def __init__(self, number: signal.Signals) -> None:
        self._number = number

    def __del__(self) -> None:
        signal.raise_signal(self._number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_signal_in_a_destructor_is_not_lost(number: signal.Signals) -> None:
    handling = handled(signal.SIGINT, signal.default_int_handler)  # an event loop leaves its own behind
    with handling, pytest.raises(KeyboardInterrupt), signals_interrupt():
        Interrupted(number)


def test_a_hangup_that_is_ignored_stays_ignored() -> None:
    """As under nohup."""
    with handled(signal.SIGHUP, signal.SIG_IGN):
        assert signal.SIGHUP not in stop_signals()
        with signals_interrupt():
            signal.raise_signal(signal.SIGHUP)
    with signals_ignored():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.raise_signal(number)


class MadeUpUnit(ScriptedWorker):
    """Answers requests as a balancer with one endpoint does; `put` has the policies that were put in force."""

    def __init__(self) -> None:
        super().__init__(answering(self._answer))
        self.put = asyncio.Queue[dict[str, Any]]()
        self._policy: dict[str, Any] = {"name": "old"}

    def _answer(self, request: Message) -> bytes:
        if request.line.startswith(b"PUT "):
            if b"?check " not in request.line:
                self._policy = json.loads(request.body)
                self.put.put_nowait(self._policy)
            return response(b"{}")
        endpoint = {"id": "a", "buckets": list(Histogram().counts), "outcomes": {"error_status": 0}}
        policy = {"name": self._policy["name"], "spec": self._policy, "fallback_picks": 0}
        counters = {"shortest": SHORTEST, "ratio": RATIO, "requests": 0, "errors": {}}
        counters |= {"worker_errors": 0, "abandoned": 0}
        return response(json.dumps({**counters, "policy": policy, "endpoints": [endpoint]}).encode())


@pytest.mark.second_tier
@pytest.mark.parametrize(
    ("number", "turns"), [(signal.SIGINT, 1), (signal.SIGINT, 2), (signal.SIGHUP, 1), (signal.SIGTERM, 2)]
)
async def test_a_stopped_load_restores_the_policy(tmp_path: Path, number: signal.Signals, turns: int) -> None:
    """During the first run, and during the second, before which an event loop has ended."""
    options = ["--duration", "1s", "--warmup", "0", "--rate", "20", "--out", str(tmp_path / "out")]
    async with MadeUpUnit() as unit, asyncio.timeout(120):
        argv = [sys.executable, "-m", "experiments", "load", unit.url, "--policies", "random,c3", *options]
        process = await asyncio.create_subprocess_exec(*argv, stdout=PIPE, stderr=PIPE)
        tried = [(await unit.put.get())["name"] for _ in range(turns)]
        process.send_signal(number)
        out, error = await process.communicate()
    assert process.returncode == STOPPED, error
    assert [unit.put.get_nowait() for _ in range(unit.put.qsize())] == [{"name": "old"}]
    assert set(tried) <= {"random", "c3"}
    assert "'old' is in force again." in out.decode()
