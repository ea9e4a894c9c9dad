"""What active checks ask: another Host, further fields, another port."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from balancer.__main__ import main
from balancer.config.schema.health import HealthChecksConfig
from tests.support.certificates import Shelf
from tests.support.command_line import run_in_process
from tests.support.config_files import ENDPOINT
from tests.support.documentation import EXAMPLE
from tests.support.grpc_plays import ending, serve_grpc
from tests.support.scripted_transports import TRANSPORTS, Play, hello, over, values
from tests.support.scripts import check, check_results
from tests.support.stage import Stage, endpoint
from tests.support.tables import shown
from tests.support.wire import ScriptedWorker, answering, get, response

ASKED: dict[str, Any] = {
    "host": "app.example.org",
    "fields": {"Authorization": "Bearer s3cr3t", "user-agent": "mine"},
}
CHECK_KEYS = [name for name in HealthChecksConfig.model_fields if name not in ("path", "grpc")]
FAILING = response(b"no", status=b"503 No")


async def test_host_and_fields(stage: Stage) -> None:
    """A field replaces the check's own one; requests have nothing of it."""
    worker = await stage.serve_worker(response(), health_checks={"path": "/up", **ASKED})
    stage.advance(0.0)
    await check(stage)
    assert (await stage.ask(get())).status == 200
    asked, request = worker.requests
    assert [(name.lower(), value) for name, value in asked.fields] == [
        (b"host", b"app.example.org"),
        (b"accept", b"*/*"),
        (b"authorization", b"Bearer s3cr3t"),
        (b"user-agent", b"mine"),
    ]
    assert request.values(b"Authorization") == []


async def test_host_and_fields_by_grpc(stage: Stage) -> None:
    (plays,) = await serve_grpc(stage, ending(0), health_checks={"grpc": "shop", **ASKED})
    stage.advance(0.0)
    await check(stage)
    found = {name: values(plays[0].fields, name) for name in (b"host", b"authorization", b"user-agent")}
    assert found == {
        b"host": [b"app.example.org"],
        b"authorization": [b"Bearer s3cr3t"],
        b"user-agent": [b"mine"],
    }


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_port(stage: Stage, transport: str) -> None:
    """Each check has a connection of its own there, which nothing keeps, in HTTP/1.1 whatever the endpoint speaks."""
    plays: list[Play] = []
    other = await stage.start(over("native", hello, plays))
    worker = await stage.worker(response())
    keys = {"path": "/up", "port": other.port, "first_connect": False}
    await stage.serve(endpoints=[endpoint(worker, transport=transport)], health_checks=keys)
    stage.advance(0.0)
    for _ in range(3):
        await check(stage)
    assert ([play.target for play in plays], worker.requests) == ([b"/up"] * 3, [])
    assert values(plays[0].fields, b"host") == [b"127.0.0.1:%d" % other.port]
    assert check_results(stage) == (3, 0, None)
    stage.cluster.pools.prune(stage.clock.at)
    assert stage.cluster.pools.open_connections == stage.pool().standing


async def test_port_of_a_grpc_server(stage: Stage) -> None:
    """A check by gRPC speaks HTTP/2 there, also where the endpoint does not."""

    async def serving(play: Play) -> None:
        await play.head(200, (b"content-type", b"application/grpc"))
        await play.data(b"\0\0\0\0\2\x08\1")
        await play.end((b"grpc-status", b"0"))

    other, worker = await stage.start(over("http2", serving, [])), await stage.worker(response())
    await stage.serve(worker, health_checks={"grpc": "", "port": other.port, "first_connect": False})
    stage.advance(0.0)
    await check(stage)
    assert check_results(stage) == (1, 0, None)


