"""Where the control plane listens: paths by port, their permissions, leftovers, and who takes them over."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from balancer.__main__ import cli
from balancer.admin.application import CLIENT_LIMIT
from balancer.admin.socket_path import found_socket, made_directory
from balancer.admin.sockets import bind_unix, open_admin_sockets
from balancer.config.admin import AdminConfig
from balancer.config.load import ConfigError, Settings
from balancer.errors import ListenFailed
from balancer.networks import unmapped
from tests.balancer.conftest import ScriptedWorker, Stage, get, response
from tests.balancer.programs import Program, Start, starting
from tests.balancer.test_admin import TOKEN
from tests.balancer.test_processes import are_two_without, eventually_true


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime directory for this test."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    return tmp_path / "steelyard"


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    async with starting() as start:
        yield start


def workers(worker: ScriptedWorker) -> list[str]:
    return ["--port", "0", "--worker", f"r=http://127.0.0.1:{worker.port}"]


async def run(*words: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, cli, list(words))


def silent(problem: str) -> None:
    raise AssertionError(problem)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- the path


async def test_only_this_user_may_connect(stage: Stage, runtime: Path) -> None:
    """The directory is 0700, the socket 0600, and both are gone or unused afterwards."""
    server = await stage.serve(await stage.worker(response()))
    path = Path(server.listening.admin.path)
    assert path == runtime / f"{server.address.port}.sock"
    assert (mode_of(runtime), mode_of(path)) == (0o700, 0o600)
    assert found_socket(f"http://localhost:{server.address.port}/x") == str(path)
    await server.stop()
    assert not os.listdir(runtime)
    stage.server = None


@pytest.mark.parametrize(
    "url", ["http://192.0.2.1:{}", "http://unit.example:{}", "unix:/x", "http://127.0.0.1:x", "nonsense"]
)
async def test_a_unit_elsewhere_has_no_socket_here(stage: Stage, runtime: Path, url: str) -> None:
    server = await stage.serve(await stage.worker(response()))
    assert found_socket(url.format(server.address.port)) is None


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o707])
def test_a_directory_that_others_may_enter_is_not_used(runtime: Path, mode: int) -> None:
    """Neither by the unit, which serves without a socket, nor by a client, which another user might have led there."""
    runtime.mkdir()
    runtime.chmod(mode)
    with socket.socket(socket.AF_UNIX) as planted:
        planted.bind(str(runtime / "8080.sock"))
        assert found_socket("http://127.0.0.1:8080") is None
    problems: list[str] = []
    assert open_admin_sockets(AdminConfig(), 8081, problems.append).unix is None
    (problem,) = problems
    assert (
        problem.startswith(f"admin.socket: cannot listen on {runtime / '8081.sock'}: ") or "0700" in problem
    )


def test_a_link_in_place_of_the_directory_is_not_followed(runtime: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    runtime.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError):
        made_directory()


def test_what_a_killed_program_left_is_replaced(tmp_path: Path) -> None:
    """A file that nothing listens on; a socket that answers is another unit's, and anything else is not ours."""
    path = str(tmp_path / "s")
    bind_unix(path).close()
    assert Path(path).is_socket()
    sock = bind_unix(path)
    with pytest.raises(OSError, match="another program"):
        bind_unix(path)
    sock.close()
    Path(path).unlink()
    Path(path).write_text("a file")
    with pytest.raises(OSError, match="in use"):
        bind_unix(path)
    assert Path(path).read_text() == "a file"


def test_a_path_that_is_configured_must_be_usable(tmp_path: Path) -> None:
    with pytest.raises(ListenFailed, match=r"admin\.socket: cannot listen on .*: No such file or directory"):
        open_admin_sockets(AdminConfig(socket=str(tmp_path / "none" / "s")), 8080, silent)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(
            ListenFailed, match=r"admin\.listen: cannot use 127\.0\.0\.1:\d+: Address already in use"
        ):
            open_admin_sockets(AdminConfig(socket=str(tmp_path / "s"), listen=listen), 8080, silent)


