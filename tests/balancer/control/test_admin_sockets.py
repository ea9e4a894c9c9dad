"""Listening sockets of the admin interface: paths by port, permissions, stale sockets, hand-over."""

from __future__ import annotations

import json
import os
import shlex
import socket
import stat
import tempfile
from pathlib import Path

import pytest
from click import UsageError

from balancer.__main__ import main
from balancer.config.schema.admin import AdminConfig
from balancer.control.admin.application import CLIENT_LIMIT
from balancer.control.admin.client import default_url
from balancer.control.admin.socket_path import found_socket, made_directory, open_admin_sockets
from balancer.downstream.listening_sockets import bind_unix, remove_unix
from balancer.errors import ListenFailed
from balancer.syntax.networks import unmapped
from tests.support.admin_requests import TOKEN
from tests.support.command_line import run_balancer, run_in_process
from tests.support.stage import Stage
from tests.support.wire import get, response


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of sockets of a user for whom no other balancer runs."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / "steelyard"


def silent(problem: str) -> None:
    raise AssertionError(problem)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- the path


async def test_permissions_of_the_socket(stage: Stage, runtime: Path) -> None:
    """The directory is 0700, the socket 0600; the socket is removed on stop."""
    server = await stage.serve(await stage.worker(response()))
    path = Path(server.listening.admin.path)
    assert path == runtime / f"{server.address.port}.sock"
    assert (mode_of(runtime), mode_of(path)) == (0o700, 0o600)
    assert found_socket(f"http://localhost:{server.address.port}/x") == str(path)
    await server.stop()
    assert not os.listdir(runtime)
    stage.server = None


@pytest.mark.parametrize(
    "url", ["http://192.0.2.1:{}", "http://balancer.example:{}", "unix:/x", "http://127.0.0.1:x", "nonsense"]
)
async def test_no_socket_for_a_remote_url(stage: Stage, runtime: Path, url: str) -> None:
    server = await stage.serve(await stage.worker(response()))
    assert found_socket(url.format(server.address.port)) is None


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o707])
def test_directory_accessible_to_others_is_not_used(runtime: Path, mode: int) -> None:
    """The balancer serves without a socket, and clients ignore one there, which another user may have created."""
    runtime.mkdir()
    runtime.chmod(mode)
    with socket.socket(socket.AF_UNIX) as planted:
        planted.bind(str(runtime / "8080.sock"))
        planted.listen()
        assert found_socket("http://127.0.0.1:8080") is None
    problems: list[str] = []
    assert open_admin_sockets(AdminConfig(), 8081, problems.append).unix is None
    (problem,) = problems
    assert (
        problem.startswith(f"admin.socket: cannot listen on {runtime / '8081.sock'}: ") or "0700" in problem
    )


def test_socket_of_a_killed_balancer_is_not_used(runtime: Path) -> None:
    """Nothing listens on it, and another program may serve the port by now."""
    runtime.mkdir(mode=0o700)
    path, url = str(runtime / "8080.sock"), "http://127.0.0.1:8080"
    with bind_unix(path):
        assert found_socket(url) == path
    assert Path(path).is_socket()
    assert found_socket(url) is None


