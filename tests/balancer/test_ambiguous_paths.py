"""No request that a worker takes for `/admin` passes a route that answers 403 for it."""

from __future__ import annotations

import asyncio
import posixpath
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest

from balancer.config.load import Settings
from balancer.routes.table import refused_routes
from tests.balancer.conftest import Stage, get, response
from tests.balancer.http2_client import http2_client

ADMIN: dict[str, Any] = {"prefix": "/admin", "answer": {"status": 403}}
FOUND = {"id": "a", "address": "http://127.0.0.1:1", "region": "r"}
HOST_ONLY: dict[str, Any] = {"host": "a.test", "answer": {"status": 403}}

REFUSED = [  # 403, or 400 where workers differ
    "/admin", "/admin/", "/admin/users", "//admin", "/./admin", "/x/../admin", "/%61dmin", "/%61%64min/users",
    "/x/%2e%2e/admin", "/x/.%2E/admin", "/%2e/admin", "/admin%2fusers", "/admin%2Fusers", "/%2fadmin", "/x/..%2fadmin",
    "/x%2f..%2fadmin", "/x/%2e%2e%2fadmin", "/admin;x", "/admin;x/users", "/x;y/../admin", "/;x/admin", "/x/..;/admin",
    "\\admin", "/\\admin", "/x\\..\\admin", "/admin\\users", "/%5cadmin", "/%5Cadmin", "/admin%5cusers", "/admin%00",
    "/admin%00/x", "/x/..%5cadmin",
]  # fmt: skip
PASSED = [
    "/",
    "/x",
    "/administrator",
    "/x?y=/admin%2f;\\",
    "/x%20y",
    "/%252fadmin",
    "/admin%252fusers",
    "/%c0%afadmin",
]


async def http1(stage: Stage, path: str) -> int:
    return (await stage.ask(get(path.encode()))).status


async def http2(stage: Stage, path: str) -> int:
    client = await http2_client(stage)
    return (await client.ask(path=path.encode())).status


@pytest.mark.parametrize("ask", [http1, http2])
async def test_paths_that_workers_may_take_for_another(stage: Stage, ask: Any) -> None:
    """Over both protocols, and not where no route matches by path."""
    await stage.serve(await stage.worker(response()), routes=[ADMIN])
    statuses = {path: await ask(stage, path) for path in REFUSED + PASSED if not path.startswith("\\")}
    assert {path for path, code in statuses.items() if code == 200} == set(PASSED)
    assert {code for code in statuses.values() if code != 200} == {400, 403}
    await stage.reload(routes=[HOST_ONLY])
    assert [await ask(stage, path) for path in ("/admin%2fx", "/admin;x", "/admin%5cx", "/admin%00")] == [
        200
    ] * 4


@pytest.mark.parametrize(
    ("key", "paths"),
    [
        ("encoded_slash", ["/group%2Fproject"]),
        ("backslash", ["/a\\b", "/a%5Cb"]),
        ("nul", ["/a%00"]),
        ("semicolon", ["/a;jsessionid=1"]),
    ],
)
async def test_kept_parts(stage: Stage, key: str, paths: list[str]) -> None:
    """Each key keeps its own part and no other, and a reload applies it."""
    everything = ["/group%2Fproject", "/a\\b", "/a%5Cb", "/a%00", "/a;jsessionid=1"]
    await stage.serve(await stage.worker(response()), routes=[ADMIN])
    assert [await http1(stage, path) for path in everything] == [400] * 5
    await stage.reload(normalise={key: "keep"})
    assert [path for path in everything if await http1(stage, path) == 200] == paths


@pytest.mark.parametrize(
    ("key", "path"),
    [("encoded_slash", "/a%2Fb"), ("backslash", "/a%5Cb"), ("nul", "/a%00"), ("semicolon", "/a;b")],
)
@pytest.mark.parametrize("by", ["path", "prefix"])
async def test_route_whose_own_path_is_refused(stage: Stage, key: str, path: str, by: str) -> None:
    """`balancer check` warns about exactly those that no request reaches."""
    routes = [{by: path, "answer": {"status": 403}}, ADMIN]
    for choice, lines, status in (("refuse", 1, 400), ("keep", 0, 403)):
        settings = Settings.model_validate(
            {"endpoints": [FOUND], "routes": routes, "normalise": {key: choice}}
        )
        found = refused_routes(settings.routes, settings.normalise)
        assert [f"see normalise.{key}" in line for line in found] == [True] * lines
        if choice == "refuse":
            await stage.serve(await stage.worker(response()), routes=routes)
        else:
            await stage.reload(normalise={key: choice})
        assert await http1(stage, path) == status


@asynccontextmanager
async def wsgi(taken: list[str]) -> AsyncIterator[int]:
    """A worker of wsgiref, which appends each path as its application gets it."""

    def application(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        taken.append(environ["PATH_INFO"])
        start("200 OK", [("Content-Length", "0")])
        return [b""]

    class Quiet(WSGIRequestHandler):
        def log_message(self, *args: Any) -> None:
            """Print nothing."""

    with make_server("127.0.0.1", 0, application, handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        await asyncio.to_thread(server.shutdown)
        thread.join()


@asynccontextmanager
async def asgi(taken: list[str]) -> AsyncIterator[int]:
    """A worker of uvicorn, the same."""
    uvicorn = pytest.importorskip("uvicorn")
    bound = threading.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        taken.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    class Bound(uvicorn.Server):  # type: ignore[misc, name-defined]
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            bound.set()

    server = Bound(uvicorn.Config(application, port=0, lifespan="off", log_config=None, ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    await asyncio.to_thread(bound.wait)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await asyncio.to_thread(thread.join)


@pytest.mark.parametrize("kind", [wsgi, asgi])
async def test_real_worker_gets_no_path_of_the_route(stage: Stage, kind: Any) -> None:
    """Not after its own decoding either, without dot segments and parameters, and with backslashes as slashes."""
    taken: list[str] = []
    async with kind(taken) as port:
        await stage.serve(port, routes=[ADMIN], pool={"max_age": 0.001})
        passed = [path for path in REFUSED + PASSED if await http1(stage, path) == 200]
    assert passed == PASSED
    assert len(taken) == len(PASSED)
    for path in taken:
        plain = "/".join(
            part.partition(";")[0] for part in path.partition("\0")[0].replace("\\", "/").split("/")
        )
        assert posixpath.normpath("/" + plain.lstrip("/")).split("/")[1] != "admin", path
