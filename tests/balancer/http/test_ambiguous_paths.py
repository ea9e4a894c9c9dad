"""No request that a worker takes for `/admin` passes a route that answers 403 for it."""

from __future__ import annotations

import asyncio
import posixpath
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.config.loading import Settings
from balancer.config.schema.routes import RouteConfig
from balancer.config.schema.sections import NormaliseConfig
from balancer.errors import AmbiguousPath
from balancer.http.h1.client import Client
from balancer.routes.route import Route
from balancer.routes.table import RouteTable, refused_routes
from tests.support.example_counts import examples
from tests.support.http2_client import http2_client
from tests.support.outgoing import outgoing_request
from tests.support.peers import asgi_echo, uvicorn_worker
from tests.support.stage import Stage
from tests.support.wire import get, response

ADMIN: dict[str, Any] = {"prefix": "/admin", "answer": {"status": 403}}
CLIENT = Client(b"127.0.0.1", b"127.0.0.1:80")
FOUND = {"id": "a", "address": "http://127.0.0.1:1", "region": "r"}
HOST_ONLY: dict[str, Any] = {"host": "a.test", "answer": {"status": 403}}

REFUSED = [  # 403, or 400 where workers differ
    "/admin", "/admin/", "/admin/users", "//admin", "/./admin", "/x/../admin", "/%61dmin", "/%61%64min/users",
    "/x/%2e%2e/admin", "/x/.%2E/admin", "/%2e/admin", "/admin%2fusers", "/admin%2Fusers", "/%2fadmin", "/x/..%2fadmin",
    "/x%2f..%2fadmin", "/x/%2e%2e%2fadmin", "/admin;x", "/admin;x/users", "/x;y/../admin", "/;x/admin", "/x/..;/admin",
    "\\admin", "/\\admin", "/x\\..\\admin", "/admin\\users", "/%5cadmin", "/%5Cadmin", "/admin%5cusers", "/admin%00",
    "/admin%00/x", "/x/..%5cadmin", "/admin%2fx/..", "/admin\\x/..", "/admin%00/..", "/x/..;/../admin",
    "/x%2fy/../../admin", "//-/status", "/x/../-/status",
]  # fmt: skip
PASSED = [
    "/", "/x", "/administrator", "/x?y=/admin%2f;\\", "/x%20y", "/admin/../x", "//x/admin", "/%252fadmin",
    "/admin%252fusers", "/%c0%afadmin",
]  # fmt: skip


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
    assert {await ask(stage, path) for path in ("/admin%2fx", "/admin;x", "/admin%5cx", "/admin%00")} == {200}


@pytest.mark.parametrize(
    ("key", "choice", "paths", "admin"),
    [
        ("encoded_slash", "keep", ["/group%2Fproject"], 200),
        ("encoded_slash", "decode", ["/group%2Fproject"], 403),
        ("backslash", "keep", ["/a\\b", "/a%5Cb"], 200),
        ("backslash", "decode", ["/a\\b", "/a%5Cb"], 403),
        ("nul", "keep", ["/a%00"], 200),
        ("semicolon", "keep", ["/a;jsessionid=1"], 200),
    ],
)
async def test_kept_and_decoded_parts(
    stage: Stage, key: str, choice: str, paths: list[str], admin: int
) -> None:
    """Each key applies to its own part and no other, and a reload applies it. A decoded path is what is matched."""
    everything = ["/group%2Fproject", "/a\\b", "/a%5Cb", "/a%00", "/a;jsessionid=1"]
    await stage.serve(await stage.worker(response()), routes=[ADMIN])
    assert [await http1(stage, path) for path in everything] == [400] * 5
    await stage.reload(normalise={key: choice})
    assert [path for path in everything if await http1(stage, path) == 200] == paths
    moved = [path.replace("/a", "/admin").replace("/group", "/admin") for path in paths]
    assert {await http1(stage, path) for path in moved} == {admin}


def without_dots(path: bytes) -> bytes:
    """What RFC 3986 § 5.2.4 leaves, empty segments included."""
    kept: list[bytes] = []
    for segment in path.split(b"/")[1:]:
        if segment == b"..":
            del kept[-1:]
        elif segment != b".":
            kept.append(segment)
    return b"/" + b"/".join(kept)


def decoding(path: bytes, slashes: bytes = rb"/+") -> bytes:
    return without_dots(re.sub(slashes, b"/", unquote_to_bytes(path)))


