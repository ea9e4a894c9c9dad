"""A server in this process between raw sockets (`wire.py`), on a manual clock.

A `Stage` holds the server and its peers, and asserts at the end that nothing is in flight.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from balancer.clients.client_usage import ClientConnection
from balancer.cluster.cluster import Cluster
from balancer.config.loading import Settings
from balancer.control.control_plane import ControlPlane
from balancer.downstream.connection import Http1Connection
from balancer.downstream.timeouts import Sweep
from balancer.process.server import Server
from balancer.upstream.http1.pool import ConnectionPool
from balancer.upstream.pool import Pool
from policies.endpoint.state import EndpointState
from policies.loading.source import Source
from tests.support.wire import (
    PATIENCE,
    Message,
    Script,
    ScriptedWorker,
    Wire,
    answering,
    connected,
    get,
    post,
    response,
)


class ManualClock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.at = 1000.0

    def now(self) -> float:
        return self.at


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
    def cluster(self) -> Cluster:
        return self.running.cluster

    @property
    def downstreams(self) -> dict[ClientConnection, None]:
        return self.cluster.process.downstreams

    @property
    def control_plane(self) -> ControlPlane:
        return self.running.control_plane

    async def worker(self, script: Script | bytes, tls: ssl.SSLContext | None = None) -> ScriptedWorker:
        """Start a worker; bytes are its response to every request."""
        return await self.start(
            ScriptedWorker(answering(script) if isinstance(script, bytes) else script, tls)
        )

    async def start(
        self, worker: ScriptedWorker, sock: socket.socket | None = None, path: Path | None = None
    ) -> ScriptedWorker:
        """Start a worker, on a socket or a path of its own or on these."""
        await worker.start(sock, path)
        self.started_workers.append(worker)
        return worker

    async def start_at_dead_port(self, worker: ScriptedWorker, port: int) -> None:
        """Start a worker at the last port that refused connections."""
        self.held_sockets.pop().close()
        await self.start(worker, socket.create_server(("127.0.0.1", port)))

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
        endpoints = [
            endpoint(worker, f"w{at}", max_in_flight=max_in_flight) for at, worker in enumerate(workers)
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

    async def serve_worker(self, script: Script | bytes, **settings: Any) -> ScriptedWorker:
        """Start a worker, and the server with it as the only endpoint."""
        worker = await self.worker(script)
        await self.serve(worker, **settings)
        return worker

    async def client(
        self,
        *,
        receive_buffer: int | None = None,
        host: str = "127.0.0.1",
        listener: str = "",
        tls: ssl.SSLContext | None = None,
        name: str | None = None,
        first: bytes = b"",
        source: str = "",
    ) -> Wire:
        """Connect to a listener of the server, from the address `source` if one is given; `first` is sent before the
        TLS handshake, `name` is the server name.
        """
        address = None if self.server is None else self.server.listening.traffic[listener].address
        path = "" if address is None else address.path
        port = self.port if address is None else address.port
        sock = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
        if source:
            sock.bind((source, 0))
        self.clients.append(
            await connected(sock, path or (host, port), receive_buffer, first, ssl=tls, server_hostname=name)
        )
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

    async def sending(self, data: bytes, **connection: Any) -> Wire:
        """A client that has sent these bytes; `connection` as for `client`."""
        client = await self.client(**connection)
        await client.send(data)
        return client

    async def asking(self, worker: ScriptedWorker, request: bytes) -> Wire:
        """A client whose request the worker has received."""
        client = await self.sending(request)
        await self.eventually(lambda: worker.requests)
        return client

    def connection_pool(self) -> ConnectionPool:
        pool = self.pool()
        assert isinstance(pool, ConnectionPool)
        return pool

    def heads_begun(self) -> list[float]:
        """Of each client connection in HTTP/1.1, when the first byte of a head came whose rest has not, else 0."""
        return [one.head_at for one in self.downstreams if isinstance(one, Http1Connection)]

    def pool(self, endpoint: str = "w0") -> Pool:
        return self.cluster.pools.by_id[endpoint]

    def state(self, endpoint: str = "w0") -> EndpointState:
        return self.cluster.router.find(endpoint)

    def outcomes(self, endpoint: str = "w0") -> dict[str, int]:
        """Attempts by outcome, without zeros."""
        return {kind.value: number for kind, number in self.state(endpoint).outcomes.items() if number}

    def jump(self, seconds: float) -> None:
        """Let time pass without a sweep.

        The cached time, which dates requests, moves too: else a sweep might find a new request as old as the jump.
        """
        self.clock.at += seconds
        self.cluster.process.cached_time = self.clock.at

    def advance(self, seconds: float) -> None:
        """Let time pass, and sweep all deadlines."""
        self.clock.at += seconds
        list(Sweep(self.cluster.process, self.running.arrivals.sweep).slices(self.clock.at))
        for cluster in self.running.clusters:
            cluster.sweep(self.clock.at)
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
        cluster = server.cluster
        pools = cluster.pools.by_id.values()
        try:
            await self._soon(
                lambda: not cluster.process.downstreams, f"clients left behind: {cluster.process.downstreams}"
            )
            busy = f"connections left behind: {[*pools]}"
            await self._soon(lambda: not any(pool.leased or pool.opening for pool in pools), busy)
            process = cluster.process
            assert (
                process.in_flight
                == len(cluster.queue)
                == len(process.usages)
                == process.usages.budget.kept
                == 0
            )
            assert [state.in_flight for state in cluster.router.states] == [0] * len(pools)
            assert cluster.pools.open_connections == sum(pool.idle for pool in pools), [*pools]
        finally:
            is_finished = await server.stop()
        assert is_finished
        assert cluster.pools.open_connections == sum(pool.idle for pool in pools) == 0, [*pools]

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


def endpoint(worker: ScriptedWorker | int, name: str = "w0", **keys: Any) -> dict[str, Any]:
    """An endpoint at a worker, or at a port."""
    address = f"http://127.0.0.1:{worker}" if isinstance(worker, int) else worker.url
    return {"id": name, "address": address, "region": "r", **keys}


def pool_of(*workers: ScriptedWorker | int, **keys: Any) -> dict[str, Any]:
    return {"endpoints": [endpoint(worker, f"a{at}") for at, worker in enumerate(workers)], **keys}


API: dict[str, Any] = {"prefix": "/api", "cluster": "api"}


async def serve_api(
    stage: Stage, api: dict[str, Any], *, routes: list[dict[str, Any]] | None = None, **keys: Any
) -> None:
    """Serve a pool without a name that answers "main", and the pool `api`."""
    main = await stage.worker(response(b"main"))
    await stage.serve(main, routes=routes or [API], clusters={"api": api}, **keys)


@asynccontextmanager
async def traffic(stage: Stage) -> AsyncIterator[tuple[list[Message], Callable[[], Awaitable[None]]]]:
    """GETs and POSTs on eight connections, all of which must get 200: the answers, and a wait for 16 more."""
    answers: list[Message] = []
    is_over = False

    async def send_requests(client: Wire) -> None:
        while not is_over:
            answers.append(await client.ask(get()))
            answers.append(await client.ask(post(b"body")))

    async def pass_requests() -> None:
        seen = len(answers)
        await stage.eventually(lambda: len(answers) > seen + 16)

    async with asyncio.TaskGroup() as group:
        for client in [await stage.client() for _ in range(8)]:
            group.create_task(send_requests(client))
        yield answers, pass_requests
        is_over = True
    assert {answer.status for answer in answers} == {200}
