"""What a start imports, and admin requests that arrive before their handlers are imported."""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import re
import signal
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from balancer.process.lifecycle import attend
from balancer.process.server import Server
from tests.support.admin_requests import local
from tests.support.name_server import NameServer
from tests.support.programs import PATIENCE, Run, Start, process_of, workers
from tests.support.stage import Stage
from tests.support.wire import Wire, client_of, get, response

LATE = {
    "aiodns",
    "aiohttp",
    "hiredis",
    "msgspec",
    "numpy",
    "opentelemetry",
    "prometheus_client",
    "pycurl",
    "rich",
    "xxhash",
    "yarl",
}
"""Packages of features that are off, and of requests that have not arrived."""


async def imported(start: Start, *arguments: str) -> set[str]:
    """All modules that a start imports until it is ready."""
    program = await start(*arguments, "--port", "0", PYTHONPROFILEIMPORTTIME="1")
    found = (re.match(r"import time:.*\| +(\S+)$", line) for line in program.lines)
    return {each[1] for each in found if each}


async def test_start_imports_no_package_of_a_feature_that_is_off(start: Start, stage: Stage) -> None:
    worker = await stage.worker(response())
    modules = await imported(start, "--worker", f"emea=http://127.0.0.1:{worker.port}")
    assert "balancer.exchange.exchange" in modules
    assert {name.partition(".")[0] for name in modules} & LATE == set()
    assert not {name for name in modules if re.search("kubernetes|sidecar|probe\\.|supervisor", name)}


HANGS_UP = """\
import os, signal
os.kill(os.getpid(), signal.SIGHUP)
class First:
    def __init__(self, rng): pass
    def pick(self, facts, available, now): return available[0]
"""


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_closed_standard_streams_are_the_null_device(stage: Stage, processes: str) -> None:
    """No socket gets their descriptors, into which the access log would be written."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        launcher = (
            f"import os, sys; os.dup2({sock.fileno()}, 3); os.environ['LISTEN_PID'] = str(os.getpid()); "
            "os.closerange(0, 3)"
        )
        arguments = (*workers(await stage.worker(response())), "--processes", processes)
        environment = {"LISTEN_FDS": "1", "BALANCER_LOG__ACCESS": "json"}
        process = await process_of(arguments, launcher, sock.fileno(), environment)
        port = sock.getsockname()[1]
    try:
        client = await client_of(port)
        client.patience = PATIENCE
        assert (await client.ask(get())).status == 200
        await client.close()
        children = await asyncio.to_thread(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text)
        for pid in (process.pid, *children.split()):
            assert [os.readlink(f"/proc/{pid}/fd/{number}") for number in range(3)] == [os.devnull] * 3
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_reload_that_comes_before_the_balancer_is_ready(
    start: Start, stage: Stage, tmp_path: Path, processes: str
) -> None:
    """It waits for the ready line, and ends nothing."""
    (tmp_path / "mine.py").write_text(HANGS_UP)
    policy = ("--policy", f"{tmp_path}/mine.py:First", "--processes", processes)
    program = await start(*policy, *workers(await stage.worker(response())))
    assert len(program.lines) == 1
    await program.line("^balancer has reloaded$")
    client = await program.client()
    assert (await client.ask(get())).status == 200
    await client.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_stop_while_endpoints_are_looked_up(
    run: Run, stage: Stage, names: NameServer, tmp_path: Path, number: int
) -> None:
    """It waits for no answer, and is not ready."""
    names.is_silent = True
    source = f'[[discovery.dns]]\nname = "a.test"\nport = 80\ntimeout = 300\nservers = ["127.0.0.1:{names.port}"]\n'
    (tmp_path / "balancer.toml").write_text(source)
    program = await run("serve", "--config", str(tmp_path / "balancer.toml"), "--port", "0")
    await stage.eventually(lambda: names.asked)
    async with asyncio.timeout(PATIENCE):
        program.send_signal(number)
        output, _ = await program.communicate()
    assert (program.returncode, b" ready " in output) == (0, False)


STOPS_ITSELF = """\
import os, signal
os.kill(os.getpid(), signal.SIGTERM)
signal.pause()
class First: pass
"""


async def test_stop_while_the_configuration_is_read(run: Run, tmp_path: Path) -> None:
    """By a handler of its own: the first process of a container gets no other signals."""
    (tmp_path / "mine.py").write_text(STOPS_ITSELF)
    worker = ("--worker", "emea=http://127.0.0.1:1")
    program = await run("serve", "--port", "0", "--policy", f"{tmp_path}/mine.py:First", *worker)
    async with asyncio.timeout(PATIENCE):
        output = await program.communicate()
    assert (program.returncode, output) == (0, (b"", b""))


STOPS = """\
import os, signal
parent = os.getpid()
class First:
    def __init__(self, rng):
        if os.getpid() != parent:
            os.kill(parent, signal.SIGTERM)
            signal.pause()
    def pick(self, facts, available, now): return available[0]
