"""The balancer as a program: start, output, signals, processes, hot restart.

Nothing waits for a fixed time; every wait is for output or an effect of the program.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from balancer.control.admin.socket_path import found_socket
from tests.support.admin_requests import local
from tests.support.wire import ScriptedWorker, Wire, client_of, get

needs_full_device = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")

PATIENCE = 30.0
"""Seconds for a program to start on a busy machine."""

MOST_FAILURES = 1000
"""Failures after which a load ends: nothing answers any more."""


class Program:
    """`python -m balancer serve …`; `lines` is the output of it and its successors."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.lines: list[str] = []
        self.port = 0
        self._pids = {process.pid}

    @classmethod
    async def start(
        cls, *arguments: str, launcher: str = "", descriptor: int | None = None, **environment: str
    ) -> Program:
        """Start the program and wait until it serves. `launcher` is Python code that runs before the exec."""
        program = cls(await process_of(arguments, launcher, descriptor, environment))
        program.port = int((await program.line(r"balancer ready on https?://[^ ]+:(\d+) "))[1])
        return program

    async def line(self, pattern: str) -> re.Match[str]:
        """Read to the next line that matches `pattern`."""
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            while raw := await self._process.stdout.readline():
                self.lines.append(raw.decode().rstrip("\n"))
                if found := re.search(pattern, self.lines[-1]):
                    return found
        raise AssertionError(f"no output matches {pattern!r}: {self.lines}")

    def signal(self, number: int, pid: int | None = None) -> None:
        """Signal the program that was started, or one of its processes."""
        os.kill(pid or self._process.pid, number)

    async def replaced(self) -> int:
        """Wait for a hot restart; return the id of the successor."""
        pid = int((await self.line(r"balancer is replaced by process (\d+)"))[1])
        self._pids.add(pid)
        return pid

    async def ended(self) -> int:
        """Wait for the exit code of the program that was started."""
        async with asyncio.timeout(PATIENCE):
            return await self._process.wait()

    async def rest(self) -> list[str]:
        """Wait until all writers of the output have ended; return their remaining lines."""
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            return (await self._process.stdout.read()).decode().splitlines()

    async def client(self, receive_buffer: int | None = None) -> Wire:
        wire = await client_of(self.port, receive_buffer)
        wire.patience = PATIENCE
        return wire

    async def admin_client(self) -> Wire:
        """A connection to the admin socket."""
        path = found_socket(f"http://127.0.0.1:{self.port}")
        assert path is not None, self.lines
        wire = Wire(*await asyncio.open_unix_connection(path))
        wire.patience = PATIENCE
        return wire

    async def ask(self, request: bytes) -> Any:
        """Send an admin request; return the JSON of its response."""
        client = await self.admin_client()
        try:
            return json.loads((await client.ask(request)).body)
        finally:
            await client.close()

    async def asked_until_closed(self, client: Wire) -> None:
        """Send requests until a response has `Connection: close`; a process starts to drain with a delay."""
        async with asyncio.timeout(PATIENCE):
            while (answer := await client.ask(get())).value(b"Connection") is None:
                assert answer.status == 200
        assert (answer.status, answer.value(b"Connection")) == (200, b"close")
        assert await client.rest() == b""
        await client.close()

    async def status(self) -> Any:
        return await self.ask(local(b"/-/status"))

    async def pids(self) -> list[int]:
        """The ids of the processes that answer."""
        found = [row["pid"] for row in (await self.status())["processes"]["answering"]]
        self._pids.update(found)
        return found

    async def close(self) -> None:
        """Kill the processes that still run."""
        for pid in self._pids:
            if pid != self._process.pid or self._process.returncode is None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        await self.rest()
        await self._process.wait()


TWO_PROCESSES = ("--processes", "2")


Start = Callable[..., Awaitable[Program]]
"""`Program.start`; the program is killed at the end of the test."""


@asynccontextmanager
async def starting(*always: str) -> AsyncIterator[Start]:
    """A function that starts programs, with the arguments `always` added; they are killed at the end."""
    async with AsyncExitStack() as stack:

        async def started(*arguments: str, **given: Any) -> Program:
            program = await Program.start(*arguments, *always, **given)
            stack.push_async_callback(program.close)
            return program

        yield started


Run = Callable[..., Awaitable[Process]]


