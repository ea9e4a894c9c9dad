"""Several processes with a policy from a file: one of them reads it, so all have the same version, also those that are
started later."""

from __future__ import annotations

import asyncio
import hashlib
import signal
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from balancer.control.admin.channel import SiblingChannel
from balancer.control.admin.status_command import lines_of
from tests.support.admin_requests import local, put_policy
from tests.support.config_files import write_workers
from tests.support.programs import (
    Program,
    StartConfigured,
    eventually_true,
    is_replaced,
    restart_all,
    starting,
)
from tests.support.stage import Stage
from tests.support.wire import response

pytestmark = pytest.mark.second_tier


LOADED_AS = """
import os

{more}
class First:
    VERSION = "{version}"

    def pick(self, facts, available, now):
        return available[0]
"""

EACH_READS_ANOTHER = """
import pathlib

path = pathlib.Path(__file__)
path.write_text(path.read_text() + "# read once more\\n")
"""
"""Appends to the file whenever it is loaded: processes that each read it would have different versions."""


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[StartConfigured]:
    """Start a balancer of three processes with a configuration that names `mine.py`."""
    path = str(tmp_path / "balancer.toml")
    async with starting("--config", path, "--port", "0", "--processes", "3") as started_process:

        async def started(stage: Stage) -> Program:
            save(tmp_path)
            write_workers(tmp_path, await stage.worker(response(b"one")), more='policy = "mine.py:First"')
            return await started_process()

        yield started


def save(folder: Path, version: str = "1", more: str = "") -> str:
    """Write the policy; return its version."""
    text = LOADED_AS.format(version=version, more=more)
    (folder / "mine.py").write_text(text)
    return digest(text)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


async def policy_of(program: Program) -> Any:
    return (await program.status())["policy"]


async def version_of(program: Program) -> str:
    """The version in all processes, which are the same."""
    policy = await policy_of(program)
    assert not policy["differs"]
    [file] = policy["files"]
    return str(file["version"])


async def put(program: Program, name: str) -> Any:
    return await program.ask(put_policy(name))


async def reload(program: Program, way: str) -> None:
    if way == "signal":
        program.signal(signal.SIGHUP)
        await program.line("balancer has reloaded$")
    else:
        assert (await program.ask(local(b"/-/reload", method=b"POST")))["problem"] is None


@pytest.mark.parametrize("way", ["signal", "request", "put"])
async def test_all_processes_have_the_version_that_one_has_read(
    start: StartConfigured, stage: Stage, tmp_path: Path, way: str
) -> None:
    """Also of a large file."""
    program = await start(stage)
    before = await version_of(program)
    expected = save(tmp_path, "2", f"{EACH_READS_ANOTHER}# {'é' * 400_000}")
    if way == "put":
        answer = await put(program, f"{tmp_path}/mine.py:First")
        assert (answer["files"][0]["version"], answer["differs"]) == (expected, False)
    else:
        await reload(program, way)
    assert await version_of(program) == expected != before
    reloads = (await program.status())["reload"]
    assert reloads == {"done": int(way != "put"), "refused": 0, "problem": None, "waiting": []}


@pytest.mark.parametrize("way", ["signal", "put", "none"])
async def test_process_that_is_started_later_has_the_version_in_force(
    start: StartConfigured, stage: Stage, tmp_path: Path, way: str
) -> None:
    """Whether the file was changed or broken meanwhile."""
    program = await start(stage)
    if way != "none":
        save(tmp_path, "2")
    if way == "signal":
        await reload(program, way)
    elif way == "put":
        await put(program, f"{tmp_path}/mine.py:First")
    in_force = await version_of(program)
    for text in ("class First(", LOADED_AS.format(version="3", more="")):
        (tmp_path / "mine.py").write_text(text)
        await restart_all(program, 3)
        assert await version_of(program) == in_force
    await reload(program, "request")
    assert await version_of(program) == digest(LOADED_AS.format(version="3", more=""))


