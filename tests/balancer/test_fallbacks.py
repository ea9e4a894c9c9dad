"""The clients of docs/sidecar.md before a sidecar that lives, one that is away, and one that cannot reach the origin.

Rule of this file: whether a request came through the sidecar tells the field Via, as the origin got it.
"""

from __future__ import annotations

import asyncio
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

from balancer.config.sidecar import SidecarConfig
from balancer.sidecar.server import SidecarServer
from tests.balancer.certificates import Shelf
from tests.balancer.conftest import Script, ScriptedWorker, Stage, Wire, answering, response

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(name: str) -> Any:
    """A module of `examples`, which is no package."""
    spec = spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SidecarAdapter = example("sidecar_requests").SidecarAdapter
SidecarTransport = example("sidecar_httpx").SidecarTransport
ask = example("sidecar_aiohttp").ask

Asked = tuple[int, bytes]
Client = Callable[[str, str, str, Path], Awaitable[Asked]]
"""Asks with a method for a URL, by way of a sidecar, trusting an authority."""


async def with_requests(method: str, url: str, sidecar: str, ca: Path) -> Asked:
    def run() -> Asked:
        with requests.Session() as session:
            session.mount("https://localhost", SidecarAdapter(sidecar))
            data = b"hello" if method == "POST" else None
            answer = session.request(method, url, data=data, verify=str(ca), timeout=20)
            assert answer.url == url
            return answer.status_code, answer.content

    return await asyncio.to_thread(run)


async def with_httpx(method: str, url: str, sidecar: str, ca: Path) -> Asked:
    def run() -> Asked:
        direct = httpx.HTTPTransport(verify=ssl.create_default_context(cafile=str(ca)))
        transport = SidecarTransport(httpx.URL(sidecar), direct)
        with httpx.Client(mounts={"https://localhost": transport}, timeout=20) as client:
            answer = client.request(method, url, content=b"hello" if method == "POST" else None)
            assert str(answer.url) == url
            return answer.status_code, answer.content

    return await asyncio.to_thread(run)


async def with_aiohttp(method: str, url: str, sidecar: str, ca: Path) -> Asked:
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=str(ca)))
    async with aiohttp.ClientSession(connector=connector) as session:
        data = b"hello" if method == "POST" else None
        async with await ask(session, method, url, sidecar=sidecar, data=data) as answer:
            return answer.status, await answer.read()


CLIENTS = {"requests": with_requests, "httpx": with_httpx, "aiohttp": with_aiohttp}


@dataclass
class Scene:
    """An origin, and a client with a sidecar that may be there or not."""

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

    async def ask(self, method: str, path: str = "/a?b=c") -> Asked:
        return await self.client(
            method, f"https://localhost:{self.origin.port}{path}", self.sidecar, self.shelf.ca
        )

    @property
    def ways(self) -> list[str]:
        """How each request came."""
        return ["aside" if request.value(b"Via") else "direct" for request in self.origin.requests]


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


async def test_while_it_lives_requests_go_through_it(scenes: Scenes) -> None:
    scene = await scenes(answering(response(b"ok")))
    await scene.serve(ca=str(scene.shelf.ca))
    for method in ("GET", "POST"):
        assert await scene.ask(method) == (200, b"ok")
    assert scene.ways == ["aside", "aside"]
    got, posted = scene.origin.requests
    assert (got.line, posted.body) == (b"GET /a?b=c HTTP/1.1", b"hello")
    assert got.value(b"Host") == b"localhost:%d" % scene.origin.port


async def test_while_it_is_away_they_go_directly(scenes: Scenes) -> None:
    """Nobody listens there: any method."""
    scene = await scenes(answering(response(b"ok")))
    scene.sidecar = f"http://127.0.0.1:{scene.stage.dead_port()}"
    for method in ("GET", "POST"):
        assert await scene.ask(method) == (200, b"ok")
    assert scene.ways == ["direct", "direct"]


async def test_what_it_could_not_send_goes_directly(scenes: Scenes) -> None:
    """It does not trust the origin, and the application does."""
    scene = await scenes(answering(response(b"ok")))
    await scene.serve()
    for method in ("GET", "POST"):
        assert await scene.ask(method) == (200, b"ok")
    assert scene.ways == ["direct", "direct"]


async def test_what_may_have_been_done_is_not_done_twice(scenes: Scenes) -> None:
    """The origin takes requests and breaks off those that came through the sidecar."""

    async def script(wire: Wire) -> None:
        asked = await wire.request()
        if not asked.value(b"Via"):
            await wire.send(response(b"ok"))

    scene = await scenes(script)
    await scene.serve(ca=str(scene.shelf.ca))
    assert (await scene.ask("POST"))[0] == 502
    assert scene.ways == ["aside"]
    assert await scene.ask("GET") == (200, b"ok")
    assert scene.ways == ["aside", "aside", "direct"]


async def test_what_the_origin_says_stands(scenes: Scenes) -> None:
    """Its own 503 is an answer."""
    scene = await scenes(answering(response(b"busy", status=b"503 Busy")))
    await scene.serve(ca=str(scene.shelf.ca))
    assert await scene.ask("GET") == (503, b"busy")
    assert scene.ways == ["aside"]


async def test_a_sidecar_that_dies_under_a_request(scenes: Scenes) -> None:
    """A GET is asked again; a POST is an error."""
    scene = await scenes(answering(response(b"ok")))

    async def dying(wire: Wire) -> None:
        await wire.request()

    sidecar = await scene.stage.worker(dying)
    scene.sidecar = f"http://127.0.0.1:{sidecar.port}"
    assert await scene.ask("GET") == (200, b"ok")
    with pytest.raises((requests.ConnectionError, httpx.TransportError, aiohttp.ClientConnectionError)):
        await scene.ask("POST")
    assert scene.ways == ["direct"]
