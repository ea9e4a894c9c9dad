"""Raw sockets of the tests: a client or a worker that parses HTTP itself, so that a mistake of the balancer's parser
cannot hide."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from inspect import isawaitable
from pathlib import Path
from typing import Any, Self, cast

ACCEPT_QUEUE = 4096
"""Connections that may wait for a scripted worker: where more do, the kernel may reset one that seems open."""

PATIENCE = 20.0
"""Seconds after which a wait has failed; generous because the machine may be busy."""


@dataclass(frozen=True)
class Message:
    """A request or a response as received; `body` without its framing."""

    line: bytes
    fields: tuple[tuple[bytes, bytes], ...]
    body: bytes = b""

    @property
    def status(self) -> int:
        return int(self.line.split(b" ")[1])

    @property
    def names(self) -> list[bytes]:
        return [name.lower() for name, _ in self.fields]

    def values(self, name: bytes) -> list[bytes]:
        return [value for other, value in self.fields if other.lower() == name.lower()]

    def value(self, name: bytes) -> bytes | None:
        """The value of a field that occurs at most once; None if it is absent."""
        values = self.values(name)
        assert len(values) <= 1, values
        return values[0] if values else None


class Wire:
    """One end of a connection; `received` is every byte that was read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.patience = PATIENCE
        self.received = bytearray()
        self.requests: list[Message] = []

    @property
    def port(self) -> int:
        port: int = self._writer.get_extra_info("sockname")[1]
        return port

    @property
    def peer_port(self) -> int:
        """Port of the other end."""
        port: int = self._writer.get_extra_info("peername")[1]
        return port

    async def send(self, data: bytes) -> None:
        """Write, and wait until the write buffer has room."""
        self._writer.write(data)
        await self._writer.drain()

    def write(self, data: bytes) -> None:
        """Write without waiting."""
        self._writer.write(data)

    def stop_reading(self) -> None:
        """Leave what the peer sends in the kernel's buffers."""
        cast(asyncio.ReadTransport, self._writer.transport).pause_reading()

    @property
    def writer(self) -> asyncio.StreamWriter:
        return self._writer

    @property
    def unsent(self) -> int:
        """Bytes in the write buffer."""
        return self._writer.transport.get_write_buffer_size()

    async def exactly(self, count: int) -> bytes:
        return self._keep(await self._in_time(self._reader.readexactly(count)))

    async def until(self, end: bytes) -> bytes:
        return self._keep(await self._in_time(self._reader.readuntil(end)))

    async def some(self, limit: int = 65536) -> bytes:
        """The next bytes, b"" at the end."""
        return self._keep(await self._in_time(self._reader.read(limit)))

    async def rest(self) -> bytes:
        """All bytes up to a clean end."""
        return self._keep(await self._in_time(self._reader.read()))

    async def closed(self) -> None:
        """Wait for the end, clean or not."""
        with suppress(ConnectionError):
            while await self.some():
                pass

    async def _in_time(self, reading: Awaitable[bytes]) -> bytes:
        async with asyncio.timeout(self.patience):
            return await reading

    def _keep(self, data: bytes) -> bytes:
        self.received += data
        return data

    async def head(self) -> Message:
        """Read the head of a request or response."""
        lines = (await self.until(b"\r\n\r\n"))[:-4].split(b"\r\n")
        pairs = (line.partition(b":") for line in lines[1:])
        return Message(lines[0], tuple((name, value.strip()) for name, _, value in pairs))

    async def request(self) -> Message:
        """Read a request; raises IncompleteReadError at the end of the connection."""
        head = await self.head()
        request = Message(head.line, head.fields, await self._body(head))
        self.requests.append(request)
        return request

    async def response(self, *, to_head: bool = False) -> Message:
        """Read a response."""
        head = await self.head()
        if to_head or head.status < 200 or head.status in (204, 304):
            return head
        if head.value(b"Content-Length") is None and head.value(b"Transfer-Encoding") is None:
            return Message(head.line, head.fields, await self.rest())
        return Message(head.line, head.fields, await self._body(head))

    async def _body(self, head: Message) -> bytes:
        if head.value(b"Transfer-Encoding") is None:
            return await self.exactly(int(head.value(b"Content-Length") or 0))
        return (await self.chunks())[0]

    async def chunks(self) -> tuple[bytes, list[bytes]]:
        """Read a body in chunks, and the lines of its trailers."""
        body, trailers = b"", []
        while size := int((await self.until(b"\r\n")).partition(b";")[0], 16):
            body += await self.exactly(size)
            if await self.exactly(2) != b"\r\n":
                raise ValueError("no CRLF after a chunk")
        while (line := await self.until(b"\r\n")) != b"\r\n":
            trailers.append(line[:-2])
        return body, trailers

    async def ask(self, request: bytes, *, to_head: bool = False) -> Message:
        """Send a request and read its response."""
        await self.send(request)
        return await self.response(to_head=to_head)

    def half_close(self) -> None:
        """Shut down the writing side."""
        self._writer.write_eof()

    def reset(self) -> None:
        """Close with a RST."""
        raw = self._writer.get_extra_info("socket")
        if raw is not None and not self._writer.transport.is_closing():
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    @property
    def is_closing(self) -> bool:
        """Whether the connection is closing."""
        return self._writer.transport.is_closing()

    def leave(self) -> None:
        """Close at once, unsent bytes included: a FIN, or a RST if received bytes were not read."""
        self._writer.transport.abort()

    def cut(self) -> None:
        """Send a FIN at once, not in the next loop iteration."""
        with socket.socket(fileno=os.dup(self._writer.get_extra_info("socket").fileno())) as raw:
            raw.shutdown(socket.SHUT_WR)

    async def close(self) -> None:
        """Close after the unsent bytes; if the peer does not read them, reset and fail."""
        self._writer.close()
        try:
            async with asyncio.timeout(self.patience):
                await self._writer.wait_closed()
        except ConnectionError:
            pass
        except TimeoutError:
            self.reset()
            raise