def test_a_socket_of_a_later_unit_is_left_alone(tmp_path: Path) -> None:
    """One that has put its own in the place of ours."""
    path = tmp_path / "s"
    first = open_admin_sockets(AdminConfig(socket=str(path)), 8080, silent)
    path.unlink()
    second = open_admin_sockets(AdminConfig(socket=str(path)), 8080, silent)
    first.remove()
    assert path.is_socket()
    second.remove()
    assert not path.exists()
    first.close()
    second.close()


@pytest.mark.parametrize(
    ("control", "problem"),
    [
        ({"listen": "0.0.0.0:9180"}, "admin: listen: 0.0.0.0:9180 can be reached from other machines"),
        ({"listen": "example.org:80"}, "admin: listen: example.org:80 can be reached from other machines"),
        ({"listen": "127.0.0.1"}, "admin.listen: must be host:port"),
        ({"socket": "relative"}, "admin.socket: must be auto, off or an absolute path, got 'relative'"),
        ({"socket": "/" + "x" * 107}, "admin.socket: must have at most 107 bytes"),
        ({"socket": "/a\0b"}, "admin.socket: must be auto, off or an absolute path"),
        ({"token": "short"}, "admin.token"),
        ({"token": "with a space in the middle"}, "admin.token: must be printable ASCII without spaces"),
        ({"token": "sixteen-and-more-ü"}, "admin.token: must be printable ASCII without spaces"),
    ],
)
def test_mistakes(tmp_path: Path, control: dict[str, str], problem: str) -> None:
    from balancer.configuration import load

    file = tmp_path / "balancer.toml"
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in control.items())
    file.write_text(f'[[endpoints]]\nid = "a"\naddress = "http://a:1"\n[admin]\n{lines}\n')
    with pytest.raises(ConfigError) as caught:
        load(file, {})
    assert str(caught.value).startswith(problem)
    assert TOKEN not in str(caught.value)


def test_any_address_may_be_used_with_a_token() -> None:
    assert AdminConfig(listen="0.0.0.0:9180", token=TOKEN).listen == "0.0.0.0:9180"  # type: ignore[arg-type]


# --- commands


async def test_status_and_control_find_it(stage: Stage, runtime: Path) -> None:
    """By the port, by the path, and with the token where it needs one."""
    server = await stage.serve(await stage.worker(response()))
    await stage.ask(get())
    url, path = f"http://{server.address}", server.listening.admin.path
    for proxy in (url, f"unix:{path}"):
        ran = await run("status", "--url", proxy)
        assert ran.exit_code == 0, ran.output
        assert "policy round-robin, fallback picks 0" in ran.output
        assert "requests 1, retried 0, errors: none" in ran.output
        assert json.loads((await run("status", "--json", "--url", proxy)).output)["requests"] == 1
    ran = await run("admin", "put", "policy", "random", "--url", url)
    assert (ran.exit_code, json.loads(ran.output)["name"]) == (0, "random")
    ran = await run("admin", "put", "/-/policy", '{"name": "p2x"}', "--url", url)
    assert (ran.exit_code, "unknown policy 'p2x'" in ran.output) == (1, True)
    await stage.reload(admin={"token": TOKEN})
    ran = await run("status", "--url", url)
    assert ran.exit_code == 1
    assert "--url: no control plane at" in ran.output
    assert (await run("status", "--url", url, "--token", TOKEN)).exit_code == 0


async def test_without_a_socket_the_token_serves(stage: Stage, runtime: Path) -> None:
    """Over the traffic port, as from another machine."""
    server = await stage.serve(await stage.worker(response()), admin={"socket": "off", "token": TOKEN})
    assert (server.listening.admin.unix, list(runtime.parent.iterdir())) == (None, [])
    url = f"http://{server.address}"
    assert (await run("endpoints", "--url", url, "list")).exit_code == 1
    assert (await run("endpoints", "--url", url, "--token", TOKEN, "list")).exit_code == 0


async def test_where_it_listens_waits_for_the_next_start(stage: Stage) -> None:
    await stage.serve(await stage.worker(response()))
    await stage.reload(admin={"socket": "off", "listen": "127.0.0.1:0"})
    assert stage.control_plane.reload_counts.waiting == ("admin.socket", "admin.listen")


# --- its address


