"""The unit as a program, or several in a row on one port: started, listened to, and ended by the ids that it names.

Rule of this file: nobody waits for a time; everything is waited for by what the program says or does.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Protocol

from balancer.admin.socket_path import found_socket
from tests.balancer.conftest import ScriptedWorker, Wire, get

PATIENCE = 30.0
"""Seconds for a program to start on a machine that has other things to do."""


class Program:
    """`python -m balancer serve …`. `lines` is what it and its successors have said."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.lines: list[str] = []
        self.port = 0
        self._pids = {process.pid}

    @classmethod
    async def start(
        cls, *arguments: str, launcher: str = "", descriptor: int | None = None, **environment: str
    ) -> Program:
        """Start it, and wait until it serves. `launcher` is Python that runs before it becomes the program."""
        program = cls(await process_of(arguments, launcher, descriptor, environment))
        program.port = int((await program.line(r"balancer ready on https?://[^ ]+:(\d+) "))[1])
        return program

    async def line(self, pattern: str) -> re.Match[str]:
        """Read on to the next line that has this."""
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            while raw := await self._process.stdout.readline():
                self.lines.append(raw.decode().rstrip("\n"))
                if found := re.search(pattern, self.lines[-1]):
                    return found
        raise AssertionError(f"never said {pattern!r}: {self.lines}")

    def signal(self, number: int, pid: int | None = None) -> None:
        """To the program that was started, or to one of its processes."""
        os.kill(pid or self._process.pid, number)

    async def replaced(self) -> int:
        """The id of the program that has taken its place."""
        pid = int((await self.line(r"balancer is replaced by process (\d+)"))[1])
        self._pids.add(pid)
        return pid

    async def ended(self) -> int:
        """The exit code of the program that was started."""
        async with asyncio.timeout(PATIENCE):
            return await self._process.wait()

    async def rest(self) -> list[str]:
        """Wait until all that write to its output have ended, and return what they said meanwhile."""
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            return (await self._process.stdout.read()).decode().splitlines()

    async def client(self) -> Wire:
        wire = Wire(*await asyncio.open_connection("127.0.0.1", self.port))
        wire.patience = PATIENCE
        return wire

    async def control_client(self) -> Wire:
        """A connection to its admin socket."""
        path = found_socket(f"http://127.0.0.1:{self.port}")
        assert path is not None, self.lines
        wire = Wire(*await asyncio.open_unix_connection(path))
        wire.patience = PATIENCE
        return wire

    async def ask(self, request: bytes) -> Any:
        """A control request; returns what its answer's JSON says."""
        client = await self.control_client()
        try:
            return json.loads((await client.ask(request)).body)
        finally:
            await client.close()

    async def asked_until_closed(self, client: Wire) -> None:
        """Ask until an answer ends the connection: processes that are told to end at once do not do so at once."""
        async with asyncio.timeout(PATIENCE):
            while (answer := await client.ask(get())).value(b"Connection") is None:
                assert answer.status == 200
        assert (answer.status, answer.value(b"Connection")) == (200, b"close")
        assert await client.rest() == b""
        await client.close()

    async def status(self) -> Any:
        return await self.ask(get(b"/-/status").replace(b"example.org", b"localhost"))

    async def pids(self) -> list[int]:
        """The processes that answer."""
        found = [row["pid"] for row in (await self.status())["processes"]["answering"]]
        self._pids.update(found)
        return found

    async def close(self) -> None:
        """Whatever still runs is killed."""
        for pid in self._pids:
            if pid != self._process.pid or self._process.returncode is None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        await self.rest()
        await self._process.wait()


class Start(Protocol):
    """Starts a program: `Program.start`, and ends it when the test is over."""

    async def __call__(
        self, *arguments: str, launcher: str = "", descriptor: int | None = None, **environment: str
    ) -> Program: ...


@asynccontextmanager
async def starting(*always: str) -> AsyncIterator[Start]:
    """What starts programs, each with the arguments `always`; whatever still runs at the end is killed."""
    async with AsyncExitStack() as stack:

        async def started(
            *arguments: str, launcher: str = "", descriptor: int | None = None, **environment: str
        ) -> Program:
            program = await Program.start(
                *arguments, *always, launcher=launcher, descriptor=descriptor, **environment
            )
            stack.push_async_callback(program.close)
            return program

        yield started


async def process_of(
    arguments: tuple[str, ...], launcher: str, descriptor: int | None, environment: dict[str, str]
) -> Process:
    """Everything that is said in one stream."""
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
    """On any port, before these."""
    options = [word for worker in those for word in ("--worker", f"r=http://127.0.0.1:{worker.port}")]
    return [*options, "--port", "0"]


class Load:
    """Clients that ask one thing after the other on connections that they keep as long as they may."""

    def __init__(self, program: Program, clients: int = 8) -> None:
        self._program = program
        self.answered = 0
        self.failures: list[str] = []
        self._is_over = False
        self._wanted = 0
        self._has_come = asyncio.Event()
        self._clients = [asyncio.ensure_future(self._go_on()) for _ in range(clients)]

    async def _go_on(self) -> None:
        while not self._is_over:
            try:
                await self._one_connection()
            except (OSError, EOFError, TimeoutError) as error:
                self.failures.append(repr(error))

    async def _one_connection(self) -> None:
        client = await self._program.client()
        try:
            while not self._is_over:
                answer = await client.ask(get())
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
        """Wait for so many more."""
        self._wanted = self.answered + more
        self._has_come.clear()
        async with asyncio.timeout(PATIENCE):
            await self._has_come.wait()

    async def end(self) -> list[str]:
        """Stop; returns what went wrong."""
        self._is_over = True
        await asyncio.gather(*self._clients)
        return self.failures
