"""Interoperability with other clients and servers: bodies arrive unchanged in both directions."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import socket
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

from tests.support.stage import Stage
from tests.support.wire import get

pytestmark = pytest.mark.second_tier

MIB = 1 << 20
SIZES = [0, 1, MIB]


def body_of(size: int) -> bytes:
    """Deterministic bytes for each size."""
    return (bytes(range(256)) * (size // 256 + 1))[:size]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


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


async def asgi_echo(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """An ASGI application; without a length uvicorn sends chunks."""
    body, more = b"", True
    while more:
        event = await receive()
        body, more = body + event.get("body", b""), event.get("more_body", False)
    length = [] if scope["path"] == "/chunked" else [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": length})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def uvicorn_worker(tmp_path: Path, application: Any = asgi_echo) -> AsyncIterator[int]:
    uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    config = uvicorn.Config(
        application, lifespan="off", log_config=None, ws="none", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    with sock:
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[sock])
        yield sock.getsockname()[1]
        await server.shutdown(sockets=[sock])


NGINX = """
{user} daemon off; pid {path}/pid; error_log stderr emerg; worker_processes 1;
events {{ worker_connections 64; }}
http {{
  access_log off; client_max_body_size 4m;
  client_body_temp_path {path}/a; proxy_temp_path {path}/b; fastcgi_temp_path {path}/c;
  uwsgi_temp_path {path}/d; scgi_temp_path {path}/e;
  server {{ listen 127.0.0.1:{port}{protocol}; root {path}/www; gzip off;
    location /put/ {{ dav_methods PUT; create_full_put_path on; }}
    location /chunked/ {{ alias {path}/www/; gzip on; gzip_proxied any; gzip_min_length 0; gzip_types *; }} }}
}}
"""


@asynccontextmanager
async def nginx(path: Path, protocol: str = "") -> AsyncIterator[int]:
    """Files named by their size; below /chunked/ they are compressed on the fly and therefore chunked. PUT writes below
    /put/. `protocol` is "" or " http2", in clear text.
    """
    program = shutil.which("nginx")
    if program is None:
        pytest.skip("nginx is not on PATH")
    (path / "www").mkdir()
    for size in SIZES:
        (path / "www" / str(size)).write_bytes(body_of(size))
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    user = "user root;" if os.geteuid() == 0 else ""  # as root nginx would drop the rights to read the files
    (path / "nginx.conf").write_text(NGINX.format(path=path, port=port, user=user, protocol=protocol))
    arguments = (program, "-p", str(path), "-c", str(path / "nginx.conf"))
    process = await asyncio.create_subprocess_exec(*arguments, stderr=DEVNULL)
    try:
        async with asyncio.timeout(5):
            while True:
                try:
                    (await asyncio.open_connection("127.0.0.1", port))[1].close()
                    break
                except ConnectionRefusedError:
                    await asyncio.sleep(0.01)
        yield port
    finally:
        process.terminate()
        await process.wait()


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