async def test_the_address_is_bounded_like_any_other(stage: Stage) -> None:
    """Heads have their time, bodies are not kept, nothing is forwarded, and there is room for so many at a time."""
    worker = await stage.worker(response())
    await stage.serve(worker, admin={"listen": "127.0.0.1:0", "token": TOKEN})
    client = await stage.listen_client()
    assert (await client.ask(get(b"/work"))).status == 404
    assert worker.connections == []
    await client.close()
    slow = await stage.listen_client()
    await slow.send(b"GET /-/status HTTP/1.1\r\nHost:")
    await stage.eventually(lambda: any(client.head_at for client in stage.proxy.downstreams))
    stage.advance(stage.proxy.timeouts.head + 1)
    assert (await slow.response()).status == 408
    await slow.close()
    await stage.eventually(lambda: not stage.proxy.downstreams)
    clients = [await stage.listen_client() for _ in range(CLIENT_LIMIT)]
    await stage.eventually(lambda: len(stage.proxy.downstreams) == CLIENT_LIMIT)
    with pytest.raises(ConnectionError):
        await (await stage.listen_client()).ask(get(b"/-/live"))
    await clients.pop().close()
    await stage.eventually(lambda: len(stage.proxy.downstreams) < CLIENT_LIMIT)
    assert (await (await stage.listen_client()).ask(get(b"/-/live"))).status == 200


# --- processes and programs


@pytest.mark.second_tier
async def test_several_processes_share_it(start: Start, stage: Stage, runtime: Path) -> None:
    """One socket for the unit; it stays when one of them is killed, and goes with the unit."""
    program = await start(*workers(await stage.worker(response())), "--processes", "2")
    assert os.listdir(runtime) == [f"{program.port}.sock"]
    killed, _ = await program.pids()
    program.signal(signal.SIGKILL, killed)
    await program.line("started again")
    await eventually_true(lambda: are_two_without(program, killed))
    program.signal(signal.SIGTERM)
    assert await program.ended() == 0
    assert not os.listdir(runtime)


@pytest.mark.second_tier
@pytest.mark.parametrize("processes", ["1", "2"])
async def test_it_is_handed_over_with_the_port(
    start: Start, stage: Stage, runtime: Path, processes: str
) -> None:
    """The successor answers on the same path and address, without a gap; the last one takes the path along."""
    program = await start(
        *workers(await stage.worker(response())),
        *("--processes", processes),
        BALANCER_ADMIN__LISTEN="127.0.0.1:0",
    )
    path = runtime / f"{program.port}.sock"
    inode, before = os.stat(path).st_ino, await pid_of(program)
    program.signal(signal.SIGUSR2)
    successor = await program.replaced()
    assert await program.ended() == 0
    assert os.stat(path).st_ino == inode
    assert await pid_of(program) != before
    os.kill(successor, signal.SIGTERM)
    await program.rest()
    assert not os.listdir(runtime)


async def pid_of(program: Program) -> Any:
    return (await program.status())["pid"]


# --- IPv4 peers of a socket for IPv6


async def test_an_ipv4_client_of_an_ipv6_socket(stage: Stage) -> None:
    """It is told to the worker, and trusted, by its IPv4 address; the probe finds it ready."""
    worker = await stage.worker(response())
    await stage.serve(worker, listen="[::]:0", trusted_proxies=["127.0.0.1/32"])
    client = await stage.client(host="127.0.0.1")
    assert (await client.ask(get())).status == 200
    assert worker.requests[0].value(b"X-Forwarded-For") == b"127.0.0.1"
    assert (await client.ask(get(b"/", b"X-Forwarded-For: 192.0.2.9"))).status == 200
    assert worker.requests[1].value(b"X-Forwarded-For") == b"192.0.2.9, 127.0.0.1"
    assert (await client.ask(get(b"/-/health"))).status == 200


@pytest.mark.parametrize(
    ("address", "plain"),
    [
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("::ffff:c000:201", "192.0.2.1"),
        ("::1", "::1"),
        ("192.0.2.1", "192.0.2.1"),
        ("fe80::1%eth0", "fe80::1%eth0"),
    ],
)
def test_mapped_addresses(address: str, plain: str) -> None:
    assert unmapped(address) == plain


def test_settings_have_it() -> None:
    endpoints = [{"id": "a", "address": "http://a:1"}]
    assert Settings(endpoints=endpoints, admin={"socket": "/x/y"}).admin.socket == "/x/y"  # type: ignore[arg-type]
