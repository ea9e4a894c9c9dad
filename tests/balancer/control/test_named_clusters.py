"""Named clusters over reloads that are refused at the last moment, over new pools, and in the memory of processes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from balancer.cluster.runtime_config import RuntimeConfig, runtime_config_of
from balancer.config.loading import Settings
from balancer.config.problems import ConfigError
from balancer.control.control_plane import ControlPlane
from balancer.control.named_clusters import NamedClusters
from balancer.process.server import Server, build, build_cluster
from balancer.process_context import ProcessContext
from balancer.sharing.shared_counters import SharedCounters
from balancer.sharing.siblings import Siblings
from tests.support.admin_requests import command, status
from tests.support.config_files import table
from tests.support.stage import ManualClock, Stage, pool_of, serve_api
from tests.support.wire import PATIENCE, get, response

STATIC: dict[str, Any] = {"endpoints": [{"id": "n0", "address": "http://127.0.0.1:1", "region": "r"}]}


async def refused_reload(stage: Stage, **keys: Any) -> str:
    """Reload, with a new pool and another policy everywhere; return why that is refused, if nothing has changed."""
    front, before = stage.control_plane, stage.control_plane.config
    settings, named = stage.settings, dict(front.named)
    with pytest.raises(ConfigError) as problem:
        await stage.reload(policy="random", **keys)
    assert front.config is before
    assert front.policy.name == "round-robin"
    assert front.named == named
    assert stage.server is not None
    assert stage.server.named_clusters.every == [*named.values()]
    assert (await status(stage))["reload"]["refused"] == 1
    assert (await stage.ask(get(b"/api"))).body == b"api"
    stage.settings = settings
    await stage.reload(clusters={"api": settings.clusters["api"], "new": STATIC})
    assert [*front.named] == ["api", "new"]
    return str(problem.value)


async def test_reload_that_fails_after_new_pools_are_looked_up(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused as a whole, with the pools of the old configuration in force."""
    api = pool_of(await stage.worker(response(b"api")))
    await serve_api(stage, api)
    prepare, faults = ControlPlane._prepare, ["clusters.api: late"]

    def failing(pool: ControlPlane, *given: Any) -> Any:
        if pool.cluster.name and faults:
            raise ConfigError(faults.pop())
        return prepare(pool, *given)

    monkeypatch.setattr(ControlPlane, "_prepare", failing)
    assert await refused_reload(stage, clusters={"api": api, "new": STATIC}) == "clusters.api: late"