async def test_broken_file_changes_no_process(start: StartConfigured, stage: Stage, tmp_path: Path) -> None:
    """One line of the log, or the answer, names file and line."""
    program = await start(stage)
    before = await version_of(program)
    path = tmp_path / "mine.py"
    path.write_text("\n1 / 0\n")
    problem = f"{path}:2: ZeroDivisionError: division by zero"
    assert (await put(program, f"{path}:First"))["error"] == problem
    assert (await program.ask(local(b"/-/reload", method=b"POST")))["error"].endswith(f"policy: {problem}")
    program.signal(signal.SIGHUP)
    line = (await program.line("ZeroDivisionError")).string
    assert (
        line == f"balancer keeps the configuration that it has: {tmp_path}/balancer.toml:1: policy: {problem}"
    )
    assert await version_of(program) == before
    assert (await program.status())["reload"]["refused"] == 2
    program.signal(signal.SIGTERM)
    assert await program.ended() == 0
    assert await program.rest() == ["balancer stopping: 0 in flight"]


async def test_process_in_which_the_file_fails_is_reported(
    start: StartConfigured, stage: Stage, tmp_path: Path
) -> None:
    """Code may fail in one process only; the status says that processes differ."""
    program = await start(stage)
    save(tmp_path, "2", f'os.open("{tmp_path}/once", os.O_CREAT | os.O_EXCL)')
    program.signal(signal.SIGHUP)
    problem = r"keeps the configuration that it has: .*policy: .*mine.py:4: FileExistsError"
    await program.line(f"balancer process 2 {problem}")
    await program.line(f"balancer process 3 {problem}")
    await program.line("balancer has reloaded$")
    document = await program.status()
    policy = document["policy"]
    assert policy["differs"]
    assert "  processes have different policies or versions; reload to make them equal" in lines_of(document)
    assert policy["files"][0]["version"].count(", ") == 1
    save(tmp_path, "3")
    await reload(program, "signal")
    assert not (await policy_of(program))["differs"]


async def test_changes_at_the_same_time_leave_all_processes_alike(
    start: StartConfigured, stage: Stage, tmp_path: Path
) -> None:
    """Whichever process carries out each of them."""
    program = await start(stage)
    for number in range(3):
        (tmp_path / f"other{number}.py").write_text(LOADED_AS.format(version=number, more=""))
    names = [f"{tmp_path}/other{number}.py:First" for number in range(3)]
    answers = await asyncio.gather(*(put(program, names[number % 3]) for number in range(24)))
    assert all("error" not in answer and not answer["differs"] for answer in answers)
    assert not (await policy_of(program))["differs"]


async def test_sighup_while_a_process_restarts_reloads_all(
    start: StartConfigured, stage: Stage, tmp_path: Path
) -> None:
    """The first process that serves reads the file."""
    program = await start(stage)
    pid = (await program.pids())[0]
    program.signal(signal.SIGKILL, pid)
    await program.line("started again")
    expected = save(tmp_path, "2")
    await reload(program, "signal")
    await eventually_true(partial(is_replaced, program, pid, 3))
    assert await version_of(program) == expected


async def test_change_waits_for_a_change_in_another_process(tmp_path: Path) -> None:
    """The lock ends with its holder, also if that fails."""
    one, other = (SiblingChannel(tmp_path / "channel", index, 2) for index in range(2))
    order: list[str] = []

    async def change(channel: SiblingChannel, name: str, fault: Exception | None = None) -> None:
        async with channel.turn():
            order.append(f"{name} begins")
            await asyncio.sleep(0)
            order.append(f"{name} ends")
            if fault is not None:
                raise fault

    changes = [change(one, "a", ValueError()), change(other, "b"), change(one, "c")]
    answers = await asyncio.gather(*changes, return_exceptions=True)
    assert [type(answer) for answer in answers] == [ValueError, type(None), type(None)]
    assert order[:2] == ["a begins", "a ends"]
    assert sorted([order[2:4], order[4:]]) == [["b begins", "b ends"], ["c begins", "c ends"]]
    assert list((tmp_path / "channel").iterdir()) == []