@pytest.mark.parametrize("scheme", [None, "http"])
async def test_port_with_tls(stage: Stage, tmp_path: Path, scheme: str | None) -> None:
    """The certificates are those of the endpoint, and so is the scheme unless it is given."""
    shelf = Shelf(tmp_path)
    other = await stage.worker(response(), tls=None if scheme else shelf.worker("127.0.0.1"))
    worker = await stage.worker(response(), tls=shelf.worker("127.0.0.1"))
    keys = {"path": "/up", "port": other.port, "scheme": scheme}
    await stage.serve(worker, health_checks=keys, upstream_tls={"ca": str(shelf.ca)})
    stage.advance(0.0)
    await check(stage)
    await check(stage)
    assert (len(other.requests), check_results(stage)) == (1, (1, 0, None))


async def test_failing_port(stage: Stage) -> None:
    """Its answers decide; a refused connection to it does not make the endpoint unreachable."""
    worker, spare = await stage.worker(response()), await stage.worker(response())
    other = ScriptedWorker(answering(lambda _: response() if len(other.requests) > 4 else FAILING))
    port = stage.dead_port()
    endpoints = [endpoint(worker), endpoint(spare, "w1")]
    await stage.serve(endpoints=endpoints, health_checks={"path": "/up", "port": port, "fall": 1, "rise": 1})
    stage.advance(0.0)
    await check(stage)
    await check(stage)
    assert check_results(stage) == (0, 1, "no connection: Connection refused")
    assert (stage.state().passes_checks, stage.state().is_reachable) == (False, True)
    await stage.start_at_dead_port(other, port)
    for _ in range(4):
        await check(stage)
    assert (stage.state().passes_checks, len(worker.requests), len(worker.connections)) == (True, 0, 1)


async def test_endpoint_that_cannot_be_reached_beside_a_port_that_answers(stage: Stage) -> None:
    """It fails its checks until connecting to it succeeds, which then needs no request."""
    spare, other = await stage.worker(response()), await stage.worker(response())
    worker, port = ScriptedWorker(answering(response())), stage.dead_port()
    endpoints = [endpoint(port), endpoint(spare, "w1")]
    keys = {"path": "/up", "port": other.port, "rise": 1, "fall": 1}
    await stage.serve(endpoints=endpoints, health_checks=keys)
    stage.advance(0.0)
    for _ in range(3):
        await check(stage)
    assert check_results(stage) == (0, 3, "no connection: Connection refused")
    assert (stage.state().passes_checks, stage.state().is_reachable) == (False, False)
    await stage.start_at_dead_port(worker, port)
    for _ in range(3):
        await check(stage)
    assert (stage.state().passes_checks, stage.state().is_reachable) == (True, True)
    assert (check_results(stage)[0] > 0, stage.pool().is_unreachable) == (True, False)


async def test_ejection_is_not_ended_by_another_port(stage: Stage) -> None:
    """An endpoint that refuses connections returns by a connect to itself, whatever is answered elsewhere."""
    spare, other = await stage.worker(response(b"spare")), await stage.worker(response())
    worker, port = ScriptedWorker(answering(response(b"back"))), stage.dead_port()
    endpoints = [endpoint(port), endpoint(spare, "w1")]
    keys = {"path": "/up", "port": other.port, "first_connect": False, "fall": 100}
    await stage.serve(endpoints=endpoints, health_checks=keys)
    for _ in range(10):
        assert (await stage.ask(get())).body == b"spare"
    stage.advance(0.0)
    for _ in range(2):
        await check(stage)
    assert (stage.state().is_ejected, len(other.requests)) == (True, 2)  # those of the spare one
    await stage.start_at_dead_port(worker, port)
    await check(stage)
    await check(stage)
    assert (stage.state().is_ejected, worker.requests, len(other.requests)) == (False, [], 5)


async def test_unix_socket_has_no_other_port(stage: Stage, tmp_path: Path) -> None:
    worker = ScriptedWorker(answering(response()))
    await stage.start(worker, path=tmp_path / "app.sock")
    endpoints = [{"id": "w0", "address": f"http+unix://{tmp_path / 'app.sock'}"}]
    await stage.serve(endpoints=endpoints, health_checks={"path": "/up", "port": 1})
    stage.advance(0.0)
    await check(stage)
    await check(stage)
    assert (len(worker.requests), check_results(stage)) == (1, (1, 0, None))


