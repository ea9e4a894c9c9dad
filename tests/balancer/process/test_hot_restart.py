"""Hot restart: a new program takes over the listening socket while the old one drains; no request fails."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from functools import partial
from pathlib import Path

import pytest

from balancer.errors import ListenFailed
from balancer.process.socket_handover import LISTENING, Inherited
from tests.support.programs import Program, Start, eventually_true, workers
from tests.support.scripts import holding
from tests.support.stage import Stage
from tests.support.wire import Wire, get, response

pytestmark = pytest.mark.second_tier


async def test_idle_connections_close_with_their_next_response(start: Start, stage: Stage) -> None:
    """An idle connection is closed with its next response, not under a request."""
    program = await start(*workers(await stage.worker(response())))
    client, fresh = await program.client(), await program.client()
    assert (await client.ask(get())).value(b"Connection") is None
    program.signal(signal.SIGUSR2)
    successor = await program.replaced()
    await program.line("balancer stopping")
    for wire in (client, fresh):
        answer = await wire.ask(get())
        assert (answer.status, answer.value(b"Connection")) == (200, b"close")
        assert await wire.rest() == b""
        await wire.close()
    assert await program.ended() == 0
    program.signal(signal.SIGTERM, successor)
    await program.rest()


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_old_program_passes_sighup_on(start: Start, stage: Stage, processes: str) -> None:
    """While it finishes a request."""
    go = asyncio.Event()
    program = await start(*workers(await holding(stage, go)), "--processes", processes)
    slow = await program.client()
    await slow.send(get())
    await eventually_true(partial(has_in_flight, program))
    program.signal(signal.SIGUSR2)
    successor = await program.replaced()
    await program.line("balancer stopping: 1 in flight")
    program.signal(signal.SIGHUP)
    await program.line("^balancer has reloaded$")
    await eventually_true(partial(has_reloaded, program))  # an old process may still answer
    go.set()
    assert (await slow.response()).status == 200
    await slow.close()
    program.signal(signal.SIGTERM, successor)
    await program.rest()


async def has_reloaded(program: Program) -> bool:
    return bool((await program.status())["reload"]["done"])


async def has_in_flight(program: Program) -> bool:
    return bool((await program.status())["in_flight"])


async def test_old_program_finishes_requests_in_flight(start: Start, stage: Stage) -> None:
    """The old program finishes its request while the new one serves others."""
    go = asyncio.Event()

    async def script(wire: Wire) -> None:
        request = await wire.request()
        if b"/slow" in request.line:
            await go.wait()
        await wire.send(response(request.line.split(b" ")[1]))

    program = await start(*workers(await stage.worker(script)))
    slow = await program.client()
    await slow.send(get(b"/slow"))
    program.signal(signal.SIGUSR2)
    successor = await program.replaced()
    await program.line("balancer stopping: 1 in flight")
    quick = await program.client()
    assert (await quick.ask(get(b"/quick"))).body == b"/quick"
    go.set()
    assert (await slow.response()).body == b"/slow"
    assert await program.ended() == 0
    program.signal(signal.SIGTERM, successor)
    await program.rest()
    for wire in (slow, quick):
        await wire.close()


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_failed_start_of_the_new_program(
    start: Start, stage: Stage, tmp_path: Path, processes: str
) -> None:
    """The error is printed, the old program goes on, and a later restart succeeds."""
    worker = await stage.worker(response())
    path = tmp_path / "balancer.toml"
    good = f'listen = "127.0.0.1:0"\n[[endpoints]]\nid = "a"\naddress = "http://127.0.0.1:{worker.port}"\n'
    path.write_text(good)
    program = await start("--config", str(path), "--processes", processes)
    path.write_text("listen = 1\n")
    program.signal(signal.SIGUSR2)
    await program.line("balancer goes on")
    assert any(line.startswith(f"balancer: {path}:1: listen: ") for line in program.lines), program.lines
    client = await program.client()
    assert (await client.ask(get())).status == 200
    path.write_text(good)
    program.signal(signal.SIGUSR2)
    successor = await program.replaced()
    await program.asked_until_closed(client)
    assert await program.ended() == 0
    program.signal(signal.SIGTERM, successor)
    await program.rest()


async def test_socket_activation(start: Start, stage: Stage) -> None:
    """LISTEN_FDS takes precedence over `listen`."""
    worker = await stage.worker(response(b"here"))
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        program = await start(
            *workers(worker),
            launcher=f"import os, sys; os.dup2({sock.fileno()}, 3); os.environ['LISTEN_PID'] = str(os.getpid())",
            descriptor=sock.fileno(),
            LISTEN_FDS="1",
        )
    assert program.port == port
    client = await program.client()
    assert (await client.ask(get())).body == b"here"
    program.signal(signal.SIGTERM)
    assert await program.ended() == 0
    await client.close()


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_systemd_is_notified(
    start: Start, stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: str
) -> None:
    """Once when the first program listens, and of the main process when the next one has taken over."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        program = await start(*workers(await stage.worker(response())), "--processes", processes)
        loop = asyncio.get_running_loop()
        assert await loop.sock_recv(systemd, 99) == b"READY=1"
        program.signal(signal.SIGUSR2)
        successor = await program.replaced()
        assert await loop.sock_recv(systemd, 99) == b"MAINPID=%d" % successor
        assert await program.ended() == 0
        program.signal(signal.SIGTERM, successor)
        await program.rest()
        with pytest.raises(BlockingIOError):
            systemd.recv(99)


def test_several_activation_sockets_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
    monkeypatch.setenv("LISTEN_FDS", "2")
    with pytest.raises(ListenFailed, match=r"LISTEN_FDS: .*2"):
        Inherited()


def test_activation_sockets_of_another_process_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """LISTEN_PID of another process: the sockets are ignored and the variables are not passed on."""
    monkeypatch.setenv("LISTEN_PID", str(os.getpid() + 1))
    monkeypatch.setenv("LISTEN_FDS", "1")
    assert Inherited().traffic("127.0.0.1:0") is None
    assert "LISTEN_FDS" not in os.environ


def test_descriptor_must_be_a_listening_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    for descriptor in (os.dup(0), os.dup(socket.socket().detach())):
        monkeypatch.setenv(LISTENING, f"{descriptor} 127.0.0.1:0")
        with pytest.raises(ListenFailed, match=f"descriptor {descriptor}: "):
            Inherited()


def test_inherited_socket_for_another_address_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """If `listen` names another address than the inherited socket, that address is bound."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        for listen, is_taken in (("127.0.0.1:1", False), ("127.0.0.1:0", True)):
            monkeypatch.setenv(LISTENING, f"{os.dup(sock.fileno())} 127.0.0.1:0")
            inherited = Inherited()
            taken = inherited.traffic(listen)
            inherited.close()
            assert (taken is not None) == is_taken
            if taken is not None:
                taken.close()
