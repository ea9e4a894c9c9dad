"""Reloads and endpoint commands with several processes, including processes that start later."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.admin_requests import local, put_policy
from tests.support.config_files import write_workers
from tests.support.programs import (
    Program,
    StartConfigured,
    bodies,
    eventually_true,
    restart_all,
    starting,
)
from tests.support.stage import Stage
from tests.support.wire import ScriptedWorker, response

pytestmark = pytest.mark.second_tier


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[StartConfigured]:
    """Start a balancer of two processes with a configuration file; kill what still runs at the end. The policy is
    round-robin, so that requests reach every endpoint.
    """
    path = str(tmp_path / "balancer.toml")
    async with starting(
        "--config", path, "--port", "0", "--processes", "2", "--policy", "round-robin"
    ) as started_process:

        async def started(*workers: ScriptedWorker, more: str = "") -> Program:
            write_workers(tmp_path, *workers, more=more)
            return await started_process()

        yield started


def post_endpoint(endpoint_id: str, worker: ScriptedWorker) -> bytes:
    address = f"http://127.0.0.1:{worker.port}"
    body = json.dumps({"id": endpoint_id, "address": address, "region": "r"}).encode()
    return local(b"/-/endpoints", method=b"POST", body=body)


async def ids(program: Program) -> list[str]:
    shown = await program.ask(local(b"/-/endpoints"))
    return [endpoint["id"] for endpoint in shown["endpoints"]]


async def reload_status(program: Program) -> Any:
    return (await program.status())["reload"]


async def test_added_endpoint_is_known_to_all_processes(start: StartConfigured, stage: Stage) -> None:
    """Status adds up over processes, and a process that starts later knows the endpoint."""
    one, other = await stage.worker(response(b"one")), await stage.worker(response(b"other"))
    program = await start(one)
    shown = await program.ask(post_endpoint("w1", other))
    assert (shown["id"], shown["source"], shown["latency"]["count"]) == ("w1", "command", 0)
    assert await bodies(program) == {b"one", b"other"}
    shown = await program.ask(local(b"/-/endpoints/w1"))
    whole = (await program.status())["endpoints"]
    assert shown["outcomes"]["ok"] == shown["latency"]["count"] == whole[1]["outcomes"]["ok"]
    assert sum(endpoint["outcomes"]["ok"] for endpoint in whole) == 16 * 2
    assert "used already" in (await program.ask(post_endpoint("w1", other)))["error"]
    shown = await program.ask(
        local(b"/-/endpoints/w0", method=b"PATCH", body=b'{"state": "drain", "weight": 3}')
    )
    assert (shown["state"], shown["weight"]) == ("drain", 3.0)
    assert await bodies(program) == {b"other"}
    await restart_all(program)
    assert await ids(program) == ["w0", "w1"]
    assert await bodies(program) == {b"other"}
    assert (await program.ask(local(b"/-/endpoints/w0")))["weight"] == 3.0


async def test_removed_endpoint_is_gone_from_all_processes(start: StartConfigured, stage: Stage) -> None:
    """Also in processes that start later, until a reload restores it."""
    one, other = await stage.worker(response(b"one")), await stage.worker(response(b"other"))
    program = await start(one, other)
    assert await program.ask(local(b"/-/endpoints/w0", method=b"DELETE")) == {"id": "w0", "in_flight": 0}
    assert await bodies(program) == {b"other"}
    await restart_all(program)
    assert await ids(program) == ["w1"]
    assert await bodies(program) == {b"other"}
    assert (await program.ask(local(b"/-/reload", method=b"POST")))["done"] == 1
    assert await ids(program) == ["w0", "w1"]
    assert await bodies(program) == {b"one", b"other"}


@pytest.mark.parametrize("way", ["signal", "request"])
async def test_reload_reaches_all_processes(
    start: StartConfigured, stage: Stage, tmp_path: Path, way: str
) -> None:
    """The reload counts once, limits are divided anew, and later processes use the new configuration."""
    one, other = await stage.worker(response(b"one")), await stage.worker(response(b"other"))
    program = await start(one, more="limits.queue = 10")
    write_workers(tmp_path, other, more='limits.queue = 40\npolicy = "round-robin"\nprocesses = 3')
    if way == "signal":
        program.signal(signal.SIGHUP)
        await program.line("reloaded")
    else:
        await program.ask(local(b"/-/reload", method=b"POST"))

    async def is_everywhere() -> bool:
        status = await program.status()
        return bool(status["queue"]["limit"] == 40)

    await eventually_true(is_everywhere)
    assert await bodies(program) == {b"other"}
    assert (await reload_status(program)) == {"done": 1, "refused": 0, "problem": None, "waiting": []}
    assert (await program.ask(put_policy("least-in-flight")))["name"] == ("least-in-flight")
    await restart_all(program)
    assert (await program.status())["queue"]["limit"] == 40
    assert (await program.status())["policy"]["name"] == "least-in-flight"
    assert await bodies(program) == {b"other"}


async def test_reload_of_a_process_that_is_killed(start: StartConfigured, stage: Stage) -> None:
    """It is not carried out by others, which it might kill as well, but reported."""
    program = await start(await stage.worker(response(b"one")))
    first, _ = await program.pids()
    program.signal(signal.SIGSTOP, first)
    program.signal(signal.SIGHUP)
    program.signal(signal.SIGHUP)
    program.signal(signal.SIGKILL, first)
    await program.line(r"^balancer process 1 .* was killed by SIGKILL")
    await program.line("^balancer process 1 ended before it had reloaded; send SIGHUP again$")
    program.signal(signal.SIGHUP)
    await program.line("^balancer has reloaded$")
