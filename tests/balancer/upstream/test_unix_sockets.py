"""Workers behind Unix sockets: requests, checks, failures, and real application servers."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import ValidationError

from balancer.config.schema.endpoint import EndpointConfig
from balancer.config.schema.listen import PATH_LIMIT
from tests.support.admin_requests import status
from tests.support.scripted_transports import MEBI, Play, echo, over, values
from tests.support.scripts import SWITCHED, UPGRADE_FIELDS, check
from tests.support.stage import Stage
from tests.support.wire import ScriptedWorker, Wire, answering, get, post, response


def at(path: Path, name: str = "w0", **keys: Any) -> dict[str, Any]:
    return {"id": name, "address": f"http+unix://{path}", "region": "r", **keys}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.sock"


@pytest.mark.parametrize("transport", ["native", "http2"])
async def test_requests(stage: Stage, path: Path, transport: str) -> None:
    """Bodies of any size on reused connections; no name is looked up, and the distance is that of a connect."""
    plays: list[Play] = []
    worker = over(transport, echo, plays)
    await stage.start(worker, path=path)
    await stage.serve(endpoints=[at(path, transport=transport)], route_watch={"interval": 1})
    client = await stage.client()
    for body in (b"small", MEBI, b"small"):
        assert (await client.ask(post(body))).body == body
    assert values(plays[-1].fields, b"host") == [b"example.org"]
    routes = stage.cluster.pools.routes
    assert (routes.names.known, stage.pool().round_trip < 0.1) == ({}, True)
    assert (routes.watch.connects, routes.watch.failed, len(worker.connections)) == (1, 0, 2)
    (listed,) = (await status(stage))["endpoints"]
    assert (listed["address"], listed["host"]) == (f"http+unix://{path}", "client")
    assert listed["route"]["faults"] == {}


async def test_check_and_host_of_the_address(stage: Stage, path: Path) -> None:
    """As nginx says it, the address's Host is localhost: of checks by default, of requests if the key says so."""
    worker = await stage.start(ScriptedWorker(answering(response())), path=path)
    await stage.serve(endpoints=[at(path)], health_checks={"path": "/up"})
    stage.advance(0.0)
    await check(stage)
    await stage.reload(endpoints=[at(path, host="address")])
    assert (await stage.ask(get())).status == 200
    assert [request.value(b"Host") for request in worker.requests] == [b"localhost", b"localhost"]


async def test_upgrade(stage: Stage, path: Path) -> None:
    async def shout(wire: Wire) -> None:
        await wire.request()
        await wire.send(SWITCHED)
        await wire.send((await wire.rest()).upper())

    await stage.start(ScriptedWorker(shout), path=path)
    await stage.serve(endpoints=[at(path)])
    client = await stage.sending(get(b"/", *UPGRADE_FIELDS))
    assert (await client.head()).status == 101
    await client.send(b"text")
    client.half_close()
    assert await client.rest() == b"TEXT"


def absent(path: Path, sock: socket.socket, waiting: socket.socket) -> None:
    """No file."""


def unattended(path: Path, sock: socket.socket, waiting: socket.socket) -> None:
    """A file whose process does not listen."""
    sock.bind(str(path))


def full(path: Path, sock: socket.socket, waiting: socket.socket) -> None:
    """The kernel refuses one more at once, where TCP waits."""
    sock.bind(str(path))
    sock.listen(0)
    waiting.connect(str(path))


@pytest.mark.parametrize("failing", [absent, unattended, full])
async def test_socket_that_nobody_serves(
    stage: Stage, path: Path, failing: Callable[[Path, socket.socket, socket.socket], None]
) -> None:
    """Counts as refused: any request is sent to another endpoint; alone it gets 502."""
    stage.held_sockets += (socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX))
    failing(path, *stage.held_sockets)
    well = path.with_name("well.sock")
    await stage.start(ScriptedWorker(answering(response(b"well"))), path=well)
    await stage.serve(endpoints=[at(path), at(well, "w1")])
    assert (await stage.ask(post(b"body"))).body == b"well"
    assert (stage.outcomes(), stage.pool().route.faults) == ({"refused": 1}, {"refused": 1})
    stage.cluster.router.set_enabled("w1", False)
    assert (await stage.ask(get())).status == 502


@pytest.mark.parametrize(
    "address",
    [
        *("http+unix:///", "http+unix://", "http+unix:/a", "http+unix://run/app.sock", "http+unix:///a/"),
        *("http+unix://%2Frun%2Fapp.sock", "http+unix:///a?b", "http+unix:///a%20b", "http+unix:///a\nb"),
        *("https+unix:///a", "unix:/a", f"http+unix:///{'a' * PATH_LIMIT}"),
    ],
)
def test_bad_address(address: str) -> None:
    with pytest.raises(ValidationError, match="must be http"):
        EndpointConfig(id="a", address=address)


@pytest.mark.parametrize("transport", ["curl", "aiohttp"])
def test_library_transports_have_none(transport: Literal["curl", "aiohttp"]) -> None:
    with pytest.raises(
        ValueError, match=f'transport: "{transport}" has no Unix sockets; use "native" or "http2"'
    ):
        EndpointConfig(id="a", address=f"http+unix:///{'a' * (PATH_LIMIT - 1)}", transport=transport)


APP = """
def wsgi(environ, start):
    start("200 OK", [])
    return [environ["wsgi.input"].read(), environ["HTTP_HOST"].encode()]

async def asgi(scope, receive, send):
    if scope["type"] == "http":
        body = (await receive())["body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body + dict(scope["headers"])[b"host"]})
"""

SERVERS = {"gunicorn": ("app:wsgi", "--bind=unix:{}"), "uvicorn": ("app:asgi", "--uds={}")}


@pytest.mark.second_tier
@pytest.mark.parametrize("server", SERVERS)
async def test_application_server(stage: Stage, path: Path, tmp_path: Path, server: str) -> None:
    if find_spec(server) is None:
        pytest.skip(f"{server} is not installed")
    (tmp_path / "app.py").write_text(APP)
    arguments = [words.format(path) for words in SERVERS[server]]
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", server, *arguments, cwd=tmp_path)
    try:
        await stage.serve(endpoints=[at(path)], health_checks={"path": "/up"})
        await stage.eventually(path.exists)
        client = await stage.client()
        for _ in range(20):
            answer = await client.ask(post(b"body "))
            assert (answer.status, answer.body) == (200, b"body example.org")
        await client.close()
    finally:
        process.terminate()
        await process.wait()
