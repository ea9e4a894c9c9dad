"""Child processes that say when they are ready, and are gone when their time is over.

Rules of this file: only processes started here are ended here, by their own id, SIGTERM first and SIGKILL
after a grace. Each stands in a session of its own, so a Ctrl-C on the terminal reaches only us and the order
of stopping stays ours.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from experiments.errors import FleetFailedError

READY = re.compile(rb" ready on (https?://\S+)")
READY_WITHIN = 20.0
"""Seconds for an interpreter on a busy machine to import everything and listen."""

GRACE = 3.0
TAIL_LINES = 8


def program(module: str) -> list[str]:
    """The command that runs a module of the distribution that this process runs, whatever the current directory holds.

    Without -P a checkout that one stands in would be measured instead of what is installed.
    """
    return [sys.executable, "-P", "-m", module]


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
        """Wait for its ready line. Raises FleetFailedError with the end of what it wrote instead."""
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
        """The last lines of its standard error, for a message; empty when it wrote none."""
        return f": {' | '.join(self._tail)}" if self._tail else ""

    async def gone(self) -> None:
        """Wait until it has ended, whoever ended it."""
        await self._process.wait()

    def pause(self) -> None:
        """Let it do nothing until it is resumed; what comes for it waits in the kernel."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """After a pause."""
        self._signal(signal.SIGCONT)

    def start_listening(self) -> None:
        """SIGHUP: a worker that was started down, or told to be, listens."""
        self._signal(signal.SIGHUP)

    async def kill(self) -> None:
        """SIGKILL: what it was doing ends in the middle."""
        self._signal(signal.SIGKILL)
        await self._process.wait()

    async def stop(self) -> None:
        """SIGTERM, a grace, SIGKILL; returns when the process is gone."""
        if self.is_running:
            self._signal(signal.SIGTERM)
            self.resume()  # or it would hear of it when its pause is over
            try:
                async with asyncio.timeout(GRACE):
                    await self._process.wait()
            except TimeoutError:
                self._signal(signal.SIGKILL)
        await self._process.wait()
        await asyncio.gather(*self._readers, return_exceptions=True)

    def _signal(self, number: signal.Signals) -> None:
        """Not by `Process.send_signal`: that looks first whether it has ended, and whoever sees that takes the exit
        code away from asyncio, which waits for it in a thread, finds nobody, and says so on standard error."""
        if not self.is_running:
            return
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:  # it went by itself, in between
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
    """Start a process; it is not ready yet. Raises FleetFailedError when it cannot be started at all.

    Cancelled while it starts, it is ended first: nobody else knows of it yet.
    """
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(*argv, stdout=PIPE, stderr=PIPE, start_new_session=True)
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