"""


async def test_stop_before_the_processes_have_begun(run: Run, tmp_path: Path) -> None:
    """They have no requests to lose."""
    (tmp_path / "mine.py").write_text(STOPS)
    worker = ("--worker", "emea=http://127.0.0.1:1")
    program = await run(
        "serve", "--port", "0", "--processes", "2", "--policy", f"{tmp_path}/mine.py:First", *worker
    )
    async with asyncio.timeout(PATIENCE):
        output = await program.communicate()
    assert (program.returncode, output) == (0, (b"", b""))


class Reloading:
    """A server whose reload waits for lookups without end; `stop` waits for the end of the reload."""

    def __init__(self) -> None:
        self.cluster = SimpleNamespace(process=SimpleNamespace(in_flight=0))
        self.ended = asyncio.Event()

    async def start(self) -> None: ...

    def ready(self) -> str:
        os.kill(os.getpid(), signal.SIGHUP)
        return "ready"

    async def reload(self, *, everywhere: bool) -> list[str]:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()
        return []

    async def stop(self, *, is_patient: bool) -> bool:
        async with asyncio.timeout(PATIENCE):
            await self.ended.wait()
        return True

    def close_idle(self) -> None:
        """Unused."""


async def test_stop_gives_up_a_reload_that_waits() -> None:
    said: list[str] = []
    server = Reloading()
    try:
        assert await attend(cast(Server, server), server.ready, said.append)
    finally:
        gc.unfreeze()
    assert said == ["ready", "balancer stopping: 0 in flight"]


async def test_first_admin_requests_are_all_answered(stage: Stage) -> None:
    """Also one whose client sends the rest of it while the handlers are imported."""
    server = await stage.serve(await stage.worker(response()))
    application = server._admin
    assert application._handlers is None
    whole, late = [Wire(*await asyncio.open_unix_connection(server.listening.admin.path)) for _ in range(2)]
    request = get(b"/-/status")
    await late.send(request[:10])
    first = asyncio.ensure_future(whole.ask(request))
    await stage.eventually(lambda: application._loading is not None)
    await late.send(request[10:])
    for answer in (await first, await late.response()):
        assert (answer.status, json.loads(answer.body)["draining"]) == (200, False)
    for wire in (whole, late):
        await wire.close()


async def test_client_is_disconnected_if_the_handlers_cannot_be_imported(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """With a line for the operator; the next client is served once the import succeeds."""
    server = await stage.serve(await stage.worker(response()))
    with monkeypatch.context() as broken:
        broken.setattr(server._admin, "_new_handlers", lambda: importlib.import_module("no_such_package"))
        for _ in range(2):
            client = await stage.admin_client()
            await client.send(get(b"/-/status"))
            assert await client.rest() == b""
    line = "balancer: admin: cannot load the handlers: No module named 'no_such_package'\n"
    assert capfd.readouterr().err == 2 * line
    assert (await stage.ask(local(b"/-/status"))).status == 200


async def test_stop_closes_a_client_that_waits(stage: Stage) -> None:
    server = await stage.serve(await stage.worker(response()))
    client = Wire(*await asyncio.open_unix_connection(server.listening.admin.path))
    await stage.eventually(lambda: server._admin._loading is not None)
    await server.stop()
    assert await client.rest() == b""
    await client.close()
    stage.server = None