def test_only_balancer_of_this_user_is_found(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One at the default port comes first; of several others, a URL must say which."""
    monkeypatch.delenv("PORT", raising=False)
    runtime.mkdir(mode=0o700)
    paths = {port: str(runtime / f"{port}.sock") for port in ("8080", "8081", "8082")}
    assert default_url() == "http://127.0.0.1:8080"
    with bind_unix(paths["8081"]):
        assert default_url() == f"unix:{paths['8081']}"
        with bind_unix(paths["8082"]), pytest.raises(UsageError, match="one of 8081, 8082"):
            default_url()
        with bind_unix(paths["8080"]):
            assert default_url() == "http://127.0.0.1:8080"


def test_command_line_is_read_before_a_balancer_is_chosen(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Help needs none, and what is wrong with the command is said first."""
    monkeypatch.delenv("PORT", raising=False)
    runtime.mkdir(mode=0o700)
    with bind_unix(str(runtime / "8081.sock")), bind_unix(str(runtime / "8082.sock")):
        for words, code, said in (
            ("endpoints drain --help", 0, "Usage: balancer endpoints drain [OPTIONS] NAME"),
            ("endpoints list --url http://127.0.0.1:8081", 2, "balancer: No such option"),
            ("endpoints list", 2, "balancer: --url: say which balancer"),
            ("status", 2, "balancer: --url: say which balancer"),
            ("endpoints --url '' list", 2, "balancer: --url: no answer from : must be http://host:port"),
            ("status --url ''", 2, "balancer: --url: no answer from : must be http://host:port"),
            ("endpoints weight a x", 2, "balancer: Invalid value for 'WEIGHT': 'x' is not a number"),
            ("endpoints drain ''", 2, "balancer: NAME must not be empty"),
            ("endpoints weight a 1_0", 2, "balancer: Invalid value for 'WEIGHT': '1_0' is not a number"),
        ):
            done = run_in_process(main, "balancer", *shlex.split(words))
            assert (done.returncode, said in done.stdout + done.stderr) == (code, True), (words, done)


def test_symbolic_link_as_directory_is_not_followed(runtime: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    runtime.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError):
        made_directory()


def test_stale_socket_is_replaced(tmp_path: Path) -> None:
    """A stale socket file is replaced; a socket that answers or another kind of file is not."""
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


def test_unusable_configured_address_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ListenFailed, match=r"admin\.socket: .*No such file or directory"):
        open_admin_sockets(AdminConfig(socket=str(tmp_path / "none" / "s")), 8080, silent)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ListenFailed, match=r"admin\.listen: .*Address already in use"):
            open_admin_sockets(AdminConfig(socket=str(tmp_path / "s"), listen=listen), 8080, silent)


def test_socket_of_a_later_process_is_kept(tmp_path: Path) -> None:
    """A socket that a later process has bound at the same path is not removed."""
    path = tmp_path / "s"
    first = open_admin_sockets(AdminConfig(socket=str(path)), 8080, silent)
    path.unlink()
    second = open_admin_sockets(AdminConfig(socket=str(path)), 8080, silent)
    remove_unix(first.path, first.inode)
    assert path.is_socket()
    remove_unix(second.path, second.inode)
    assert not path.exists()
    first.close()
    second.close()


def test_any_address_is_allowed_with_a_token() -> None:
    assert AdminConfig(listen="0.0.0.0:9180", token=TOKEN).listen == "0.0.0.0:9180"  # type: ignore[arg-type]


# --- commands


async def test_commands_find_the_socket(stage: Stage, runtime: Path) -> None:
    """Found by port, by path, and with the token where it is required."""
    server = await stage.serve(await stage.worker(response()))
    await stage.ask(get())
    url, path = f"http://{server.address}", server.listening.admin.path
    for cluster in (url, f"unix:{path}"):
        ran = await run_balancer("status", "--url", cluster)
        assert ran.exit_code == 0, ran.output
        assert "policy round-robin, fallback picks 0" in ran.output
        assert "requests 1, retried 0, errors: none" in ran.output
        assert json.loads((await run_balancer("status", "--json", "--url", cluster)).output)["requests"] == 1
    ran = await run_balancer("admin", "put", "policy", "random", "--url", url)
    assert (ran.exit_code, json.loads(ran.output)["name"]) == (0, "random")
    ran = await run_balancer("admin", "put", "/-/policy", '{"name": "p2x"}', "--url", url)
    assert (ran.exit_code, "unknown policy 'p2x'" in ran.output) == (1, True)
    await stage.reload(admin={"token": TOKEN})
    ran = await run_balancer("status", "--url", url)
    assert ran.exit_code == 1
    assert "needs the admin.token of its balancer; see --token" in ran.output
    assert (await run_balancer("status", "--url", url, "--token", TOKEN)).exit_code == 0


