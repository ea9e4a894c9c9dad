"""A server in this process between raw sockets, on a manual clock.

Clients and workers of the tests parse HTTP themselves, so that a mistake of the balancer's parser cannot hide. A
`Stage` holds the server and its peers, and asserts at the end that nothing is in flight.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, cast

import pytest

from balancer.config.loading import Settings
from balancer.control.control_plane import ControlPlane
from balancer.downstream.timeouts import Sweep
from balancer.exchange.proxy import Proxy
from balancer.process.server import Server, new_event_loop
from balancer.upstream.http1.pool import ConnectionPool
from balancer.upstream.pool import Pool
from policies.endpoint.state import EndpointState
from policies.loading.source import Source
from tests.balancer.name_server import NameServer

PATIENCE = 20.0
"""Seconds after which a wait has failed; generous because the machine may be busy."""


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The event loop of the program."""
    return {"loop": new_event_loop}


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what a platform sets, from which settings take a port and a number of processes."""
    monkeypatch.delenv("PORT", raising=False)
    monkeypatch.delenv("WEB_CONCURRENCY", raising=False)


class ManualClock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.at = 1000.0

    def now(self) -> float:
        return self.at


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
        body = b""
        while size := int(await self.until(b"\r\n"), 16):
            body += await self.exactly(size)
            assert await self.exactly(2) == b"\r\n"
        while await self.until(b"\r\n") != b"\r\n":
            pass  # trailers
        return body

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
    """A worker that runs `script` for each connection and then closes it; https with `tls`."""

    def __init__(self, script: Script, tls: ssl.SSLContext | None = None) -> None:
        self._script = script
        self.tls = tls
        self.connections: list[Wire] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self.port = 0

    async def start(self, sock: socket.socket | None = None) -> None:
        """Listen on `sock`, or on a port of its own."""
        where: dict[str, Any] = {"sock": sock} if sock is not None else {"host": "127.0.0.1", "port": 0}
        self._server = await asyncio.start_server(self._serve, **where, limit=1 << 20, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

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


class Stage:
    """A server, its workers and its clients. `settings` are those of the configuration."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.clients: list[Wire] = []
        self.started_workers: list[ScriptedWorker] = []
        self.held_sockets: list[socket.socket] = []
        self.port = 0  # of a program instead of a server
        self.server: Server | None = None
        self.settings: Settings
        self.read: Callable[[], Settings] = lambda: self.settings

    @property
    def running(self) -> Server:
        """The server, which must have been started."""
        assert self.server is not None
        return self.server

    @property
    def proxy(self) -> Proxy:
        return self.running.proxy

    @property
    def control_plane(self) -> ControlPlane:
        return self.running.control_plane

    async def worker(self, script: Script | bytes, tls: ssl.SSLContext | None = None) -> ScriptedWorker:
        """Start a worker; bytes are its response to every request."""
        worker = ScriptedWorker(answering(script) if isinstance(script, bytes) else script, tls)
        await worker.start()
        self.started_workers.append(worker)
        return worker

    def dead_port(self) -> int:
        """A port that refuses connections: bound, so that it stays free, but not listening."""
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        self.held_sockets.append(sock)
        port: int = sock.getsockname()[1]
        return port

    def deaf_port(self) -> int:
        """A port where connections are not completed because the backlog is full."""
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        sock.listen(0)
        self.held_sockets.append(sock)
        port: int = sock.getsockname()[1]
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
            self.held_sockets.append(filler)
        return port

    async def serve(
        self, *workers: ScriptedWorker | int, max_in_flight: int | None = None, **settings: Any
    ) -> Server:
        """Start the server with `workers` as endpoints w0, w1, … in region r; the default policy is round robin.

        Connecting, whose timeout is in real time, may take `PATIENCE`: the machine may be busy.
        """
        addresses = [
            f"http://127.0.0.1:{worker}"
            if isinstance(worker, int)
            else f"http{'s' if worker.tls else ''}://127.0.0.1:{worker.port}"
            for worker in workers
        ]
        endpoints = [
            {"id": f"w{i}", "address": address, "region": "r", "max_in_flight": max_in_flight}
            for i, address in enumerate(addresses)
        ]
        defaults = {
            "listen": "127.0.0.1:0",
            "policy": "round-robin",
            "seed": 1,
            "endpoints": endpoints,
            "health_checks": {"first_connect": False},
        }
        timeouts = {"connect": PATIENCE, **settings.pop("timeouts", {})}
        self.settings = Settings(**{**defaults, **settings, "timeouts": timeouts})
        self.server = Server(self.settings, self.clock, self._read)
        await self.server.start()
        return self.server

    def _read(self, files: Sequence[Source] = ()) -> Settings:
        return self.read()

    async def reload(self, **settings: Any) -> None:
        """Change keys of the configuration and reload it."""
        given = self.settings.model_dump(exclude_unset=True)
        self.settings = Settings(**{**given, **settings})
        await self.running.reload()

    async def client(
        self,
        *,
        receive_buffer: int | None = None,
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
        name: str | None = None,
        first: bytes = b"",
        source: str = "",
    ) -> Wire:
        """Connect to the server, from the address `source` if one is given; `first` is sent before the TLS handshake,
        `name` is the server name.
        """
        port = self.port if self.server is None else self.server.address.port
        sock = socket.socket()
        if source:
            sock.bind((source, 0))
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (host, port))
        limit = 1 << 20 if receive_buffer is None else 1024
        if first:
            await asyncio.get_running_loop().sock_sendall(sock, first)
        reader, writer = await asyncio.open_connection(sock=sock, limit=limit, ssl=tls, server_hostname=name)
        self.clients.append(Wire(reader, writer))
        return self.clients[-1]

    async def admin_client(self) -> Wire:
        """Connect to the admin socket."""
        path = self.running.listening.admin.path
        reader, writer = await asyncio.open_unix_connection(path, limit=1 << 20)
        self.clients.append(Wire(reader, writer))
        return self.clients[-1]

    async def listen_client(self) -> Wire:
        """Connect to `admin.listen`."""
        sock = self.running.listening.admin.tcp
        assert sock is not None
        self.clients.append(Wire(*await asyncio.open_connection(*sock.getsockname()[:2])))
        return self.clients[-1]

    async def ask(self, request: bytes, *, to_head: bool = False) -> Message:
        """One request on a connection of its own; an admin request goes to the admin socket."""
        is_admin = b" /-/" in request.partition(b"\r\n")[0]
        client = await (self.admin_client() if is_admin else self.client())
        answer = await client.ask(request, to_head=to_head)
        await client.close()
        return answer

    async def asking(self, worker: ScriptedWorker, request: bytes) -> Wire:
        """A client whose request the worker has received."""
        client = await self.client()
        await client.send(request)
        await self.eventually(lambda: worker.requests)
        return client

    def connection_pool(self, endpoint: str = "w0") -> ConnectionPool:
        pool = self.pool(endpoint)
        assert isinstance(pool, ConnectionPool)
        return pool

    def pool(self, endpoint: str = "w0") -> Pool:
        return self.proxy.pools.by_id[endpoint]

    def state(self, endpoint: str = "w0") -> EndpointState:
        return self.proxy.router.find(endpoint)

    def outcomes(self, endpoint: str = "w0") -> dict[str, int]:
        """Attempts by outcome, without zeros."""
        return {kind.value: number for kind, number in self.state(endpoint).outcomes.items() if number}

    def jump(self, seconds: float) -> None:
        """Let time pass without a sweep.

        The cached time, which dates requests, moves too: else a sweep might find a new request as old as the jump.
        """
        self.clock.at += seconds
        self.proxy.cached_time = self.clock.at

    def advance(self, seconds: float) -> None:
        """Let time pass, and sweep all deadlines."""
        self.clock.at += seconds
        list(Sweep(self.proxy, self.running.arrivals.sweep).slices(self.clock.at))
        self.control_plane.checks.sweep(self.clock.at)

    async def eventually(self, condition: Callable[[], object]) -> None:
        """Run the loop until the condition holds."""
        async with asyncio.timeout(PATIENCE):
            while not condition():  # noqa: ASYNC110 - the product has no event for the condition
                await asyncio.sleep(0)

    async def turn(self, times: int = 50) -> None:
        """Run loop iterations, enough for all that happens without time passing."""
        for _ in range(times):
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Close all clients and assert that nothing is in flight."""
        try:
            for client in self.clients:
                await client.close()
            if self.server is not None:
                await self._assert_clean(self.server)
        finally:
            for worker in self.started_workers:
                await worker.stop()
            for sock in self.held_sockets:
                sock.close()

    async def _assert_clean(self, server: Server) -> None:
        proxy = server.proxy
        pools = proxy.pools.by_id.values()
        try:
            await self._soon(lambda: not proxy.downstreams, f"clients left behind: {proxy.downstreams}")
            busy = f"connections left behind: {[*pools]}"
            await self._soon(lambda: not any(pool.leased or pool.opening for pool in pools), busy)
            assert proxy.in_flight == len(proxy.queue) == len(proxy.usages) == proxy.usages.budget.kept == 0
            assert [state.in_flight for state in proxy.router.states] == [0] * len(pools)
            assert proxy.pools.open_connections == sum(pool.idle for pool in pools), [*pools]
        finally:
            is_finished = await server.stop()
        assert is_finished
        assert proxy.pools.open_connections == sum(pool.idle for pool in pools) == 0, [*pools]

    async def _soon(self, condition: Callable[[], object], otherwise: str) -> None:
        try:
            await self.eventually(condition)
        except TimeoutError:
            pytest.fail(otherwise)


@contextmanager
def quiet_loop() -> Iterator[list[dict[str, Any]]]:
    """Collect the exceptions that reach the event loop's handler."""
    loop_errors: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: loop_errors.append(context))
    yield loop_errors
    loop.set_exception_handler(None)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    """A stage that must be clean at the end of the test."""
    stage = Stage()
    with quiet_loop() as loop_errors:
        yield stage
        await stage.close()
        assert loop_errors == []


@pytest.fixture
async def names(stage: Stage) -> AsyncIterator[NameServer]:
    """A name server on loopback."""
    server = NameServer()
    await server.start()
    yield server
    server.stop()


@contextmanager
def uncollected() -> Iterator[None]:
    """Freeze what exists, and turn the garbage collector off."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
