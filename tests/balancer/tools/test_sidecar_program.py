"""`balancer sidecar` as a program: output, bad arguments, reload, exit."""

from __future__ import annotations

import re
import signal
from asyncio import timeout
from asyncio.subprocess import Process
from pathlib import Path

import pytest

from balancer.__main__ import main
from tests.support.command_line import complaint
from tests.support.programs import PATIENCE, Run
from tests.support.stage import Stage
from tests.support.wire import client_of, get, response

pytestmark = pytest.mark.second_tier

SIDECAR = ("sidecar", "--listen", "127.0.0.1:0")


async def line_of(process: Process) -> str:
    assert process.stdout is not None
    async with timeout(PATIENCE):
        return (await process.stdout.readline()).decode()


async def port_of(process: Process) -> int:
    line = await line_of(process)
    found = re.fullmatch(r"balancer sidecar ready on http://127\.0\.0\.1:(\d+) \((\d) origins?\)\n", line)
    assert found is not None, line
    return int(found[1])


async def test_origins_from_the_command_line(run: Run, stage: Stage) -> None:
    a, b = await stage.worker(response(b"a")), await stage.worker(response(b"b"))
    words = [f"--origin={name}=http://127.0.0.1:{worker.port}" for name, worker in (("a", a), ("b", b))]
    process = await run(*SIDECAR, *words)
    client = await client_of(await port_of(process))
    for name in (b"a", b"b"):
        answer = await client.ask(get(b"/%b/x" % name).replace(b"example.org", b"localhost"))
        assert (answer.body, answer.status) == (name, 200)
    process.send_signal(signal.SIGTERM)
    assert await process.communicate() == (b"balancer stopping: 0 in flight\n", b"")
    assert process.returncode == 0
    await client.close()


async def test_sighup_reloads_the_file(run: Run, stage: Stage, tmp_path: Path) -> None:
    """A bad file is reported in one line and changes nothing."""
    worker = await stage.worker(response(b"here"))
    path = tmp_path / "sidecar.toml"
    row = f'[[origins]]\nname = "a"\nurl = "http://127.0.0.1:{worker.port}"\nhost = "%s"\n'
    path.write_text(row % "a.org")
    process = await run(*SIDECAR, "--config", str(path))
    client = await client_of(await port_of(process))
    assert (await client.ask(get().replace(b"example.org", b"a.org"))).body == b"here"
    path.write_text(row % "a b")
    process.send_signal(signal.SIGHUP)
    assert "origins.0.host" in await line_of(process)
    path.write_text(row % "b.org")
    process.send_signal(signal.SIGHUP)
    assert await line_of(process) == "balancer has reloaded\n"
    assert (await client.ask(get().replace(b"example.org", b"b.org"))).body == b"here"
    await client.close()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ((), "origins: "),
        (("--origin", "a.org"), "--origin: must be https://host"),
        (("--origin", "ftp://a.org"), "origins.0.url"),
        (("--origin", "https://a.org/v1"), "origins.0.url"),
        (("--origin", "a b=https://a.org"), "origins.0.name"),
        (("--origin", "https://a.org", "--listen", "0.0.0.0:1"), "allow_remote = true"),
        (("--origin", "https://a.org", "--listen", "nowhere"), "listen: must be host:port"),
        (("--config", "/nonexistent.toml"), "/nonexistent.toml"),
    ],
)
def test_bad_arguments_exit_with_2(words: tuple[str, ...], named: str) -> None:
    line = complaint(main, "balancer", "sidecar", *words)
    assert line.startswith("balancer: ")
    assert named in line
