"""Chosen fields of a running server: requests of both versions of HTTP, answers from each source, and reloads."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import Shelf
from tests.support.http2_client import Http2Client, http2_client
from tests.support.log_entries import LogRecord, written
from tests.support.peers import nginx
from tests.support.stage import Stage, pool_of
from tests.support.wire import Wire, client_of, get, playing, response

TRACE = b"0af7651916cd43dd8448eb211c80319c"
PARENT = b"00-" + TRACE + b"-b7ad6b7169203331-01"
COMMON = {
    "user_agent": "a b", "referer": "r", "trace_id": TRACE.decode(), "tls_version": None, "request:x-foo": "f",
}  # fmt: skip
CHOSEN = ["path", "route", "response:x-bar", *COMMON]
BAR = response(b"ok", b"X-Bar: 1", b"X-Secret: s")


async def lines_of(stage: Stage, path: Path, count: int) -> list[LogRecord]:
    await stage.eventually(lambda: path.read_bytes().count(b"\n") >= count)
    return written(path)


async def ask(stage: Stage, version: int, target: bytes, **tls: Any) -> None:
    """A request with all of the chosen fields, one of which an unset cookie of 8 kB stands before."""
    fields = [(b"cookie", b"c" * 8000), (b"user-agent", b"a b"), (b"referer", b"r"), (b"x-foo", b"f")]
    fields.append((b"traceparent", PARENT))
    if version == 2:
        client = await http2_client(stage, **tls)
        await client.ask(*fields, path=target)
    else:
        wire = await stage.client(**tls)
        await wire.ask(get(target, *(b"%b: %b" % field for field in fields)))


@pytest.mark.parametrize("version", [1, 2])
async def test_chosen_fields_of_answers_from_each_source(stage: Stage, tmp_path: Path, version: int) -> None:
    """A worker, a rate limit, a fixed answer, none; a response's field only where a worker has answered."""
    path = tmp_path / "log"
    routes: list[dict[str, Any]] = [
        {"prefix": "/api", "cluster": "api"},
        {"prefix": "/few", "cluster": "api", "rate_limit": "few"},
        {"prefix": "/dead", "cluster": "dead"},
        {"path": "/fixed", "answer": {}},
    ]
    clusters = {"api": pool_of(await stage.worker(BAR)), "dead": pool_of(stage.dead_port())}
    await stage.serve(
        await stage.worker(BAR), routes=routes, clusters=clusters, log={"fields": CHOSEN, "path": str(path)},
        rate_limits=[{"name": "few", "requests": 1, "period": 60}], headers={"internal": ["x-bar"]},
    )  # fmt: skip
    expected = [
        ("/api/x", "*://*/api/*", "1"), ("/few", "*://*/few/*", "1"), ("/few", "*://*/few/*", None),
        ("/dead", "*://*/dead/*", None), ("/fixed", "*://*/fixed", None), ("/none", None, "1"),
    ]  # fmt: skip
    for target, _, _ in expected:
        await ask(stage, version, target.encode())
    assert await lines_of(stage, path, len(expected)) == [
        {"path": target, "route": route, "response:x-bar": bar} | COMMON for target, route, bar in expected
    ]


@pytest.mark.parametrize("version", [1, 2])
async def test_version_of_tls(stage: Stage, tmp_path: Path, version: int) -> None:
    """Of the connection, also after a reload; in configured fields, too."""
    path, shelf, worker = tmp_path / "log", Shelf(tmp_path), await stage.worker(BAR)
    log = {"fields": ["tls_version", "trace_id"], "path": str(path)}
    headers = {"request": {"set": {"X-Tls": "{tls} {scheme}"}}}
    tls = shelf.pair("front.test")
    await stage.serve(worker, tls=tls, log=log, tracing={"enabled": True}, headers=headers)
    context = shelf.client()
    if version == 2:
        context.set_alpn_protocols(["h2"])
    wire = await stage.client(tls=context, name="front.test")
    client = Http2Client(wire) if version == 2 else wire
    for _ in range(2):
        await (client.ask() if isinstance(client, Http2Client) else client.ask(get()))
        await stage.reload(trusted_proxies=["10.0.0.0/8"])
    lines = await lines_of(stage, path, 2)
    assert [line["tls_version"] for line in lines] == ["TLSv1.3"] * 2
    assert [request.value(b"X-Tls") for request in worker.requests] == [b"TLSv1.3 https"] * 2
    assert all(re.fullmatch("[0-9a-f]{32}", line["trace_id"]) for line in lines)