@asynccontextmanager
async def running(package: str = "balancer") -> AsyncIterator[Run]:
    """A function that runs `python -m PACKAGE …`; processes still running at the end are killed."""
    processes: list[Process] = []

    async def run(
        *arguments: str,
        descriptors: int | None = None,
        output: int = PIPE,
        errors: int = PIPE,
        **environment: str,
    ) -> Process:
        def limit() -> None:
            if descriptors is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

        plain = {key: value for key, value in os.environ.items() if key != "PORT"}
        command = (sys.executable, "-m", package, *arguments)
        processes.append(
            await asyncio.create_subprocess_exec(
                *command, stdout=output, stderr=errors, env=plain | environment, preexec_fn=limit
            )
        )
        return processes[-1]

    try:
        yield run
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.communicate()


async def process_of(
    arguments: tuple[str, ...], launcher: str, descriptor: int | None, environment: dict[str, str]
) -> Process:
    """Start `balancer serve` with one stream for stdout and stderr."""
    plain = {key: value for key, value in os.environ.items() if key not in ("PORT", "WEB_CONCURRENCY")}
    command = [sys.executable, "-m", "balancer", "serve", *arguments]
    if launcher:
        command = [sys.executable, "-c", f"{launcher}; os.execv(sys.argv[1], sys.argv[1:])", *command]
    return await asyncio.create_subprocess_exec(
        *command,
        stdout=PIPE,
        stderr=STDOUT,
        env=plain | environment,
        pass_fds=() if descriptor is None else (descriptor,),
    )


def workers(*those: ScriptedWorker) -> list[str]:
    """Arguments for any port and these workers."""
    options = [word for worker in those for word in ("--worker", f"r=http://127.0.0.1:{worker.port}")]
    return [*options, "--port", "0"]


def memory(pid: int, which: str) -> int:
    """Resident memory of a process in bytes, now (VmRSS) or at its largest (VmHWM)."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{which}:"))


class Load:
    """Clients that send one request after the other on connections kept as long as possible."""

    def __init__(
        self,
        program: Program,
        clients: int = 8,
        request: bytes = b"",
        client: Callable[[], Awaitable[Wire]] | None = None,
    ) -> None:
        self._client = client or program.client
        self._request = request or get()
        self.answered = 0
        self.failures: list[str] = []
        self._is_over = False
        self._wanted = 0
        self._has_come = asyncio.Event()
        self._clients = [asyncio.ensure_future(self._go_on()) for _ in range(clients)]

    async def _go_on(self) -> None:
        while not self._is_over and len(self.failures) < MOST_FAILURES:
            try:
                await self._one_connection()
            except (OSError, EOFError, TimeoutError) as error:
                self.failures.append(repr(error))

    async def _one_connection(self) -> None:
        client = await self._client()
        try:
            while not self._is_over:
                answer = await client.ask(self._request)
                self.answered += 1
                if self.answered >= self._wanted:
                    self._has_come.set()
                if answer.status != 200:
                    self.failures.append(repr(answer))
                if answer.value(b"Connection") == b"close":
                    return
        finally:
            await client.close()

    async def answers(self, more: int) -> None:
        """Wait for `more` responses."""
        self._wanted = self.answered + more
        self._has_come.clear()
        async with asyncio.timeout(PATIENCE):
            await self._has_come.wait()

    async def end(self) -> list[str]:
        """Stop; return the failures."""
        self._is_over = True
        await asyncio.gather(*self._clients)
        return self.failures


async def eventually_true(is_so: Callable[[], Awaitable[bool]]) -> None:
    """Repeat the question until the answer is true."""
    async with asyncio.timeout(PATIENCE):
        while not await is_so():  # noqa: ASYNC110 - another process changes the state
            await asyncio.sleep(0)


async def is_replaced(program: Program, gone: int, processes: int = 2) -> bool:
    """Whether all processes answer, and this one is not among them."""
    pids = await program.pids()
    return len(pids) == processes and gone not in pids


StartConfigured = Callable[..., Awaitable[Program]]


async def restart_all(program: Program, processes: int = 2) -> None:
    """Kill all processes, one after the other, and wait for their successors."""
    for pid in await program.pids():
        program.signal(signal.SIGKILL, pid)
        await program.line("started again")
        await eventually_true(partial(is_replaced, program, pid, processes))


async def bodies(program: Program, target: bytes = b"/") -> set[bytes]:
    """The response bodies from all processes; new connections are spread evenly over them."""
    clients = [await program.client() for _ in range(16)]
    found = {(await client.ask(get(target))).body for client in clients for _ in range(2)}
    for client in clients:
        await client.close()
    return found