async def test_token_without_a_socket(stage: Stage, runtime: Path) -> None:
    """Over the traffic port."""
    server = await stage.serve(await stage.worker(response()), admin={"socket": "off", "token": TOKEN})
    assert (server.listening.admin.unix, list(runtime.parent.iterdir())) == (None, [])
    url = f"http://{server.address}"
    assert (await run_balancer("endpoints", "--url", url, "list")).exit_code == 1
    assert (await run_balancer("endpoints", "--url", url, "--token", TOKEN, "list")).exit_code == 0


async def test_changed_addresses_need_a_restart(stage: Stage) -> None:
    await stage.serve(await stage.worker(response()))
    await stage.reload(admin={"socket": "off", "listen": "127.0.0.1:0"})
    assert stage.control_plane.reload_counts.waiting == ("admin.socket", "admin.listen")


# --- admin.listen


async def test_limits_of_admin_listen(stage: Stage) -> None:
    """Head timeout, unbuffered bodies, no forwarding, and a limit of clients."""
    worker = await stage.serve_worker(response(), admin={"listen": "127.0.0.1:0", "token": TOKEN})
    client = await stage.listen_client()
    assert (await client.ask(get(b"/work"))).status == 404
    assert worker.connections == []
    await client.close()
    slow = await stage.listen_client()
    await slow.send(b"GET /-/status HTTP/1.1\r\nHost:")
    await stage.eventually(lambda: any(stage.heads_begun()))
    stage.advance(stage.cluster.timeouts.head + 1)
    assert (await slow.response()).status == 408
    await slow.close()
    await stage.eventually(lambda: not stage.downstreams)


@pytest.mark.parametrize("sent", [b"", b"GET /-/status HTTP/1.1\r\nHost:"], ids=["silent", "slow"])
async def test_clients_that_ask_nothing_keep_no_others_out(stage: Stage, sent: bytes) -> None:
    """At the limit the oldest gives way; the others last as long as a head may take, and not as an idle connection."""
    await stage.serve(await stage.worker(response()), admin={"listen": "127.0.0.1:0", "token": TOKEN})
    clients = [await stage.listen_client() for _ in range(CLIENT_LIMIT)]
    for client in clients:
        if sent:
            await client.send(sent)
    await stage.eventually(lambda: len(stage.downstreams) == CLIENT_LIMIT)
    for _ in range(3):
        holder = await stage.listen_client()
        assert (await holder.ask(get(b"/-/live"))).status == 200
        await holder.close()
    await stage.eventually(lambda: len(stage.downstreams) < CLIENT_LIMIT)
    stage.advance(stage.cluster.timeouts.head + 1)
    if sent:
        assert (await clients[-1].response()).status == 408
        stage.advance(stage.cluster.timeouts.linger + 1)
    await stage.eventually(lambda: not stage.downstreams)


# --- IPv4 peers of a socket for IPv6


async def test_ipv4_client_of_an_ipv6_socket(stage: Stage) -> None:
    """Forwarding fields, trust and probes use its IPv4 address."""
    worker = await stage.serve_worker(response(), listen="[::]:0", trusted_proxies=["127.0.0.1/32"])
    client = await stage.client(host="127.0.0.1")
    assert (await client.ask(get())).status == 200
    assert worker.requests[0].value(b"X-Forwarded-For") == b"127.0.0.1"
    assert (await client.ask(get(b"/", b"X-Forwarded-For: 192.0.2.9"))).status == 200
    assert worker.requests[1].value(b"X-Forwarded-For") == b"192.0.2.9, 127.0.0.1"
    assert (await client.ask(get(b"/-/health"))).status == 200


def test_unmapped_addresses() -> None:
    mapped = {"::ffff:192.0.2.1": "192.0.2.1", "::ffff:c000:201": "192.0.2.1"}
    plain = {address: address for address in ("::1", "192.0.2.1", "fe80::1%eth0")}
    assert {address: unmapped(address) for address in mapped | plain} == mapped | plain
