"""Discovered endpoints are passed on to processes that are started later, and to the program of a hot restart."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.admin_requests import local
from tests.support.config_files import table
from tests.support.dns_discovery import NAME
from tests.support.name_server import SERVFAIL, A, NameServer
from tests.support.programs import Program, Start, bodies, eventually_true, restart_all, starting
from tests.support.stage import Stage
from tests.support.wire import ScriptedWorker, answering, get, response

pytestmark = pytest.mark.second_tier


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Start a balancer with the configuration file."""
    async with starting("--config", str(tmp_path / "balancer.toml"), "--port", "0") as started:
        yield started


def write_dns(folder: Path, names: NameServer, port: int, more: str = "", name: str = NAME) -> None:
    """Write a configuration with one name."""
    (folder / "balancer.toml").write_text(
        f'policy = "round-robin"\n[[discovery.dns]]\nname = "{name}"\nport = {port}\n'
        f'servers = ["127.0.0.1:{names.port}"]\n{more}'
    )


async def two_workers(stage: Stage) -> int:
    """Start workers `1` and `2` at 127.0.0.1 and 127.0.0.2; return their port."""
    port = (await stage.worker(response(b"1"))).port
    await stage.start(ScriptedWorker(answering(response(b"2"))), socket.create_server(("127.0.0.2", port)))
    return port


def drain(endpoint: str) -> bytes:
    return local(f"/-/endpoints/{endpoint}".encode(), method=b"PATCH", body=b'{"state": "drain"}')


async def has_problem(program: Program) -> bool:
    """Whether a process has no answer of the source."""
    return any(source["problem"] is not None for source in (await program.status())["discovery"])


@pytest.mark.timeout(120)
async def test_restarted_processes_without_an_answer(
    start: Start, stage: Stage, names: NameServer, tmp_path: Path
) -> None:
    """They have the endpoints of their siblings, with their admin states, and keep these once there is an answer."""
    port = await two_workers(stage)
    names.address(NAME, "127.0.0.1", "127.0.0.2")
    write_dns(tmp_path, names, port)
    program = await start("--processes", "2")
    assert (await program.ask(drain(f"127.0.0.2-{port}")))["state"] == "drain"
    names.code = SERVFAIL
    await restart_all(program)
    assert await has_problem(program)
    assert await bodies(program) == {b"1"}
    names.code = 0

    async def is_answered() -> bool:
        return not await has_problem(program)

    await eventually_true(is_answered)
    assert await bodies(program) == {b"1"}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("processes", ["1", "2"])
async def test_hot_restart_without_an_answer(
    start: Start, stage: Stage, names: NameServer, tmp_path: Path, processes: str
) -> None:
    """The new program has the endpoints of the old one; its processes, too, when they are restarted."""
    port = await two_workers(stage)
    names.address(NAME, "127.0.0.1", "127.0.0.2")
    write_dns(tmp_path, names, port)
    program = await start("--processes", processes)
    names.code = SERVFAIL
    program.signal(signal.SIGUSR2)
    successor = await program.replaced()
    assert await program.ended() == 0
    assert await bodies(program) == {b"1", b"2"}
    if processes == "2":
        await restart_all(program)
        assert await bodies(program) == {b"1", b"2"}
    program.signal(signal.SIGTERM, successor)
    await program.rest()


TELLS_PID = """\
import os
print("policy of", os.getpid(), flush=True)
class First:
    def __init__(self, rng): pass
    def pick(self, facts, available, now): return available[0]
"""


@pytest.mark.timeout(120)
async def test_hot_restart_of_a_successor_that_is_not_ready_yet(
    start: Start, stage: Stage, names: NameServer, tmp_path: Path
) -> None:
    """It takes over first, and then is replaced itself."""
    port = await two_workers(stage)
    names.address(NAME, "127.0.0.1")
    names.address("new.test", "127.0.0.1")
    write_dns(tmp_path, names, port)
    (tmp_path / "mine.py").write_text(TELLS_PID)
    program = await start("--policy", f"{tmp_path}/mine.py:First")
    names.is_silent = True
    write_dns(tmp_path, names, port, "timeout = 2\n", name="new.test")
    program.signal(signal.SIGUSR2)
    second = int((await program.line(r"^policy of (\d+)$"))[1])
    await stage.eventually(lambda: ("new.test", A) in names.asked)
    names.is_silent = False
    program.signal(signal.SIGUSR2, second)
    assert await program.replaced() == second
    third = await program.replaced()
    assert await program.ended() == 0
    client = await program.client()
    assert (await client.ask(get())).status == 200
    await client.close()
    program.signal(signal.SIGTERM, third)
    await program.rest()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("processes", ["1", "2"])
async def test_stop_during_a_hot_restart(
    start: Start, stage: Stage, names: NameServer, tmp_path: Path, processes: str
) -> None:
    """It ends the successor that is not ready yet, too."""
    names.address(NAME, "127.0.0.1")
    write_dns(tmp_path, names, 80)
    program = await start("--processes", processes)
    names.is_silent = True
    write_dns(tmp_path, names, 80, "timeout = 60\n", name="new.test")
    program.signal(signal.SIGUSR2)
    await stage.eventually(lambda: ("new.test", A) in names.asked)
    program.signal(signal.SIGTERM)
    assert await program.ended() == 0
    assert "balancer is replaced" not in "\n".join(await program.rest())


