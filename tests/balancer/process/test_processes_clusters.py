"""Named clusters with several processes: commands reach a pool in all of them, reports are merged."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.admin_requests import local
from tests.support.programs import Load, Program, StartConfigured, bodies, restart_all, starting
from tests.support.stage import Stage
from tests.support.wire import PATIENCE, ScriptedWorker, answering_after, get, response

pytestmark = pytest.mark.second_tier


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[StartConfigured]:
    """Start a balancer of two processes with a configuration file; kill what still runs at the end."""
    path = str(tmp_path / "balancer.toml")
    async with starting("--config", path, "--port", "0", "--processes", "2") as started_process:

        async def started(*workers: ScriptedWorker, more: str = "") -> Program:
            main, api = workers
            write(tmp_path, main, api, more)
            return await started_process()

        yield started


def write(folder: Path, main: ScriptedWorker, api: ScriptedWorker, more: str = "") -> None:
    """Write a configuration of two pools, which have endpoints of the same id."""
    (folder / "balancer.toml").write_text(f"""\
[[endpoints]]
id = "w0"
address = "http://127.0.0.1:{main.port}"
[[routes]]
prefix = "/api"
cluster = "api"
[clusters.api]
policy = "round-robin"
[[clusters.api.endpoints]]
id = "w0"
address = "http://127.0.0.1:{api.port}"
{more}
""")


async def test_pool_is_one_over_all_processes(start: StartConfigured, stage: Stage) -> None:
    """Its counts add up, its endpoints are not mixed with those of another pool, and later processes know them."""
    main, api, added = [await stage.worker(response(body)) for body in (b"main", b"api", b"added")]
    program = await start(main, api)
    assert await bodies(program, b"/api") == {b"api"}
    assert await bodies(program, b"/") == {b"main"}
    status = await program.status()
    [pool] = status["clusters"]
    assert (status["requests"], pool["requests"]) == (64, 32)
    assert pool["endpoints"][0]["outcomes"]["ok"] == pool["endpoints"][0]["latency"]["count"] == 32
    assert pool["health"]["summary"] == "serving: 1 endpoint (1 ready)"
    assert status["health"]["endpoints"] == {"ready": 2}
    body = json.dumps({"id": "w1", "address": f"http://127.0.0.1:{added.port}"}).encode()
    await program.ask(local(b"/-/endpoints?cluster=api", method=b"POST", body=body))
    assert await bodies(program, b"/api") == {b"api", b"added"}
    assert (await program.ask(local(b"/-/policy?cluster=api", method=b"PUT", body=b'"random"')))[
        "name"
    ] == "random"
    await restart_all(program)
    assert await bodies(program, b"/api") == {b"api", b"added"}
    shown = await program.ask(local(b"/-/policy?cluster=api"))
    assert (shown["name"], shown["differs"]) == ("random", False)
    assert [each["id"] for each in (await program.ask(local(b"/-/endpoints")))["endpoints"]] == ["w0"]


async def test_processes_see_each_others_requests_by_pool(start: StartConfigured, stage: Stage) -> None:
    """Requests in flight at an endpoint of one pool are not those of another pool's endpoint with the same id."""
    go = asyncio.Event()
    script = answering_after(go, response(b"api"))
    main, api = await stage.worker(response(b"main")), await stage.worker(script)
    program = await start(main, api)
    clients = [await program.client() for _ in range(20)]
    for client in clients:
        await client.send(get(b"/api"))
    await stage.eventually(lambda: len(api.requests) == 20)
    status = await program.status()
    assert status["clusters"][0]["endpoints"][0]["in_flight"] == 20
    assert status["endpoints"][0]["in_flight"] == 0
    go.set()
    for client in clients:
        assert (await client.response()).body == b"api"
        await client.close()


async def test_reload_under_load_loses_nothing(start: StartConfigured, stage: Stage, tmp_path: Path) -> None:
    """Pools are added, changed and removed while clients send requests without a pause."""
    main, api, other = [await stage.worker(response(body)) for body in (b"main", b"api", b"other")]
    program = await start(main, api)
    loads = [Load(program, 3, get(target)) for target in (b"/", b"/api", b"/new/x", b"/api/x")]
    more = f"""\
[[routes]]
prefix = "/new"
cluster = "new"
[clusters.new]
endpoints = [{{ id = "w0", address = "http://127.0.0.1:{other.port}" }}]
"""
    for number in range(10):
        write(tmp_path, main, other if number % 3 else api, more if number % 2 else "")
        program.signal(signal.SIGHUP)
        await program.line("reloaded")
        for load in loads:
            await load.answers(25)
    assert [failure for load in loads for failure in await load.end()] == []
    status = await program.status()
    assert status["errors"] == {}
    assert set(status["responses"]) == {"200"}


async def test_split_is_changed_in_all_processes(
    start: StartConfigured, stage: Stage, tmp_path: Path
) -> None:
    """Also in those that start later; and a canary that fails gets no more requests from any."""
    stable, bad = await stage.worker(response(b"api")), await stage.worker(response(status=b"500 Oops"))
    more = f"""\
[[routes]]
prefix = "/split"
split = {{ api = 1, next = 1 }}
canary = "next"
[clusters.next]
endpoints = [{{ id = "w0", address = "http://127.0.0.1:{bad.port}" }}]
"""
    program = await start(stable, stable, more=more)
    body = json.dumps({"weights": {"api": 1, "next": 0}, "reason": "not yet"}).encode()
    answer = await program.ask(local(b"/-/splits", method=b"PUT", body=body))
    assert [each["share"] for each in answer["splits"][0]["clusters"]] == [1.0, 0.0]
    await restart_all(program)
    assert await bodies(program, b"/split") == {b"api"}
    [split] = (await program.status())["splits"]
    assert (split["changed"], split["reason"]) == (True, "not yet")
    body = json.dumps({"weights": {"api": 4, "next": 1}}).encode()
    await program.ask(local(b"/-/splits", method=b"PUT", body=body))
    client = await program.client()

    async def reasons() -> set[str | None]:
        await client.ask(get(b"/split"))
        return {(await program.ask(local(b"/-/splits")))["splits"][0]["reason"] for _ in range(8)}

    async with asyncio.timeout(PATIENCE):
        while None in await reasons():
            pass
    await client.close()
    assert {
        (await program.ask(local(b"/-/splits")))["splits"][0]["clusters"][1]["share"] for _ in range(8)
    } == {0.0}
    assert await bodies(program, b"/split") == {b"api"}
