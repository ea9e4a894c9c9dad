"""Programs and libraries of others as peers: uvicorn, nginx, and any program's output."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import socket
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from experiments.platform.ports import free_ports
from tests.support.wire import listening

MIB = 1 << 20


SIZES = [0, 1, MIB]


def body_of(size: int) -> bytes:
    """Deterministic bytes for each size."""
    return (bytes(range(256)) * (size // 256 + 1))[:size]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


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
  access_log {log}; client_max_body_size 4m;
  client_body_temp_path {path}/a; proxy_temp_path {path}/b; fastcgi_temp_path {path}/c;
  uwsgi_temp_path {path}/d; scgi_temp_path {path}/e;
  server {{ listen 127.0.0.1:{port}{protocol}; root {path}/www; gzip off;
    location /put/ {{ dav_methods PUT; create_full_put_path on; }}
    location /chunked/ {{ alias {path}/www/; gzip on; gzip_proxied any; gzip_min_length 0; gzip_types *; }} }}
  server {{ listen 127.0.0.1:{port}; server_name app.example.org; return 200 app; }}
}}
"""


@asynccontextmanager
async def nginx(path: Path, protocol: str = "", log: str = "off") -> AsyncIterator[int]:
    """Files named by their size; below /chunked/ they are compressed on the fly and therefore chunked. PUT writes below
    /put/. `protocol` is "" or " http2", in clear text; `log` is the value of access_log. Requests for app.example.org
    get "app".
    """
    program = shutil.which("nginx")
    if program is None:
        pytest.skip("nginx is not on PATH")
    (path / "www").mkdir()
    for size in SIZES:
        (path / "www" / str(size)).write_bytes(body_of(size))
    port = next(free_ports(1))
    user = "user root;" if os.geteuid() == 0 else ""  # as root nginx would drop the rights to read the files
    (path / "nginx.conf").write_text(
        NGINX.format(path=path, port=port, user=user, protocol=protocol, log=log)
    )
    arguments = (program, "-p", str(path), "-c", str(path / "nginx.conf"))
    process = await asyncio.create_subprocess_exec(*arguments, stderr=DEVNULL)
    try:
        await listening(port)
        yield port
    finally:
        process.terminate()
        await process.wait()


async def output_of(program: str, *arguments: str, data: bytes = b"") -> bytes:
    """What a program prints; the test is skipped where it is not installed."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not on PATH")
    process = await asyncio.create_subprocess_exec(path, *arguments, stdin=-1, stdout=-1, stderr=-1)
    stdout, stderr = await process.communicate(data)
    assert process.returncode == 0, stderr
    return stdout
