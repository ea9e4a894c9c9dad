"""Stores of the tests: a Redis server, a fake one that speaks as much of its protocol as is needed, and a TCP proxy."""

from __future__ import annotations

import asyncio
import shutil
from asyncio.subprocess import DEVNULL, Process
from pathlib import Path
from ssl import SSLContext

import pytest

from experiments.platform.ports import free_ports
from tests.support.wire import ScriptedWorker, Wire, client_of, listening

PROGRAM = next(filter(None, map(shutil.which, ("valkey-server", "redis-server"))), None)
needs_server = pytest.mark.skipif(
    PROGRAM is None, reason="neither valkey-server nor redis-server is installed"
)

CONNECTED = 3600.0
"""Seconds for which a client may be connected without a command."""


class RealStore:
    """A Redis or Valkey server as a process; `port` stays over restarts."""

    def __init__(self, folder: Path, password: str = "") -> None:
        self.port = next(free_ports(1))
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
        await listening(self.port)

    async def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
            self._process = None


class FakeStore(ScriptedWorker):
    """The commands SUBSCRIBE and PUBLISH of a Redis server, in RESP2; `password` is what AUTH requires."""

    def __init__(self, password: str = "", tls: SSLContext | None = None) -> None:
        super().__init__(self._serve_client, tls)
        self.garbage = b""
        """What is answered to PUBLISH instead of a number. An error, which begins with -, is not published."""
        self.delay = 0.0
        """Seconds until each answer."""
        self._password = password
        self._listeners: dict[Wire, bytes] = {}

    async def _serve_client(self, wire: Wire) -> None:
        wire.patience = CONNECTED
        try:
            while True:
                count = int((await wire.until(b"\r\n"))[1:])
                command = []
                for _ in range(count):
                    size = int((await wire.until(b"\r\n"))[1:])
                    command.append((await wire.exactly(size + 2))[:-2])
                await asyncio.sleep(self.delay)
                self._answer(command, wire)
        finally:
            self._listeners.pop(wire, None)

    def _answer(self, command: list[bytes], wire: Wire) -> None:
        name = command[0].upper()
        if name == b"AUTH" and command[-1] != self._password.encode():
            wire.write(b"-WRONGPASS invalid username-password pair or user is disabled.\r\n")
        elif name == b"SUBSCRIBE":
            self._listeners[wire] = command[1]
            wire.write(array(b"subscribe", command[1]).replace(b"*2", b"*3") + b":1\r\n")
        elif name == b"PUBLISH":
            heard = [listener for listener, channel in self._listeners.items() if channel == command[1]]
            for listener in () if self.garbage.startswith(b"-") else heard:
                listener.write(array(b"message", command[1], command[2]))
            wire.write(self.garbage or b":%d\r\n" % len(heard))
        else:
            wire.write(b"+OK\r\n")


def array(*values: bytes) -> bytes:
    """An array of bulk strings."""
    return b"*%d\r\n" % len(values) + b"".join(b"$%d\r\n%b\r\n" % (len(value), value) for value in values)


class StallingProxy(ScriptedWorker):
    """A TCP proxy to `port`, which forwards while `flows` is set."""

    def __init__(self, port: int) -> None:
        super().__init__(self._serve_client)
        self.flows = asyncio.Event()
        self.flows.set()
        self._to = port

    async def _serve_client(self, wire: Wire) -> None:
        store = await client_of(self._to)
        wire.patience = store.patience = CONNECTED
        try:
            await asyncio.gather(self._forward(wire, store), self._forward(store, wire))
        finally:
            store.leave()
            wire.leave()

    async def _forward(self, one: Wire, other: Wire) -> None:
        while data := await one.some():
            await self.flows.wait()
            await other.send(data)
        raise ConnectionResetError
