"""Interoperability with other clients and servers: bodies arrive unchanged in both directions."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientSession, web

from tests.support.peers import MIB, SIZES, body_of, digest, nginx, uvicorn_worker
from tests.support.stage import Stage
from tests.support.wire import get

pytestmark = pytest.mark.second_tier


def pieces(data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), 50_000):
        yield data[at : at + 50_000]


async def apieces(data: bytes) -> AsyncIterator[bytes]:
    for piece in pieces(data):
        yield piece


# --- workers: each echoes the request body, with a length or, at /chunked, in chunks


@asynccontextmanager
async def aiohttp_worker(tmp_path: Path) -> AsyncIterator[int]:
    async def echo(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if request.path != "/chunked":
            return web.Response(body=body)
        answer = web.StreamResponse()
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        for piece in pieces(body):
            await answer.write(piece)
        return answer

    app = web.Application(client_max_size=4 * MIB)
    app.router.add_route("*", "/{path:.*}", echo)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield runner.addresses[0][1]
    await runner.cleanup()


# --- clients: each sends `body`, with a length or in chunks, and returns the response

Ask = Callable[[str, bytes, bool], Awaitable[tuple[int, bytes]]]


async def ask_with_aiohttp(url: str, body: bytes, is_chunked: bool) -> tuple[int, bytes]:
    async with ClientSession() as session:
        data = apieces(body) if is_chunked else body
        async with session.post(url, data=data) as answer:
            return answer.status, await answer.read()


async def ask_with_httpx(url: str, body: bytes, is_chunked: bool) -> tuple[int, bytes]:
    httpx = pytest.importorskip("httpx", reason="httpx is not installed")
    async with httpx.AsyncClient() as client:
        answer = await client.post(url, content=apieces(body) if is_chunked else body)
        return answer.status_code, answer.content


async def ask_with_requests(url: str, body: bytes, is_chunked: bool) -> tuple[int, bytes]:
    requests = pytest.importorskip("requests", reason="requests is not installed")

    def post() -> tuple[int, bytes]:
        with requests.Session() as session:
            answer = session.post(url, data=pieces(body) if is_chunked else body, timeout=10)
            return answer.status_code, answer.content

    return await asyncio.to_thread(post)


async def ask_with_curl(url: str, body: bytes, is_chunked: bool) -> tuple[int, bytes]:
    program = shutil.which("curl")
    if program is None:
        pytest.skip("curl is not on PATH")
    coding = ["-H", "Transfer-Encoding: chunked"] if is_chunked else []
    arguments = (program, "-sS", "--data-binary", "@-", *coding, "-w", "%{http_code}", url)
    process = await asyncio.create_subprocess_exec(*arguments, stdin=-1, stdout=-1)
    stdout, _ = await process.communicate(body)
    return int(stdout[-3:]), stdout[:-3]


CLIENTS: dict[str, Ask] = {
    "aiohttp": ask_with_aiohttp,
    "httpx": ask_with_httpx,
    "requests": ask_with_requests,
    "curl": ask_with_curl,
}
WORKERS = {"aiohttp": aiohttp_worker, "uvicorn": uvicorn_worker}


@pytest.mark.peer
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("worker", WORKERS)
async def test_echoed_bodies(stage: Stage, tmp_path: Path, client: str, worker: str) -> None:
    """No byte, one byte, a MiB; with a length and chunked."""
    async with WORKERS[worker](tmp_path) as port:
        server = await stage.serve(port)
        for size in SIZES:
            for is_chunked in (False, True):
                for path in ("/length", "/chunked"):
                    url = f"http://{server.address}{path}"
                    status, body = await CLIENTS[client](url, body_of(size), is_chunked)
                    assert (status, len(body), digest(body)) == (200, size, digest(body_of(size)))
        assert stage.outcomes() == {"ok": 12}
        assert stage.pool().counts.opened <= 2
        await stage.close()


@pytest.mark.peer
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_files_from_nginx(stage: Stage, tmp_path: Path, is_chunked: bool) -> None:
    """With a length, and compressed in chunks; HEAD and a conditional GET have no body."""
    async with nginx(tmp_path) as port:
        server = await stage.serve(port)
        url = f"http://{server.address}/{'chunked/' if is_chunked else ''}"
        async with ClientSession() as session:
            for size in SIZES:
                async with session.get(f"{url}{size}") as answer:
                    assert digest(await answer.read()) == digest(body_of(size))
                    assert ("Content-Encoding" in answer.headers) == is_chunked
                    assert "Connection" not in answer.headers
                async with session.head(f"{url}{size}") as answer:
                    assert (answer.status, await answer.read()) == (200, b"")
                unchanged = {"If-Modified-Since": answer.headers["Last-Modified"]}
                async with session.get(f"{url}{size}", headers=unchanged) as answer:
                    assert (answer.status, await answer.read()) == (304, b"")
        client = await stage.client()
        assert (await client.ask(get(b"/nothing"))).status == 404
        assert stage.outcomes() == {"ok": 10}
        await stage.close()


@pytest.mark.peer
async def test_app_that_nginx_finds_by_its_name(stage: Stage, tmp_path: Path) -> None:
    """With `host`, requests and checks reach it; with the client's, both another server."""
    async with nginx(tmp_path) as port:
        endpoint = {"id": "w0", "address": f"http://127.0.0.1:{port}", "region": "r"}
        checks = {"path": "/", "body": "app", "fall": 1}
        await stage.serve(endpoints=[{**endpoint, "host": "app.example.org"}], health_checks=checks)
        stage.advance(0.0)
        stage.advance(6.0)
        state = stage.control_plane.checks.by_id["w0"].state
        await stage.eventually(lambda: state.passed)
        assert (await stage.ask(get())).body == b"app"
        await stage.reload(endpoints=[{**endpoint, "host": "client"}])
        stage.advance(6.0)
        await stage.eventually(lambda: state.failed)
        assert (stage.state().passes_checks, (await stage.ask(get())).status) == (False, 403)
