"""Redirects to another path, and configured bodies: of fixed answers and of the balancer's own errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.config_files import ENDPOINT, problems, write
from tests.support.grpc_plays import rpc
from tests.support.http2_client import http2_client
from tests.support.log_entries import written
from tests.support.stage import API, Stage, pool_of
from tests.support.wire import Message, get, response

# --- redirects

REDIRECTS: list[dict[str, Any]] = [
    {"path": "/old", "redirect": {"path": "/new", "status": 301}},
    {"prefix": "/v1", "redirect": {"replace_prefix": "/v2"}},
    {"prefix": "/strip/", "redirect": {"replace_prefix": "/"}},
    {"prefix": "/h", "redirect": {"replace_prefix": "/i/", "host": "new.org:8443"}},
    {"prefix": "/s", "redirect": {"path": "/t", "scheme": "https", "status": 302}},
]


@pytest.mark.parametrize(
    ("target", "status", "location"),
    [
        (b"/old", 301, b"/new"),
        (b"/old?a=/b%2F", 301, b"/new?a=/b%2F"),
        (b"/v1", 308, b"/v2"),
        (b"/v1/", 308, b"/v2/"),
        (b"/v1/a%20b/?x", 308, b"/v2/a%20b/?x"),
        (b"/v1/../v1/./a", 308, b"/v2/a"),
        (b"/v1/%7Eu/%c3%a9//x", 308, b"/v2/%7Eu/%c3%a9//x"),
        (b"/strip", 308, b"/"),
        (b"/strip//evil.org/x", 308, b"/evil.org/x"),
        (b"/h/x?y", 308, b"http://new.org:8443/i/x?y"),
        (b"/s/x?y", 302, b"https://example.org/t?y"),
        (b"/v10", 200, None),
    ],
)
async def test_redirect(stage: Stage, target: bytes, status: int, location: bytes | None) -> None:
    """A path alone is a relative reference: a proxy in front may have changed the host."""
    await stage.serve(await stage.worker(response()), routes=REDIRECTS)
    answer = await stage.ask(get(target))
    assert (answer.status, answer.value(b"Location")) == (status, location)


async def test_redirect_of_a_whole_host_into_a_prefix(stage: Stage) -> None:
    """Requests that are below it go to the next route."""
    routes = [{"host": "example.org", "prefix": "/", "redirect": {"replace_prefix": "/en"}}]
    await stage.serve(await stage.worker(response()), routes=routes)
    answers = [await stage.ask(get(target)) for target in (b"/", b"/x", b"/english", b"/en", b"/en/x")]
    locations = [answer.value(b"Location") for answer in answers]
    assert locations == [b"/en/", b"/en/x", b"/en/english", None, None]


# --- fixed answers


async def test_answer_from_a_file(stage: Stage, tmp_path: Path) -> None:
    """With the media type of its name and fields of the route; a reload reads it again."""
    page = tmp_path / "page.html"
    page.write_bytes(b"<p>1</p>")
    route = {"path": "/p", "response_fields": {"set": {"Cache-Control": "no-cache"}}}
    routes = [route | {"answer": {"file": str(page)}}]
    await stage.serve(await stage.worker(response()), routes=routes)
    client = await stage.client()
    answer = await client.ask(get(b"/p"))
    assert (answer.status, answer.body) == (200, b"<p>1</p>")
    assert answer.value(b"Content-Type") == b"text/html; charset=utf-8"
    assert answer.value(b"Cache-Control") == b"no-cache"
    head = await client.ask(get(b"/p", method=b"HEAD"), to_head=True)
    assert head.value(b"Content-Length") == b"8"
    page.write_bytes(b"<p>two</p>")
    assert (await client.ask(get(b"/p"))).body == b"<p>1</p>"
    await stage.reload()
    assert (await client.ask(get(b"/p"))).body == b"<p>two</p>"


async def test_a_file_that_is_gone_changes_nothing(stage: Stage, tmp_path: Path) -> None:
    page = tmp_path / "a.bin"
    page.write_bytes(b"\0\xff")
    routes = [{"path": "/p", "answer": {"file": str(page)}}]
    await stage.serve(await stage.worker(response()), routes=routes)
    page.unlink()
    with pytest.raises(Exception, match=r"routes\.0\.answer\.file: cannot read .*: No such file"):
        await stage.reload()
    answer = await stage.ask(get(b"/p"))
    assert (answer.body, answer.value(b"Content-Type")) == (b"\0\xff", b"application/octet-stream")


# --- errors

ERRORS = {
    "no_route": {"body": "<h1>not here</h1>", "content_type": "text/html"},
    "404": {"body": "404"},
    "5xx": {"body": '{"error": {"code": "down"}}', "content_type": "application/problem+json"},
    "503": {"body": "later"},
    "4xx": {"body": "no"},
}


async def errors_of(stage: Stage) -> None:
    routes: list[dict[str, Any]] = [
        {"path": "/ok", "cluster": "api"},
        {"path": "/dead", "cluster": "dead"},
        {"path": "/limited", "cluster": "api", "rate_limit": "r"},
        {"path": "/404", "answer": {"status": 404, "body": "mine"}},
    ]
    worker = await stage.worker(response(b"worker", status=b"503 Busy"))
    await stage.serve(
        endpoints=[], routes=routes, errors=ERRORS, retries=0,
        clusters={"api": pool_of(worker), "dead": pool_of(stage.dead_port(), retries=0)},
        rate_limits=[{"name": "r", "requests": 1, "period": 60}],
    )  # fmt: skip


def shown(answer: Message) -> tuple[int, bytes | None, bytes]:
    return answer.status, answer.value(b"Content-Type"), answer.body


async def test_bodies_of_errors(stage: Stage) -> None:
    """By reason, then by status, then by its class; those of workers and fixed answers stay."""
    await errors_of(stage)
    plain = b"text/plain; charset=utf-8"
    assert shown(await stage.ask(get(b"/none"))) == (404, b"text/html", b"<h1>not here</h1>")
    assert shown(await stage.ask(get(b"/dead"))) == (
        502, b"application/problem+json", b'{"error": {"code": "down"}}',
    )  # fmt: skip
    assert shown(await stage.ask(b"GET / HTTP/1.1\r\n\r\n")) == (400, plain, b"no")
    assert shown(await stage.ask(get(b"/404"))) == (404, plain, b"mine")
    assert (await stage.ask(get(b"/ok"))).body == b"worker"
    await stage.ask(get(b"/limited"))
    limited = await stage.ask(get(b"/limited"))
    assert shown(limited) == (429, plain, b"no")
    assert limited.value(b"Retry-After") is not None
    head = await stage.ask(get(b"/none", method=b"HEAD"), to_head=True)
    assert (head.value(b"Content-Length"), head.body) == (b"17", b"")


async def test_bodies_of_errors_over_http2(stage: Stage) -> None:
    """RPCs have their status instead."""
    await errors_of(stage)
    client = await http2_client(stage)
    answer = await client.ask(path=b"/none")
    assert (answer.status, answer.head[b"content-type"]) == (404, b"text/html")
    assert answer.body == b"<h1>not here</h1>"
    answer = await client.answer(rpc(client))
    assert (answer.head[b"content-type"], answer.head[b"grpc-status"], answer.body) == (
        b"application/grpc", b"12", b"",
    )  # fmt: skip


async def test_a_reload_changes_bodies_of_errors(stage: Stage, tmp_path: Path) -> None:
    file = tmp_path / "down.json"
    file.write_text("{}")
    await stage.serve(stage.dead_port(), retries=0)
    client = await stage.client()
    assert json.loads((await client.ask(get())).body)["error"] == "connect_failed"
    await stage.reload(errors={"connect_failed": {"file": str(file)}})
    assert shown(await client.ask(get())) == (502, b"application/json", b"{}")
    await stage.reload(errors={})
    assert json.loads((await client.ask(get())).body)["error"] == "connect_failed"


# --- the configuration


def test_a_file_that_is_too_long(tmp_path: Path) -> None:
    """With the line of its table."""
    page = tmp_path / "page"
    page.write_bytes(bytes((1 << 20) + 1))
    (line,) = problems(write(tmp_path, f'{ENDPOINT}[errors.503]\nfile = "{page}"\n'))
    assert line == f"balancer.toml:4: errors.503.file: must have at most 1048576 bytes, {page.name} has more"


async def test_access_log_has_the_bytes_of_a_body(stage: Stage, tmp_path: Path) -> None:
    """Of an error of a worker's, of one without a route, and of a refused message."""
    path = tmp_path / "log"
    await stage.serve(
        clusters={"api": pool_of(stage.dead_port())}, routes=[API], endpoints=[],
        errors={"5xx": {"body": "sorry"}, "no_route": {"body": "nothing"}, "400": {"body": "no"}},
        log={"fields": ["status", "bytes"], "path": str(path)},
    )  # fmt: skip
    bad = get(b"/bad", b"Content-Length: 1", b"Content-Length: 2")
    bodies = [(await stage.ask(asked)).body for asked in (get(b"/api"), get(b"/none"), bad)]
    assert bodies == [b"sorry", b"nothing", b"no"]
    await stage.eventually(lambda: path.read_bytes().count(b"\n") == 3)
    assert written(path) == [
        {"status": 502, "bytes": 5},
        {"status": 404, "bytes": 7},
        {"status": 400, "bytes": 2},
    ]
