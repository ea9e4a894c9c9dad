"""Child processes with a ready line, stopped when their run ends.

Only processes started here are ended here, by their own id, with SIGTERM first and SIGKILL after a grace period. Each
child runs in its own session, so Ctrl-C on the terminal reaches only this process, which decides the order of stopping.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from experiments.errors import FleetFailedError

READY = re.compile(rb" ready on (https?://\S+)")
READY_WITHIN = 20.0
"""Seconds within which a process must print its ready line, long enough to import everything on a busy machine."""

GRACE = 3.0
TAIL_LINES = 8


def program(module: str) -> list[str]:
    """Command line that runs a module of the installed distribution, whatever the current directory holds.

    Without `-P`, a checkout in the current directory would be measured instead of the installed package.
    """
    return [sys.executable, "-P", "-m", module]


def environment() -> dict[str, str]:
    """Environment without what configures a balancer: a campaign measures what its scenario says."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in ("PORT", "WEB_CONCURRENCY") and not name.upper().startswith("BALANCER_")
    }


class Child:
    """A started process. `address` is (host, port) once it is ready."""

    def __init__(self, name: str, process: Process) -> None:
        self.name = name
        self.address = ("", 0)
        self._process = process
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._readers = [asyncio.ensure_future(self._keep_tail())]

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ready(self) -> None:
        """Wait for the ready line. Raises `FleetFailedError` with the tail of standard error."""
        try:
            async with asyncio.timeout(READY_WITHIN):
                found = await self._ready_address()
        except TimeoutError:
            raise FleetFailedError(
                f"{self.name} was not ready within {READY_WITHIN:g} s{self.tail}"
            ) from None
        if found is None:
            await asyncio.wait(self._readers, timeout=GRACE)
            raise FleetFailedError(f"{self.name} ended before it was ready{self.tail}")
        self.address = found
        self._readers.append(asyncio.ensure_future(self._discard_output()))

    @property
    def tail(self) -> str:
        """Last lines of standard error, for a message; empty when there are none."""
        return f": {' | '.join(self._tail)}" if self._tail else ""

    async def gone(self) -> None:
        """Wait until the process has ended, for whatever reason."""
        await self._process.wait()

    def pause(self) -> None:
        """Suspend the process with SIGSTOP until `resume`; incoming data waits in the kernel."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the process continue after `pause`, with SIGCONT."""
        self._signal(signal.SIGCONT)

    def start_listening(self) -> None:
        """Send SIGHUP: a worker started with `--start-down` begins to listen."""
        self._signal(signal.SIGHUP)

    async def kill(self) -> None:
        """Kill the process with SIGKILL and wait for its end."""
        self._signal(signal.SIGKILL)
        await self._process.wait()

    async def stop(self) -> None:
        """Send SIGTERM, then SIGKILL after the grace period; return when the process is gone."""
        if self.is_running:
            self._signal(signal.SIGTERM)
            self.resume()  # a suspended process handles SIGTERM only when it is resumed
            try:
                async with asyncio.timeout(GRACE):
                    await self._process.wait()
            except TimeoutError:
                self._signal(signal.SIGKILL)
        await self._process.wait()
        await asyncio.gather(*self._readers, return_exceptions=True)

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal with `os.kill`.

        `Process.send_signal` polls for the exit first and thereby takes the exit code from asyncio, whose waiting
        thread then logs an unknown child process on standard error.
        """
        if not self.is_running:
            return
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:  # it ended in between
            return

    async def _ready_address(self) -> tuple[str, int] | None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if match := READY.search(line):
                url = urlsplit(match[1].decode())
                return url.hostname or "127.0.0.1", url.port or 80
        return None

    async def _keep_tail(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            self._tail.append(line.decode(errors="replace").strip())

    async def _discard_output(self) -> None:
        assert self._process.stdout is not None
        while await self._process.stdout.read(65536):
            pass


async def start(name: str, argv: Sequence[str]) -> Child:
    """Start a process without waiting for its ready line. Raises `FleetFailedError` when it cannot be started.

    When cancelled during the start, the process is stopped first, because no caller holds it yet.
    """
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *argv, stdout=PIPE, stderr=PIPE, start_new_session=True, env=environment()
        )
    )
    try:
        process = await asyncio.shield(starting)
    except OSError as error:
        raise FleetFailedError(f"{name} could not be started: {error.strerror}") from None
    except asyncio.CancelledError:
        with suppress(OSError):
            await Child(name, await starting).stop()
        raise
    return Child(name, process)


async def all_of(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines concurrently; the first failure cancels the others, and it is raised itself, not in a group."""
    try:
        async with asyncio.TaskGroup() as group:
            for one in work:
                group.create_task(one)
    except (
        ExceptionGroup
    ) as failures:  # not `except*`: what is raised within that stays in a group before 3.11.4
        raise failures.exceptions[0] from None
