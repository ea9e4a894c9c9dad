"""A reload and what is ordered of endpoints, with several processes: all of them do it, and those that start later."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.balancer.conftest import ScriptedWorker, Stage, get, response
from tests.balancer.programs import Program, starting
from tests.balancer.test_processes import are_two_without, control, patiently

pytestmark = pytest.mark.second_tier

Start = Callable[..., Awaitable[Program]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts a unit of two processes that reads a file; whatever still runs at the end is killed."""
    path = str(tmp_path / "balancer.toml")
    async with starting("--config", path, "--port", "0", "--processes", "2") as started_anew:

        async def started(*workers: ScriptedWorker, more: str = "") -> Program:
            write(tmp_path, *workers, more=more)
            return await started_anew()

        yield started


def write(folder: Path, *workers: ScriptedWorker, more: str = "") -> None:
    endpoints = [
        f'[[endpoints]]\nid = "w{at}"\naddress = "http://127.0.0.1:{worker.port}"\nregion = "r"\n'
        for at, worker in enumerate(workers)
    ]
    (folder / "balancer.toml").write_text("\n".join([more, *endpoints]))


def added(endpoint_id: str, worker: ScriptedWorker) -> bytes:
    address = f"http://127.0.0.1:{worker.port}"
    body = json.dumps({"id": endpoint_id, "address": address, "region": "r"}).encode()
    return control(b"POST", b"/-/endpoints", body)


async def bodies(program: Program) -> set[bytes]:
    """What a client of either process is answered: new connections are spread evenly."""
    clients = [await program.client() for _ in range(16)]
    found = {(await client.ask(get())).body for client in clients for _ in range(8)}
    for client in clients:
        await client.close()
    return found


async def ids(program: Program) -> list[str]:
    told = await program.ask(control(b"GET", b"/-/endpoints"))
    return [endpoint["id"] for endpoint in told["endpoints"]]


async def renewed(program: Program) -> None:
    """Both processes, one after the other."""
    for pid in await program.pids():
        program.signal(signal.SIGKILL, pid)
        await program.line("started again")
        await patiently(partial(are_two_without, program, pid))


async def reloads(program: Program) -> Any:
    return (await program.status())["reload"]


async def test_an_endpoint_that_is_added_is_everybodys(start: Start, stage: Stage) -> None:
    """Whoever is asked; what is told of it is of the whole unit; and those that start later know it."""
    one, other = await stage.worker(response(b"one")), await stage.worker(response(b"other"))
    program = await start(one)
    told = await program.ask(added("w1", other))
    assert (told["id"], told["source"], told["latency"]["count"]) == ("w1", "command", 0)
    assert await bodies(program) == {b"one", b"other"}
    told = await program.ask(control(b"GET", b"/-/endpoints/w1"))
    whole = (await program.status())["endpoints"]
    assert told["outcomes"]["ok"] == told["latency"]["count"] == whole[1]["outcomes"]["ok"]
    assert sum(endpoint["outcomes"]["ok"] for endpoint in whole) == 16 * 8
    assert "used already" in (await program.ask(added("w1", other)))["error"]
    told = await program.ask(control(b"PATCH", b"/-/endpoints/w0", b'{"state": "drain", "weight": 3}'))
    assert (told["state"], told["weight"]) == ("drain", 3.0)
    assert await bodies(program) == {b"other"}
    await renewed(program)
    assert await ids(program) == ["w0", "w1"]
    assert await bodies(program) == {b"other"}
    assert (await program.ask(control(b"GET", b"/-/endpoints/w0")))["weight"] == 3.0


async def test_an_endpoint_that_is_removed_is_nobodys(start: Start, stage: Stage) -> None:
    """Of the configuration too, and of those that start later, until a reload brings it back."""
    one, other = await stage.worker(response(b"one")), await stage.worker(response(b"other"))
    program = await start(one, other)
    assert await program.ask(control(b"DELETE", b"/-/endpoints/w0")) == {"id": "w0", "in_flight": 0}
    assert await bodies(program) == {b"other"}
    await renewed(program)
    assert await ids(program) == ["w1"]
    assert await bodies(program) == {b"other"}
    assert (await program.ask(control(b"POST", b"/-/reload")))["done"] == 1
    assert await ids(program) == ["w0", "w1"]
    assert await bodies(program) == {b"one", b"other"}


@pytest.mark.parametrize("way", ["signal", "request"])
async def test_a_reload_reaches_all(start: Start, stage: Stage, tmp_path: Path, way: str) -> None:
    """It counts as one; limits are divided anew; and who starts later goes by what was read last."""
    one, other = await stage.worker(response(b"one")), await stage.worker(response(b"other"))
    program = await start(one, more="limits.queue = 10")
    write(tmp_path, other, more='limits.queue = 40\npolicy = "round-robin"\nprocesses = 3')
    if way == "signal":
        program.signal(signal.SIGHUP)
        await program.line(r"balancer has reloaded")
    else:
        await program.ask(control(b"POST", b"/-/reload"))

    async def is_everywhere() -> bool:
        status = await program.status()
        return bool(status["queue"]["limit"] == 40)

    await patiently(is_everywhere)
    assert await bodies(program) == {b"other"}
    assert (await reloads(program)) == {"done": 1, "refused": 0, "problem": None, "waiting": []}
    assert (await program.ask(control(b"PUT", b"/-/policy", b'"least-in-flight"')))["name"] == (
        "least-in-flight"
    )
    await renewed(program)
    assert (await program.status())["queue"]["limit"] == 40
    assert (await program.status())["policy"]["name"] == "least-in-flight"
    assert await bodies(program) == {b"other"}


async def test_a_bad_file_changes_nobody(start: Start, stage: Stage, tmp_path: Path) -> None:
    """Every process keeps what it has, and one says why."""
    program = await start(await stage.worker(response(b"one")))
    write(tmp_path, more="limits.queue = -1")
    told = await program.ask(control(b"POST", b"/-/reload"))
    assert "limits.queue" in told["error"]
    program.signal(signal.SIGHUP)
    await program.line("balancer keeps the configuration that it has: limits.queue")
    assert await bodies(program) == {b"one"}

    async def is_told() -> bool:
        told = await reloads(program)
        return told["done"] == 0 and told["refused"] > 0 and "limits.queue" in told["problem"]

    await patiently(is_told)
    program.signal(signal.SIGTERM)
    assert await program.ended() == 0
    assert [line for line in await program.rest() if "keeps" in line] == []
