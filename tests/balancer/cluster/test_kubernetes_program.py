"""The balancer as a program in a cluster, under load: pods come, go and are not ready, and the API server is gone."""

from __future__ import annotations

import asyncio
import socket
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from experiments.platform.ports import free_ports
from tests.support.kubernetes_api import ApiServer, leaving, pod
from tests.support.programs import PATIENCE, Load, Program, starting
from tests.support.wire import ScriptedWorker, get


@asynccontextmanager
async def worker(address: str, port: int) -> AsyncIterator[None]:
    """A worker as a process; SIGTERM ends it, after its requests in flight."""
    options = f"--host {address} --port {port} --service fixed:2ms --slots 16".split()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "workers", "serve", *options, stdout=PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            assert b" ready on " in await process.stdout.readline()
        yield
    finally:
        process.terminate()
        await process.communicate()


pytestmark = pytest.mark.second_tier

SOME = 500
"""Requests between two changes."""


class Cluster:
    """The API server of the Service `workers` in the namespace `shop`, whose port refuses connections when it stops."""

    def __init__(self) -> None:
        self.api = ApiServer()
        self._server = ScriptedWorker(self.api.script)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.port}"

    async def start(self) -> None:
        await self._server.start(socket.create_server(("127.0.0.1", self._server.port)))

    async def stop(self) -> None:
        await self._server.stop()


async def shows(program: Program, ids: set[str], *, problem: bool = False) -> None:
    """Wait until these are the endpoints, and until the source has a problem or none."""
    async with asyncio.timeout(PATIENCE):
        while True:
            status = await program.status()
            (source,) = status["discovery"]
            found = {endpoint["id"] for endpoint in status["endpoints"]}
            if found == ids and (source["problem"] is not None) is problem:
                return
            await asyncio.sleep(0.05)


@pytest.mark.timeout(300)
async def test_no_request_fails(tmp_path: Path) -> None:
    """Without retries, so a request to a pod that has ended would fail."""
    one, two, three = addresses = ("127.0.0.11", "127.0.0.12", "127.0.0.13")
    cluster = Cluster()
    await cluster.start()
    port = next(free_ports(1))
    ports = [{"name": "http", "protocol": "TCP", "port": port}]
    ids = {address: f"{address}-{port}" for address in addresses}
    token = tmp_path / "token"
    token.write_text(cluster.api.token)
    path = tmp_path / "balancer.toml"
    path.write_text(
        'listen = "127.0.0.1:0"\nretries = 0\n[discovery.kubernetes]\nservice = "workers"\nnamespace = "shop"\n'
        f'server = "{cluster.url}"\ntoken_file = "{token}"\n'
    )
    async with AsyncExitStack() as always, AsyncExitStack() as ended, starting() as start:
        await always.enter_async_context(worker(three, port))
        first = await ended.enter_async_context(AsyncExitStack())
        second = await ended.enter_async_context(AsyncExitStack())
        await first.enter_async_context(worker(one, port))
        await second.enter_async_context(worker(two, port))
        cluster.api.put("workers-a", pod(one), pod(two), ports=ports)
        program = await start("--config", str(path))
        load = Load(program, request=get(b"/work"))
        await shows(program, {ids[one], ids[two]})
        await load.answers(SOME)

        cluster.api.put("workers-b", pod(three), ports=ports)  # scaled up
        await shows(program, {*ids.values()})
        await load.answers(SOME)

        cluster.api.put("workers-a", pod(one, ready=False, serving=False), pod(two), ports=ports)
        await shows(program, {ids[two], ids[three]})
        await first.aclose()
        await load.answers(SOME)
        await first.enter_async_context(worker(one, port))
        cluster.api.put("workers-a", pod(one), pod(two), ports=ports)  # ready again
        await shows(program, {*ids.values()})
        await load.answers(SOME)

        cluster.api.put("workers-a", pod(one), leaving(two), ports=ports)  # scaled down
        await shows(program, {ids[one], ids[three]})
        await second.aclose()
        await load.answers(SOME)

        await cluster.stop()
        await shows(program, {ids[one], ids[three]}, problem=True)
        await asyncio.sleep(2)
        await load.answers(SOME)
        await cluster.start()
        await shows(program, {ids[one], ids[three]})
        await second.enter_async_context(worker(two, port))
        cluster.api.put("workers-a", pod(one), pod(two), ports=ports)
        await shows(program, {*ids.values()})
        await load.answers(SOME)
        assert await load.end() == []
    await cluster.stop()