Script = Callable[[Wire], Awaitable[None]]


def response(body: bytes = b"ok", *fields: bytes, status: bytes = b"200 OK") -> bytes:
    """A response with a length."""
    lines = (b"HTTP/1.1 " + status, *fields, b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def get(target: bytes = b"/", *fields: bytes, method: bytes = b"GET", version: bytes = b"HTTP/1.1") -> bytes:
    """A request without a body."""
    return (
        b"\r\n".join((b"%b %b %b" % (method, target, version), b"Host: example.org", *fields)) + b"\r\n\r\n"
    )


def post(body: bytes, *fields: bytes, method: bytes = b"POST") -> bytes:
    """A request with a length."""
    return get(b"/", *fields, b"Content-Length: %d" % len(body), method=method) + body


def post_chunked(*pieces: bytes) -> bytes:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (*pieces, b""))
    return get(b"/", b"Transfer-Encoding: chunked", method=b"POST") + chunks


Answer = bytes | Callable[[Message], bytes]
"""A response, or what makes it of the request."""


def answering(*answers: Answer) -> Script:
    """Answer each request with the next response, and with the last one from then on."""

    async def script(wire: Wire) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                request = await wire.request()
                answer = answers[min(len(wire.requests), len(answers)) - 1]
                await wire.send(answer(request) if callable(answer) else answer)

    return script


def answering_after(go: asyncio.Event, answer: Answer = b"", *, only: bytes = b"") -> Script:
    """Answer requests, by default with 200; those with `only` in their line wait until `go` is set."""

    async def script(wire: Wire) -> None:
        while True:
            request = await wire.request()
            if only in request.line:
                await go.wait()
            await wire.send(answer(request) if callable(answer) else answer or response())

    return script


def playing(*steps: bytes | asyncio.Event | Callable[[Wire], object]) -> Script:
    """Send bytes, wait for an event, or call a method of the connection, as in `playing(Wire.request, go, OK)`."""

    async def script(wire: Wire) -> None:
        for step in steps:
            if isinstance(step, bytes):
                await wire.send(step)
            elif isinstance(step, asyncio.Event):
                await step.wait()
            elif isawaitable(done := step(wire)):
                await done

    return script


class ScriptedWorker:
    """A worker that runs `script` for each connection and then closes it; https with `tls`. In an `async with` it
    listens on a port of its own."""

    def __init__(self, script: Script, tls: ssl.SSLContext | None = None) -> None:
        self._script = script
        self.tls = tls
        self.connections: list[Wire] = []
        self.peak = 0  # most connections that were open at a time
        self._tasks: set[asyncio.Task[Any]] = set()
        self.port = 0

    async def start(self, sock: socket.socket | None = None, path: Path | None = None) -> None:
        """Listen on `sock`, on a Unix socket at `path`, or on a port of its own, which stays over restarts."""
        if path is not None:
            self._server = await asyncio.start_unix_server(self._serve, path, limit=1 << 20)
            return
        where: dict[str, Any] = (
            {"sock": sock} if sock is not None else {"host": "127.0.0.1", "port": self.port}
        )
        self._server = await asyncio.start_server(
            self._serve, **where, limit=1 << 20, ssl=self.tls, backlog=ACCEPT_QUEUE
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def requests(self) -> list[Message]:
        """Complete requests, connection by connection."""
        return [request for wire in self.connections for request in wire.requests]

    @property
    def received(self) -> bytes:
        """Every byte that was read, connection by connection."""
        return b"".join(bytes(wire.received) for wire in self.connections)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.peak = max(self.peak, len(self._tasks))
        wire = Wire(reader, writer)
        self.connections.append(wire)
        try:
            await self._script(wire)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the balancer closed the connection
        except asyncio.CancelledError:
            wire.reset()
        finally:
            with suppress(asyncio.CancelledError):  # the stage is closing
                await wire.close()
            self._tasks.discard(task)

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._server.wait_closed()


def fault_of(answer: Message) -> tuple[int, str, str]:
    """Status, reason and detail of an error of the balancer; the detail is one line."""
    body = json.loads(answer.body)
    assert body["detail"]
    assert "\n" not in body["detail"]
    return answer.status, body["error"], body["detail"]


async def client_of(port: int, receive_buffer: int | None = None) -> Wire:
    """Connect to a port of this machine. With a `receive_buffer`, which is small, little is taken that is not read."""
    return await connected(socket.socket(), ("127.0.0.1", port), receive_buffer)


async def connected(
    sock: socket.socket,
    address: str | tuple[str, int],
    receive_buffer: int | None = None,
    first: bytes = b"",
    **tls: Any,
) -> Wire:
    """Connect a socket; `first` is sent before the TLS handshake."""
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_connect(sock, address)
        await loop.sock_sendall(sock, first)
    except OSError:
        sock.close()
        raise
    limit = 1 << 20 if receive_buffer is None else 1024
    return Wire(*await asyncio.open_connection(sock=sock, limit=limit, **tls))


async def listening(port: int) -> None:
    """Wait until a program that was started accepts connections."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(ConnectionRefusedError):
                (await client_of(port)).leave()
                return
            await asyncio.sleep(0.01)