def url(path: bytes) -> bytes:
    """As WHATWG's URL parser: a host may begin it, and `%2e` is a dot."""
    path = re.sub(rb"(?i)%2e", b".", path.replace(b"\\", b"/"))
    return unquote_to_bytes(without_dots(re.sub(rb"^//+[^/]*", b"", path) or b"/"))


WORKERS: dict[str, tuple[Callable[[bytes], bytes], list[str]]] = {
    "URL": (url, ["backslash"]),
    "decodes": (unquote_to_bytes, []),
    "decodes, then removes": (decoding, ["encoded_slash"]),
    "removes, then decodes": (lambda path: unquote_to_bytes(without_dots(path)), ["encoded_slash"]),
    "servlet": (lambda path: decoding(re.sub(rb";[^/]*", b"", path)), ["encoded_slash", "semicolon"]),
    "Windows": (lambda path: decoding(path, rb"[/\\]+"), ["encoded_slash", "backslash"]),
    "C strings": (lambda path: decoding(path).partition(b"\0")[0], ["encoded_slash", "nul"]),
}
"""How kinds of workers read a path, and the keys of `[normalise]` for what they read in their own way."""

PARTS = [
    "/", "/", "//", ".", "..", "a", "admin", "%61", "%2e", "%2E", "%2f", "%2F", "\\", "%5c", ";", "%00", "%", "%25",
    "2", "f",
]  # fmt: skip


@examples(75)
@given(
    st.lists(st.sampled_from(PARTS), max_size=12).map(lambda parts: "/" + "".join(parts)),
    st.fixed_dictionaries(
        dict.fromkeys(("encoded_slash", "backslash"), st.sampled_from(["refuse", "decode", "keep"]))
        | dict.fromkeys(("nul", "semicolon"), st.sampled_from(["refuse", "keep"]))
    ),
)
def test_workers_read_the_path_that_was_matched(path: str, choices: dict[str, Any]) -> None:
    """Or the request is refused, unless they read what is kept. Slashes that follow another do not count."""
    config = RouteConfig(prefix="/a", strip_prefix=True, cluster="a")
    table = RouteTable()
    table.replace([(config, Route(config, None))], has_default=True, normalise=NormaliseConfig(**choices))
    request = outgoing_request(b"GET %b?/../%%2f HTTP/1.1\r\nHost: a\r\n\r\n" % path.encode(), CLIENT, b"id")
    try:
        route = table.find(request, CLIENT)
    except AmbiguousPath:
        assert "refuse" in choices.values()
        return
    matched = request.path
    if route is not None:
        route.rewrite(request)
        matched = matched.removeprefix(b"/a") or b"/"
    assert request.head.startswith(b"GET %b HTTP/1.1\r\n" % request.target)
    sent, query = request.target.split(b"?")
    assert query == b"/../%2f"
    for name, (read, keys) in WORKERS.items():
        if "keep" not in [choices[key] for key in keys]:
            taken, wanted = (re.sub(rb"/+", b"/", each) for each in (read(sent), unquote_to_bytes(matched)))
            assert taken == wanted, (name, path, sent)


@pytest.mark.parametrize(
    ("key", "path"),
    [("encoded_slash", "/a%2Fb"), ("backslash", "/a%5Cb"), ("nul", "/a%00"), ("semicolon", "/a;b")],
)
@pytest.mark.parametrize("by", ["path", "prefix"])
async def test_route_whose_own_path_is_refused(stage: Stage, key: str, path: str, by: str) -> None:
    """`balancer check` warns about exactly those that no request reaches."""
    routes = [{by: path, "answer": {"status": 403}}, ADMIN]
    choices = [("refuse", 1, 400), ("keep", 0, 403)]
    for choice, lines, status in choices if key in ("nul", "semicolon") else [*choices, ("decode", 1, 200)]:
        keys = {"endpoints": [FOUND], "routes": routes, "normalise": {key: choice}}
        settings = Settings.model_validate(keys)
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

    quiet = type("Quiet", (WSGIRequestHandler,), {"log_message": lambda *_: None})
    with make_server("127.0.0.1", 0, application, handler_class=quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        await asyncio.to_thread(server.shutdown)
        thread.join()


@asynccontextmanager
async def asgi(taken: list[str]) -> AsyncIterator[int]:
    """A worker of uvicorn, the same."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        taken.append(scope["path"])
        await asgi_echo(scope, receive, send)

    async with uvicorn_worker(Path(), application) as port:
        yield port


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
        plain = re.sub(";[^/]*", "", path.partition("\0")[0].replace("\\", "/"))
        assert posixpath.normpath("/" + plain.lstrip("/")).split("/")[1] != "admin", path