def warned(path: Path) -> list[str]:
    """Return the warnings of `balancer check` about checks."""
    done = run_in_process(main, "balancer", "check", str(path))
    assert (done.returncode, done.stderr) == (0, "")
    return [line for line in done.stdout.splitlines() if line.startswith("warning: health_checks.")]


@pytest.mark.parametrize(("port", "is_warned"), [("", True), ("port = 9000", False)])
def test_scheme_without_a_port_is_warned_about(tmp_path: Path, port: str, is_warned: bool) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f'{ENDPOINT}[health_checks]\npath = "/h"\nscheme = "https"\n{port}\n')
    line = "warning: health_checks.scheme: is not used: without port, checks use that of the endpoint"
    assert warned(path) == [line] * is_warned


@pytest.mark.parametrize("asks", [False, True])
def test_check_warns_of_keys_without_a_request(tmp_path: Path, asks: bool) -> None:
    """Of all keys but those that connects use. Where no cluster asks, and those that do inherit them."""
    path, own = tmp_path / "balancer.toml", 'path = "/"' if asks else ""
    values = {
        name: shown(EXAMPLE.read_text().splitlines())[f"health_checks.{name}"][1] for name in CHECK_KEYS
    }
    del values["fields"]  # has its default there, which is what `check --print` writes
    lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in values.items())
    lines += '\nfields = { authorization = "Bearer x" }'
    path.write_text(
        f"{ENDPOINT}[health_checks]\n{lines}\n[clusters.b]\n"
        f"{ENDPOINT.replace('[[', '[[clusters.b.')}[clusters.b.health_checks]\n{own}\n"
        '[[routes]]\nprefix = "/b"\ncluster = "b"\n'
    )
    assert warned(path) == [
        f"warning: health_checks.{key}: is not used: checks only connect without path or grpc"
        for key in CHECK_KEYS
        if not asks and key not in ("first_connect", "interval", "fast_interval", "timeout", "rise", "fall")
    ]


@pytest.mark.parametrize("keys", ["", 'transport = "http2"\n', "port = 1\n"])
def test_check_warns_of_endpoints_that_cannot_be_asked_by_grpc(tmp_path: Path, keys: str) -> None:
    path, is_port = tmp_path / "balancer.toml", keys.startswith("port")
    checks = f'[health_checks]\ngrpc = ""\n{keys * is_port}'
    path.write_text(f"{ENDPOINT}{'' if is_port else keys}{checks}")
    done = run_in_process(main, "balancer", "check", str(path))
    assert (done.returncode, done.stderr) == (0, "")
    line = 'health_checks.grpc: every check of a fails: it needs transport = "http2", or a port of its own'
    assert (f"warning: {line}" in done.stdout) == (not keys)


def test_values_of_fields_are_not_printed(tmp_path: Path) -> None:
    """Those of a cluster that asks by gRPC are inherited, and `body` is not."""
    path = tmp_path / "balancer.toml"
    path.write_text(
        f'{ENDPOINT}[health_checks]\npath = "/"\nbody = "ok"\nfields = {{ a = "s3cr3t" }}\n'
        f'[clusters.b]\n{ENDPOINT.replace("[[", "[[clusters.b.")}[clusters.b.health_checks]\ngrpc = ""\n'
        '[[routes]]\nprefix = "/b"\ncluster = "b"\n'
    )
    done = run_in_process(main, "balancer", "check", str(path), "--print")
    assert (done.returncode, done.stderr, done.stdout.count("# fields = (secret)")) == (0, "", 2)
    assert "s3cr3t" not in done.stdout


def test_check_warns_of_no_key_that_has_its_default(tmp_path: Path) -> None:
    """So not of what `check --print` writes."""
    path = tmp_path / "balancer.toml"
    path.write_text(f"{ENDPOINT}[health_checks]\nfields = {{}}\n")
    assert warned(path) == []