@pytest.mark.timeout(120)
@pytest.mark.parametrize("processes", ["1", "2"])
async def test_reload_during_a_hot_restart(
    start: Start, stage: Stage, names: NameServer, tmp_path: Path, processes: str
) -> None:
    """The successor has read its configuration before, and reloads when it has taken over."""
    names.address(NAME, "127.0.0.1")
    names.address("new.test", "127.0.0.1")
    write_dns(tmp_path, names, 80)
    program = await start("--processes", processes)
    names.is_silent = True
    write_dns(tmp_path, names, 80, "timeout = 2\n", name="new.test")
    program.signal(signal.SIGUSR2)
    await stage.eventually(lambda: ("new.test", A) in names.asked)
    write_dns(tmp_path, names, 80, "[limits]\nqueue = 40\n")
    program.signal(signal.SIGHUP)
    await program.line("^balancer has reloaded")
    names.is_silent = False
    successor = await program.replaced()
    await program.line("^balancer has reloaded")
    assert (await program.status())["queue"]["limit"] == 40
    assert await program.ended() == 0
    program.signal(signal.SIGTERM, successor)
    await program.rest()


@pytest.mark.timeout(120)
async def test_restarted_process_and_a_file_that_has_become_invalid(
    start: Start, stage: Stage, tmp_path: Path
) -> None:
    """It serves with the endpoints of its siblings, and takes a valid file later."""
    port = await two_workers(stage)
    path = tmp_path / "endpoints.toml"
    path.write_text(table(port))
    (tmp_path / "balancer.toml").write_text(f'policy = "round-robin"\n[discovery.file]\npath = "{path}"\n')
    program = await start("--processes", "2")
    path.write_text(table(port)[:9])
    await restart_all(program)
    assert not [line for line in program.lines if "before it served" in line]
    assert await bodies(program) == {b"1"}
    assert await has_problem(program)
    path.write_text(table(port).replace("127.0.0.1", "127.0.0.2"))

    async def is_taken() -> bool:
        return await bodies(program) == {b"2"}

    await eventually_true(is_taken)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("cluster", ["", "clusters.api."])
async def test_restarted_process_has_the_reload_although_a_file_is_invalid(
    start: Start, stage: Stage, tmp_path: Path, cluster: str
) -> None:
    """The file's endpoints are those of a sibling; what the reload has removed does not come back."""
    port = await two_workers(stage)
    path = tmp_path / "endpoints.json"
    path.write_text(json.dumps([{"id": "a", "address": f"http://127.0.0.1:{port}"}]))
    route = '[[routes]]\npath = "/"\ncluster = "api"\n' if cluster else ""
    found = f'{route}[{cluster}discovery.file]\npath = "{path}"\n'
    removed = f'[[{cluster}endpoints]]\nid = "b"\naddress = "http://127.0.0.2:{port}"\n'
    (tmp_path / "balancer.toml").write_text(found + removed)
    program = await start("--processes", "2")
    (tmp_path / "balancer.toml").write_text(found)
    program.signal(signal.SIGHUP)
    await program.line("balancer has reloaded")
    path.write_text("[{")
    await restart_all(program)
    assert not [line for line in program.lines if "configuration of the start" in line]
    assert await bodies(program) == {b"1"}


@pytest.mark.timeout(120)
async def test_drained_endpoint_that_one_process_does_not_know_yet(
    start: Start, stage: Stage, names: NameServer, tmp_path: Path
) -> None:
    """Whichever process is asked; the other one drains it when it finds it."""
    port = await two_workers(stage)
    names.address(NAME, "127.0.0.1", ttl=1000)
    write_dns(tmp_path, names, port, "max_ttl = 1000\n")
    program = await start("--processes", "2")
    names.address(NAME, "127.0.0.1", "127.0.0.2", ttl=1000)
    pid = (await program.pids())[0]
    program.signal(signal.SIGKILL, pid)
    await program.line("started again")

    async def is_known() -> bool:
        return await bodies(program) == {b"1", b"2"}

    await eventually_true(is_known)
    for _ in range(8):
        shown = await program.ask(drain(f"127.0.0.2-{port}"))
        assert (shown.get("id"), shown.get("state")) == (f"127.0.0.2-{port}", "drain"), json.dumps(shown)
    assert await bodies(program) == {b"1"}
    write_dns(tmp_path, names, port, "max_ttl = 900\n")
    program.signal(signal.SIGHUP)
    await program.line("balancer has reloaded")
    assert await bodies(program) == {b"1"}
    shown = await program.ask(local(f"/-/endpoints/127.0.0.2-{port}".encode()))
    assert shown["condition_text"] == "draining"
    refused = await program.ask(drain("127.0.0.9-1"))
    assert refused["error"].startswith("no endpoint '127.0.0.9-1'")