async def test_refused_and_admin_requests(stage: Stage, tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = {"fields": ["path", "status", "end", "user_agent"], "path": str(path)}
    await stage.serve(await stage.worker(BAR), log=log)
    agent = b"User-Agent: a"
    for target in (b"/-/health", b"/-/nothing"):
        await stage.ask(get(target, agent))
    wire = await stage.client()
    await wire.ask(get(b"/-/status?x", agent))  # on the traffic port
    await stage.ask(get(b"/bad", agent, b"Content-Length: 1", b"Content-Length: 2"))
    lines = [tuple(line.values()) for line in await lines_of(stage, path, 4)]
    assert lines == [
        ("/-/health", 200, "admin", "a"),
        ("/-/nothing", 404, "admin", "a"),
        ("/-/status?x", 404, "admin", "a"),
        ("/bad", 400, "rejected", "a"),
    ]


async def test_response_that_the_client_has_seen(stage: Stage, tmp_path: Path) -> None:
    """Of the second attempt after a 503, and of a response that breaks off; none of one that was thrown away."""
    path = tmp_path / "log"
    busy = await stage.worker(response(b"", b"X-Bar: busy", status=b"503 Busy"))
    long = b"HTTP/1.1 200 OK\r\nX-Bar: %b\r\nContent-Length: %d\r\n\r\nx"
    cut = await stage.worker(playing(Wire.request, long % (b"cut", 100_000)))
    lost = await stage.worker(playing(Wire.request, long % (b"lost", 9)))
    pools = {name: pool_of(worker) for name, worker in (("cut", cut), ("lost", lost))}
    routes = [{"prefix": f"/{name}", "cluster": name} for name in pools]
    log = {"fields": ["status", "response:x-bar", "attempts", "end"], "path": str(path)}
    await stage.serve(busy, await stage.worker(BAR), log=log, clusters=pools, routes=routes)
    await stage.ask(get())
    for target in (b"/cut", b"/lost"):
        client = await stage.sending(get(target))
        with suppress(asyncio.IncompleteReadError):
            await client.until(b"}" if target == b"/lost" else b"never")
    seen = [tuple(line.values()) for line in await lines_of(stage, path, 3)]
    assert seen == [(200, "1", 2, "ok"), (200, "cut", 1, "reset"), (502, None, 2, "reset")]


async def test_reload_of_the_fields(stage: Stage, tmp_path: Path) -> None:
    """From the next request on, on a connection that stays and in every cluster; a field is not read before."""
    path = tmp_path / "log"
    log: dict[str, Any] = {"access": "json", "path": str(path)}
    pools = {"api": pool_of(await stage.worker(BAR))}
    await stage.serve(
        await stage.worker(BAR), log=log, clusters=pools, routes=[{"prefix": "/a", "cluster": "api"}]
    )
    client = await stage.client()
    lines: list[LogRecord] = []
    for fields in (None, ["response:x-bar"], ["response:x-secret", "bytes"]):
        if fields is not None:
            await stage.reload(log=log | {"fields": fields})
        for target in (b"/", b"/a"):
            await client.ask(get(target))
            lines = await lines_of(stage, path, len(lines) + 1)
    assert [line["path"] for line in lines[:2]] == ["/", "/a"]
    assert lines[2:] == [{"response:x-bar": "1"}] * 2 + [{"response:x-secret": "s", "bytes": 2}] * 2


@pytest.mark.parametrize("version", [1, 2])
async def test_log_has_the_target_received_and_the_one_sent(
    stage: Stage, tmp_path: Path, version: int
) -> None:
    """Answered by a worker, a rate limit, a fixed answer, nobody; `sent_path` only where a worker got another path."""
    log = tmp_path / "log"
    routes: list[dict[str, Any]] = [
        {"prefix": "/api", "cluster": "api", "strip_prefix": True},
        {"prefix": "/few", "cluster": "api", "strip_prefix": True, "rate_limit": "few"},
        {"prefix": "/dead", "cluster": "dead", "replace_prefix": "/v1"},
        {"prefix": "/keep", "cluster": "api"},
        {"path": "/fixed", "answer": {}},
    ]
    pools = {"api": pool_of(await stage.worker(response())), "dead": pool_of(stage.dead_port())}
    limits = [{"name": "few", "requests": 1, "period": 60}]
    main = await stage.worker(response(b"main"))
    logged = {"access": "json", "path": str(log)}
    decode = {"encoded_slash": "decode"}
    await stage.serve(main, routes=routes, clusters=pools, rate_limits=limits, log=logged, normalise=decode)
    targets = [b"/api/x?q=1", b"/few/x", b"/few/x", b"/dead/x", b"/keep/x", b"/fixed", b"/none"]
    sent: list[str | None] = ["/x?q=1", "/x", None, "/v1/x", None, None, None]
    targets += [b"/x/..%2Fapi/y?q=%2F", b"/keep/%2e/%7a?q", b"/keep/%7a//", b"//keep", b"/keep/..%2Ffixed"]
    sent += ["/y?q=%2F", "/keep/z?q", None, "/keep", None]
    targets.append(b"/keep/../n%2F")
    sent.append("/n/")
    if version == 1:
        targets.append(b"http://example.org/keep")
        sent.append("/keep")
        client = await stage.client()
        for target in targets:
            await client.ask(get(target))
    else:
        http2 = await http2_client(stage)
        for target in targets:
            await http2.ask(path=target)
    lines = await lines_of(stage, log, len(targets))
    assert [line["path"].encode() for line in lines] == targets
    assert [line.get("sent_path") for line in lines] == sent


# --- the combined format beside nginx

HOSTILE = [
    get(b"/0?q=%22", b"User-Agent: Mozilla/5.0 (X11; Linux)", b"Referer: https://example.org/?a=b"),
    get(b"/0", b'User-Agent: "; \\ \xc3\xa9', b"Referer: -"),
    get(b"/0", version=b"HTTP/1.0"),
    get(b"/none", b"User-Agent: ", method=b"HEAD"),
    b"nonsense\r\n\r\n",
]


@pytest.mark.second_tier
async def test_combined_lines_are_those_of_nginx(stage: Stage, tmp_path: Path) -> None:
    """For the same requests, except for the time and the bytes of error pages."""
    ours, theirs = tmp_path / "ours", tmp_path / "nginx" / "theirs"
    theirs.parent.mkdir()
    async with nginx(theirs.parent, log=f"{theirs} combined") as port:
        await stage.serve(port, log={"access": "combined", "path": str(ours)})
        for asked in HOSTILE:
            await ask_alone(await client_of(port), asked)
        direct = await plain_lines(stage, theirs)
        for asked in HOSTILE:
            await ask_alone(await stage.client(), asked)
        assert await plain_lines(stage, ours) == direct


async def ask_alone(client: Wire, asked: bytes) -> None:
    await client.send(asked)
    client.half_close()
    await client.rest()
    await client.close()


async def plain_lines(stage: Stage, path: Path) -> list[str]:
    """Lines without the time, and without the bytes of bodies where the status is an error's."""
    await stage.eventually(lambda: path.exists() and path.read_bytes().count(b"\n") >= len(HOSTILE))
    text = re.sub(r"\[[^]]+\]", "[]", path.read_text(encoding="ascii"))  # noqa: ASYNC240 - a few lines
    return re.sub(r'" ([45]\d\d) \d+ "', r'" \1 "', text).splitlines()
