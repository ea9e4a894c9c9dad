"""Listeners of programs: a hot restart passes them on, several processes share them, systemd opens them."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import stat
from functools import partial
from pathlib import Path

import pytest

from balancer.control.admin.socket_path import found_socket
from tests.support.programs import Load, Program, Start
from tests.support.scripts import patient
from tests.support.stage import Stage
from tests.support.wire import Wire, get

pytestmark = pytest.mark.second_tier


async def configured(stage: Stage, path: Path, listeners: str) -> list[str]:
    """Write a configuration with a cluster for the listeners; return the arguments for it."""
    main, api = [(await stage.worker(patient(name))).port for name in (b"main", b"api")]
    path.write_text(  # noqa: ASYNC240 - a few lines
        f'listen = "127.0.0.1:0"\n[[endpoints]]\nid = "a"\naddress = "http://127.0.0.1:{main}"\n'
        f'[clusters.api]\nendpoints = [{{ id = "b", address = "http://127.0.0.1:{api}" }}]\n{listeners}'
    )
    return ["--config", str(path)]


def addresses(program: Program) -> list[str]:
    """The addresses in the ready line."""
    line = next(line for line in program.lines if " ready on " in line)
    return re.findall(r"(?:http://|unix:)(\S+)", line)


async def connected(address: str) -> Wire:
    if address.startswith("/"):
        return Wire(*await asyncio.open_unix_connection(address))
    return Wire(*await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2])))


async def bodies_at(addresses: list[str]) -> list[bytes]:
    bodies = []
    for address in addresses:
        wire = await connected(address)
        bodies.append((await wire.ask(get())).body)
        await wire.close()
    return bodies


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_restart_under_load_fails_no_request(
    start: Start, stage: Stage, tmp_path: Path, processes: str
) -> None:
    """The new program serves all addresses, and is replaced in the same way; the file of the Unix socket gets its mode,
    and goes with the last program that has the listener. The admin socket stays."""
    path, removed = tmp_path / "web.sock", tmp_path / "removed.sock"
    of_first = f'[listeners.removed]\nlisten = "unix:{removed}"\n'
    listeners = (
        f'{of_first}[listeners.unix]\nlisten = "unix:{path}"\n'
        '[listeners.api]\nlisten = "127.0.0.1:0"\ncluster = "api"\n'
        '[listeners.other]\nlisten = "127.0.0.1:0"\n'
    )
    arguments = await configured(stage, tmp_path / "balancer.toml", listeners)
    program = await start(*arguments, "--processes", processes)
    admin = found_socket(f"http://127.0.0.1:{program.port}") or ""
    inode = os.stat(admin).st_ino
    found = [each for each in addresses(program) if each != str(removed)]
    loads = [Load(program, 1, client=partial(connected, address)) for address in found]
    await loads[0].answers(50)
    config = tmp_path / "balancer.toml"
    text = config.read_text().replace(f'"unix:{path}"', f'"unix:{path}"\nmode = "622"')
    config.write_text(text.replace(of_first, ""))
    program.signal(signal.SIGUSR2)
    successor = await program.replaced()
    assert stat.S_IMODE(path.stat().st_mode) == 0o622
    assert await program.ended() == 0
    assert (path.exists(), removed.exists()) == (True, False)
    await loads[0].answers(50)
    program.signal(signal.SIGUSR2, successor)
    last = await program.replaced()
    for load in loads:
        await load.answers(50)
        assert await load.end() == []
    assert (found[1], await bodies_at(found)) == (str(path), [b"main", b"main", b"api", b"main"])
    assert (os.stat(admin).st_ino, (await program.status())["pid"]) == (inode, last)
    program.signal(signal.SIGTERM, last)
    assert "balancer stopping: 0 in flight" in await program.rest()
    for removed_at_the_end in (path, admin):
        with pytest.raises(FileNotFoundError):
            os.stat(removed_at_the_end)


async def test_socket_activation(start: Start, stage: Stage, tmp_path: Path) -> None:
    """A socket named after a listener is for that, the other one for `listen`."""
    arguments = await configured(
        stage, tmp_path / "balancer.toml", '[listeners.api]\nlisten = "127.0.0.1:1"\ncluster = "api"\n'
    )
    opened = "socket.create_server(('127.0.0.1', 0)).detach()"
    program = await start(
        *arguments,
        launcher="import os, socket, sys; "
        f"[os.dup2({opened}, 10 + at) for at in (0, 1)]; [os.dup2(10 + at, 3 + at) for at in (0, 1)]; "
        "os.environ['LISTEN_PID'] = str(os.getpid())",
        LISTEN_FDS="2",
        LISTEN_FDNAMES="api:steelyard.socket",
    )
    assert await bodies_at(addresses(program)) == [b"main", b"api"]
    program.signal(signal.SIGTERM)
    assert await program.ended() == 0
