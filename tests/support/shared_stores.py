"""Stores of the tests: a Redis server, a fake one that speaks as much of its protocol as is needed, and a TCP proxy."""

from __future__ import annotations

import asyncio
import shutil
import socket
from asyncio.subprocess import DEVNULL, Process
from contextlib import suppress
from pathlib import Path
from ssl import SSLContext

import pytest

PROGRAM = next(filter(None, map(shutil.which, ("valkey-server", "redis-server"))), None)
needs_server = pytest.mark.skipif(
    PROGRAM is None, reason="neither valkey-server nor redis-server is installed"
)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class RealStore:
    """A Redis or Valkey server as a process; `port` stays over restarts."""

    def __init__(self, folder: Path, password: str = "") -> None:
        self.port = free_port()
        self._folder = folder
        self._password = password
        self._process: Process | None = None

    async def start(self) -> None:
        assert PROGRAM is not None
        password = ("--requirepass", self._password) if self._password else ()
        self._process = await asyncio.create_subprocess_exec(
            PROGRAM,
            *("--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self._folder)),
            *password,
            stdout=DEVNULL,
        )
        async with asyncio.timeout(20):
            while True:
                with suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                    writer.close()
                    return
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
            self._process = None


class FakeStore:
    """The commands SUBSCRIBE and PUBLISH of a Redis server, in RESP2; `password` is what AUTH requires."""

    def __init__(self, password: str = "", tls: SSLContext | None = None) -> None:
        self.port = 0
        self.garbage = b""
        """What is answered to PUBLISH instead of a number."""
        self.delay = 0.0
        """Seconds until each answer."""
        self._password = password
        self._tls = tls
        self._listeners: dict[asyncio.StreamWriter, bytes] = {}
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        for writer in self._open:
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                count = int((await reader.readuntil(b"\r\n"))[1:])
                command = []
                for _ in range(count):
                    size = int((await reader.readuntil(b"\r\n"))[1:])
                    command.append((await reader.readexactly(size + 2))[:-2])
                await asyncio.sleep(self.delay)
                self._answer(command, writer)
        self._open.discard(writer)
        self._listeners.pop(writer, None)
        writer.close()

    def _answer(self, command: list[bytes], writer: asyncio.StreamWriter) -> None:
        name = command[0].upper()
        if name == b"AUTH" and command[-1] != self._password.encode():
            writer.write(b"-WRONGPASS invalid username-password pair or user is disabled.\r\n")
        elif name == b"SUBSCRIBE":
            self._listeners[writer] = command[1]
            writer.write(array(b"subscribe", command[1]).replace(b"*2", b"*3") + b":1\r\n")
        elif name == b"PUBLISH":
            heard = [listener for listener, channel in self._listeners.items() if channel == command[1]]
            for listener in heard:
                listener.write(array(b"message", command[1], command[2]))
            writer.write(self.garbage or b":%d\r\n" % len(heard))
        else:
            writer.write(b"+OK\r\n")


def array(*values: bytes) -> bytes:
    """An array of bulk strings."""
    return b"*%d\r\n" % len(values) + b"".join(b"$%d\r\n%b\r\n" % (len(value), value) for value in values)


class StallingProxy:
    """A TCP proxy to `port`, which forwards while `flows` is set."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self.flows = asyncio.Event()
        self.flows.set()
        self._to = port
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        writers = [writer]
        try:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._to)
            writers.append(to_writer)
            await asyncio.gather(self._forward(reader, to_writer), self._forward(to_reader, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for each in writers:
                each.transport.abort()
            self._tasks.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            await self.flows.wait()
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError
