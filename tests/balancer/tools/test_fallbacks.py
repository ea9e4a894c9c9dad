"""Example clients of docs/sidecar.md with a working sidecar, without one, and with one that cannot reach the origin.

The field Via, as the origin receives it, shows whether a request came through the sidecar.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
import requests

from balancer.config.schema.sidecar import SidecarConfig
from balancer.tools.sidecar.server import SidecarServer
from tests.support.certificates import Shelf
from tests.support.root import ROOT
from tests.support.stage import Stage
from tests.support.wire import Message, Script, ScriptedWorker, Wire, answering, playing, response

EXAMPLES = ROOT / "examples"


def example(name: str) -> Any:
    """A module of `examples`, which is not a package."""
    spec = spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SidecarAdapter = example("sidecar_requests").SidecarAdapter
SidecarTransport = example("sidecar_httpx").SidecarTransport
SidecarMiddleware = example("sidecar_aiohttp").SidecarMiddleware

CONNECT_S = 2.0
"""Connect timeout of the clients in seconds."""

Asked = tuple[int, bytes]
Client = Callable[[str, str, str, Path], Awaitable[tuple[str, int, bytes]]]
"""Send a request (method, URL, URL of the sidecar, CA file); return the last URL, status and body."""


async def with_requests(method: str, url: str, sidecar: str, ca: Path) -> tuple[str, int, bytes]:
    def run() -> tuple[str, int, bytes]:
        with requests.Session() as session:
            session.mount("https://localhost", SidecarAdapter(sidecar))
            data = b"hello" if method == "POST" else None
            answer = session.request(method, url, data=data, verify=str(ca), timeout=(CONNECT_S, 20))
            return str(answer.url), answer.status_code, answer.content

    return await asyncio.to_thread(run)


async def with_httpx(method: str, url: str, sidecar: str, ca: Path) -> tuple[str, int, bytes]:
    def run() -> tuple[str, int, bytes]:
        direct = httpx.HTTPTransport(verify=ssl.create_default_context(cafile=str(ca)))
        transport = SidecarTransport(httpx.URL(sidecar), direct)
        timeout = httpx.Timeout(20, connect=CONNECT_S)
        mounts = {"https://localhost": transport}
        with httpx.Client(mounts=mounts, timeout=timeout, follow_redirects=True) as client:
            answer = client.request(method, url, content=b"hello" if method == "POST" else None)
            return str(answer.url), answer.status_code, answer.content

    return await asyncio.to_thread(run)


async def with_aiohttp(method: str, url: str, sidecar: str, ca: Path) -> tuple[str, int, bytes]:
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=str(ca)))
    middleware = SidecarMiddleware(url, sidecar=sidecar)
    timeout = aiohttp.ClientTimeout(total=20, sock_connect=CONNECT_S)
    async with aiohttp.ClientSession(
        connector=connector, middlewares=[middleware], timeout=timeout
    ) as session:
        data = b"hello" if method == "POST" else None
        async with session.request(method, url, data=data) as answer:
            return str(answer.url), answer.status, await answer.read()


CLIENTS = {"requests": with_requests, "httpx": with_httpx, "aiohttp": with_aiohttp}


@dataclass
class Scene:
    """An origin, and a client with the URL of a sidecar."""

    stage: Stage
    shelf: Shelf
    client: Client
    origin: ScriptedWorker
    sidecar: str = ""

    async def serve(self, **tls: Any) -> None:
        origin = {"name": "o", "url": f"https://localhost:{self.origin.port}", "retries": 0, "tls": tls}
        config = SidecarConfig.model_validate({"listen": "127.0.0.1:0", "origins": [origin]})
        server = SidecarServer(config, self.stage.clock)
        self.stage.server = server
        await server.start()
        self.sidecar = f"http://{server.address}"

    def url_of(self, path: str) -> str:
        return f"https://localhost:{self.origin.port}{path}"

    async def ask(self, method: str, path: str = "/a?b=c", *, last: str = "") -> Asked:
        """Ask for a path; the application sees only URLs of the origin, at the end that of `last`."""
        url, status, body = await self.client(method, self.url_of(path), self.sidecar, self.shelf.ca)
        assert url == self.url_of(last or path)
        return status, body

    @property
    def ways(self) -> list[str]:
        """How each request reached the origin."""
        return ["sidecar" if request.value(b"Via") else "direct" for request in self.origin.requests]


@pytest.fixture(params=CLIENTS)
def scenes(
    request: pytest.FixtureRequest, stage: Stage, tmp_path: Path
) -> Callable[[Script], Awaitable[Scene]]:
    shelf = Shelf(tmp_path)

    async def made(script: Script) -> Scene:
        origin = await stage.worker(script, tls=shelf.worker("localhost"))
        return Scene(stage, shelf, CLIENTS[request.param], origin)

    return made


Scenes = Callable[[Script], Awaitable[Scene]]


async def test_requests_go_through_the_sidecar(scenes: Scenes) -> None:
    scene = await scenes(answering(response(b"ok")))
    await scene.serve(ca=str(scene.shelf.ca))
    for method in ("GET", "POST"):
        assert await scene.ask(method) == (200, b"ok")
    assert scene.ways == ["sidecar", "sidecar"]
    got, posted = scene.origin.requests
    assert (got.line, posted.body) == (b"GET /a?b=c HTTP/1.1", b"hello")
    assert got.value(b"Host") == b"localhost:%d" % scene.origin.port


async def test_redirects_and_cookies_are_those_of_the_origin(scenes: Scenes) -> None:
    """The next request goes through the sidecar, too, with the cookie."""

    def answer(request: Message) -> bytes:
        if b"/login" not in request.line:
            return response(request.value(b"Cookie") or b"none")
        there = scene.url_of("/me").encode()
        return response(b"", b"Set-Cookie: id=42; Path=/", b"Location: " + there, status=b"302 Found")

    scene = await scenes(answering(answer))
    await scene.serve(ca=str(scene.shelf.ca))
    assert await scene.ask("GET", "/login", last="/me") == (200, b"id=42")
    assert scene.ways == ["sidecar", "sidecar"]


@pytest.mark.second_tier
async def test_a_sidecar_that_does_not_accept_in_time_has_sent_nothing(scenes: Scenes) -> None:
    """Its queue of connections is full."""
    scene = await scenes(answering(response(b"ok")))
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        address = server.getsockname()
        with socket.create_connection(address):
            scene.sidecar = f"http://127.0.0.1:{address[1]}"
            assert await scene.ask("POST") == (200, b"ok")
    assert scene.ways == ["direct"]


@pytest.mark.parametrize("is_refused", [True, False], ids=["refused", "unsent"])
async def test_requests_that_were_not_sent_go_directly(scenes: Scenes, is_refused: bool) -> None:
    """The connection to the sidecar is refused, or it rejects the origin's certificate and has sent nothing."""
    scene = await scenes(answering(response(b"ok")))
    if is_refused:
        scene.sidecar = f"http://127.0.0.1:{scene.stage.dead_port()}"
    else:
        await scene.serve()
    for method in ("GET", "POST"):
        assert await scene.ask(method) == (200, b"ok")
    assert scene.ways == ["direct", "direct"]


async def test_non_idempotent_requests_are_not_repeated(scenes: Scenes) -> None:
    """The origin breaks off requests that came through the sidecar: only idempotent ones are repeated."""

    async def script(wire: Wire) -> None:
        asked = await wire.request()
        if not asked.value(b"Via"):
            await wire.send(response(b"ok"))

    scene = await scenes(script)
    await scene.serve(ca=str(scene.shelf.ca))
    assert (await scene.ask("POST"))[0] == 502
    assert scene.ways == ["sidecar"]
    assert await scene.ask("GET") == (200, b"ok")
    assert scene.ways == ["sidecar", "sidecar", "direct"]


async def test_error_status_of_the_origin_is_final(scenes: Scenes) -> None:
    """A 503 of the origin is forwarded."""
    scene = await scenes(answering(response(b"busy", status=b"503 Busy")))
    await scene.serve(ca=str(scene.shelf.ca))
    assert await scene.ask("GET") == (503, b"busy")
    assert scene.ways == ["sidecar"]


async def test_sidecar_closes_during_a_request(scenes: Scenes) -> None:
    """A GET is sent directly; a POST fails."""
    scene = await scenes(answering(response(b"ok")))
    sidecar = await scene.stage.worker(playing(Wire.request))
    scene.sidecar = f"http://127.0.0.1:{sidecar.port}"
    assert await scene.ask("GET") == (200, b"ok")
    with pytest.raises((requests.ConnectionError, httpx.TransportError, aiohttp.ClientConnectionError)):
        await scene.ask("POST")
    assert scene.ways == ["direct"]