async def test_file_that_vanishes_while_new_pools_are_looked_up(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything is read once, before."""
    api = pool_of(await stage.worker(response(b"api")))
    await serve_api(stage, api)
    path = tmp_path / "endpoints.toml"
    path.write_text(table(1, "a7"))
    prepare = NamedClusters.prepare

    async def slow(pools: NamedClusters, config: RuntimeConfig) -> dict[str, ControlPlane]:
        path.unlink()
        return await prepare(pools, config)

    monkeypatch.setattr(NamedClusters, "prepare", slow)
    await stage.reload(clusters={"api": {**api, "discovery": {"file": {"path": str(path)}}}, "new": STATIC})
    assert [*stage.control_plane.named["api"].registry.members] == ["a0", "a7"]


async def test_unreadable_token_when_only_tls_changes(stage: Stage, tmp_path: Path) -> None:
    """The Kubernetes source is made anew for other settings of TLS, too."""
    token = tmp_path / "token"
    token.write_text("secret")
    kubernetes = {
        "service": "workers",
        "namespace": "shop",
        "server": f"http://127.0.0.1:{stage.dead_port()}",
        "token_file": str(token),
    }
    api = pool_of(await stage.worker(response(b"api")), discovery={"kubernetes": kubernetes})
    await serve_api(stage, api)
    token.unlink()
    changed = {**api, "upstream_tls": {"server_name": "api.test"}}
    problem = await refused_reload(stage, clusters={"api": changed, "new": STATIC})
    assert (
        problem
        == f"clusters.api.discovery.kubernetes.token_file: cannot read {token}: No such file or directory"
    )


async def test_discovered_endpoints_need_a_faulty_certificate(stage: Stage, tmp_path: Path) -> None:
    """Those of a file that the reload adds are known only when it is read."""
    api = pool_of(await stage.worker(response(b"api")))
    await serve_api(stage, api)
    path, missing = tmp_path / "endpoints.toml", tmp_path / "ca.pem"
    path.write_text(table(1, "a7").replace("http:", "https:"))
    changed = {**api, "discovery": {"file": {"path": str(path)}}, "upstream_tls": {"ca": str(missing)}}
    problem = await refused_reload(stage, clusters={"api": changed, "new": STATIC})
    assert str(missing) in problem


async def test_discovered_endpoints_use_the_new_certificate(stage: Stage, tmp_path: Path) -> None:
    """A file of certificates that was faulty before the reload does not matter."""
    path, missing = tmp_path / "endpoints.toml", tmp_path / "ca.pem"
    path.write_text(table(1, "w7").replace("http:", "https:"))
    await stage.serve(await stage.worker(response()), upstream_tls={"ca": str(missing)})
    await stage.reload(discovery={"file": {"path": str(path)}}, upstream_tls={"verify": False})
    document = await status(stage)
    assert [each["problem"] for each in document["discovery"]] == [None]
    assert [each["id"] for each in document["endpoints"]] == ["w0", "w7"]


async def test_new_pools_are_looked_up_at_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    both = asyncio.Barrier(2)

    async def start(pool: ControlPlane) -> None:
        if pool.cluster.name:
            async with asyncio.timeout(PATIENCE):
                await both.wait()

    monkeypatch.setattr(ControlPlane, "start", start)
    await stage.serve(await stage.worker(response()), clusters={"one": STATIC, "two": STATIC})
    assert [*stage.control_plane.named] == ["one", "two"]


async def test_each_pool_begins_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is added before the end of the start, by the reload of a process that is late."""
    begun: list[str] = []
    monkeypatch.setattr(ControlPlane, "begin", lambda pool: begun.append(pool.cluster.name))
    keys: dict[str, Any] = {"listen": "127.0.0.1:0", "clusters": {"old": STATIC}, **STATIC}
    stage.settings = Settings(**keys)
    stage.server = server = Server(stage.settings, stage.clock, lambda _: stage.settings)
    start = server._admin.start

    async def late() -> None:
        await start()
        await stage.reload(clusters={"old": STATIC, "new": STATIC})

    monkeypatch.setattr(server._admin, "start", late)
    await server.start()
    assert begun == ["", "old", "new"]
    await stage.reload(clusters={"new": STATIC, "newer": STATIC})
    assert begun == ["", "old", "new", "newer"]


@pytest.mark.parametrize("is_valid", [True, False])
async def test_refused_pools_leave_the_memory_of_processes(tmp_path: Path, is_valid: bool) -> None:
    """Those that were looked up for a reload that another part refuses, and those beside a faulty one."""
    missing = {"discovery": {"file": {"path": str(tmp_path / "missing")}}}
    keys: dict[str, Any] = {"clusters": {"one": STATIC, "two": STATIC if is_valid else missing}, **STATIC}
    settings = Settings(**keys)
    config, board = runtime_config_of(settings), SharedCounters(2)

    def build_one(name: str, one: RuntimeConfig) -> ControlPlane:
        pool = build_cluster(one, ProcessContext(ManualClock()), name=name)
        Siblings(pool.cluster.router, board, 0, print, name)
        return pool

    pools = NamedClusters(build(settings, ManualClock()), build_one)
    if is_valid:
        new = await pools.prepare(config)
        assert len(board.pages[0].rows()) == 2
        await pools.discard(new)
    else:
        with pytest.raises(ConfigError):
            await pools.prepare(config)
    assert board.pages[0].rows() == {}


async def test_unknown_endpoint_is_refused_with_the_clusters_that_have_it(stage: Stage) -> None:
    worker = await stage.worker(response(b"api"))
    await serve_api(stage, pool_of(worker))
    found = await command(stage, "PATCH", "/-/endpoints/a0", {"state": "drain"})
    assert found == (404, {"error": "no endpoint 'a0'; known: w0; clusters that have it: api"})
    found = await command(stage, "PATCH", "/-/endpoints/zz?cluster=api", {"state": "drain"})
    assert found == (404, {"error": "no endpoint 'zz'; known: a0"})
