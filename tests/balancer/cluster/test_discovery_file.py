"""Endpoint discovery from a watched file: stable content is applied, an invalid file changes nothing."""

from __future__ import annotations

import json
import os
import re
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from balancer.__main__ import cli
from balancer.config.loading import Settings
from balancer.config.problems import ConfigError
from balancer.process.server import Server
from tests.support.admin_requests import metrics, status
from tests.support.command_line import printed
from tests.support.config_files import table
from tests.support.dns_discovery import known
from tests.support.stage import Stage, endpoint
from tests.support.wire import ScriptedWorker, get, response

STAMPS = count(10**18)


def write(path: Path, text: str) -> None:
    """Write in place, as an editor does, with a modification time of its own."""
    stamp = next(STAMPS)
    path.write_text(text)
    os.utime(path, ns=(stamp, stamp))


def poll(stage: Stage, times: int = 1) -> None:
    """Let discovery poll the file, once a second."""
    for _ in range(times):
        stage.clock.at += 1
        stage.control_plane.discovery.tick(stage.clock.at)


async def serve(stage: Stage, path: Path, *workers: ScriptedWorker, **keys: Any) -> list[str]:
    """Start the server; return the list that later messages are appended to."""
    await stage.serve(*workers, discovery={"file": {"path": str(path), **keys}})
    problems: list[str] = []
    stage.control_plane.discovery.say = problems.append
    return problems


@pytest.mark.parametrize("kind", ["toml", "json", "list"])
async def test_file_formats(stage: Stage, tmp_path: Path, kind: str) -> None:
    """TOML, or JSON by the file's suffix: a table `endpoints` or only the list."""
    worker = await stage.worker(response(b"found"))
    one = endpoint(worker, "a", weight=2)
    path = tmp_path / ("endpoints.toml" if kind == "toml" else "endpoints.json")
    text = table(worker.port, more='weight = 2\nregion = "r"\n')
    path.write_text(text if kind == "toml" else json.dumps([one] if kind == "list" else {"endpoints": [one]}))
    await serve(stage, path)
    assert (await stage.ask(get())).body == b"found"
    (report,) = (await status(stage))["endpoints"]
    assert (report["id"], report["weight"], report["region"], report["source"]) == (
        "a",
        2,
        "r",
        f"file {path}",
    )
    assert (await status(stage))["discovery"] == [{"source": f"file {path}", "endpoints": 1, "problem": None}]
    assert "steelyard_discovered{" in await metrics(stage)


async def test_changed_file(stage: Stage, tmp_path: Path) -> None:
    """Applied at the second poll with the same content; an endpoint that stays keeps its state."""
    path = tmp_path / "endpoints.toml"
    path.write_text(table(1) + table(2, "b"))
    problems = await serve(stage, path)
    state = stage.state("b")
    write(path, table(2, "b") + table(3, "c"))
    poll(stage)
    assert known(stage) == ["a", "b"]
    poll(stage)
    assert known(stage) == ["b", "c"]
    assert stage.state("b") is state
    assert problems == []


async def test_file_that_is_being_written(stage: Stage, tmp_path: Path) -> None:
    """A file that changes between polls is not applied, even if it is valid."""
    path = tmp_path / "endpoints.toml"
    path.write_text(table(1) + table(2, "b"))
    problems = await serve(stage, path)
    whole = table(1) + table(2, "b") + table(3, "c")
    for end in range(len(table(1)), len(whole), 9):
        write(path, whole[:end])
        poll(stage)
        assert known(stage) == ["a", "b"]
    write(path, whole)
    poll(stage, 2)
    assert known(stage) == ["a", "b", "c"]
    assert problems == []


async def test_replaced_file(stage: Stage, tmp_path: Path) -> None:
    """A renamed file has another inode and is read even if size and time are equal."""
    path, fresh = tmp_path / "endpoints.toml", tmp_path / "fresh"
    path.write_text(table(1))
    stamp = path.stat().st_mtime_ns
    await serve(stage, path)
    fresh.write_text(table(2))
    os.utime(fresh, ns=(stamp, stamp))
    fresh.rename(path)
    poll(stage, 2)
    assert stage.state("a").endpoint.address == "http://127.0.0.1:2"


BROKEN = {
    "half": (table(1)[:-5], "TOML"),
    "twice": (table(1) + table(1), "endpoints.1.id"),
    "empty": ("endpoints = []\n", "endpoints"),
}


@pytest.mark.parametrize("case", BROKEN)
async def test_invalid_file_keeps_the_endpoints(stage: Stage, tmp_path: Path, case: str) -> None:
    """The endpoints stay; one message in one line; the status shows the problem until the file is valid."""
    path = tmp_path / "endpoints.toml"
    path.write_text(table(1) + table(2, "b"))
    problems = await serve(stage, path)
    text, named = BROKEN[case]
    write(path, text)
    poll(stage, 5)
    assert known(stage) == ["a", "b"]
    assert len(problems) == 1
    assert re.match(rf"discovery\.file: {re.escape(str(path))}(:\d+)?: ", problems[0])
    assert named in problems[0]
    assert "\n" not in problems[0]
    assert (await status(stage))["discovery"][0]["problem"] in problems[0]
    write(path, table(3, "c"))
    poll(stage, 2)
    assert known(stage) == ["c"]
    assert (await status(stage))["discovery"][0]["problem"] is None


async def test_status_command_shows_the_problem(stage: Stage, tmp_path: Path) -> None:
    path = tmp_path / "endpoints.toml"
    path.write_text(table(1))
    await serve(stage, path)
    path.unlink()
    poll(stage)
    lines = await printed(f"http://{stage.running.address}", "status")
    assert [line for line in lines if line.endswith("; the endpoints that are known stay")] == [
        f"discovery.file.path: cannot read {path}: No such file or directory; the endpoints that are known stay"
    ]


async def test_missing_file_keeps_the_endpoints(stage: Stage, tmp_path: Path) -> None:
    """The endpoints stay until the file is back."""
    path = tmp_path / "endpoints.toml"
    path.write_text(table(1))
    problems = await serve(stage, path)
    path.unlink()
    poll(stage, 3)
    assert len(problems) == 1
    assert problems[0].startswith("discovery.file.path: ")
    assert f"{path}: No such file" in problems[0]
    write(path, table(1) + table(2, "b"))
    poll(stage, 2)
    assert known(stage) == ["a", "b"]


async def test_allow_empty(stage: Stage, tmp_path: Path) -> None:
    path = tmp_path / "endpoints.toml"
    path.write_text(table(1))
    await serve(stage, path, allow_empty=True)
    write(path, "endpoints = []\n")
    poll(stage, 2)
    assert known(stage) == []
    assert (await stage.ask(get())).status == 503


async def test_missing_ca_of_an_endpoint(stage: Stage, tmp_path: Path) -> None:
    """The endpoint's `tls` files are read before anything changes."""
    path = tmp_path / "endpoints.toml"
    path.write_text(table(1))
    problems = await serve(stage, path)
    secure = table(2, "b").replace("http:", "https:") + 'tls = { ca = "/none.pem" }\n'
    write(path, secure)
    poll(stage, 2)
    assert known(stage) == ["a"]
    assert len(problems) == 1
    assert problems[0].startswith("tls.ca: ")
    assert "/none.pem: No such file" in problems[0]


async def test_configured_and_discovered_endpoints(stage: Stage, tmp_path: Path) -> None:
    """Configured endpoints come first and take precedence for an id."""
    path = tmp_path / "endpoints.toml"
    worker = await stage.worker(response(b"ours"))
    path.write_text(table(1, "w0") + table(2, "b"))
    await serve(stage, path, worker)
    assert known(stage) == ["w0", "b"]
    assert stage.state("w0").endpoint.address == f"http://127.0.0.1:{worker.port}"


async def test_reload(stage: Stage, tmp_path: Path) -> None:
    """The file, or another one, is read and applied at once, none removes its endpoints, an invalid one is rejected."""
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    worker = await stage.worker(response())
    one.write_text(table(1))
    two.write_text(table(2, "b"))
    await serve(stage, one, worker)
    kept = stage.state("a")
    write(one, table(1) + table(3, "c"))
    await stage.reload(retries=0)
    assert known(stage) == ["w0", "a", "c"]
    assert stage.state("a") is kept
    write(one, "x = 1\n")
    with pytest.raises(ConfigError, match=r"^discovery\.file: .*endpoints"):
        await stage.reload()
    assert known(stage) == ["w0", "a", "c"]
    await stage.reload(discovery={"file": {"path": str(two)}})
    assert known(stage) == ["w0", "b"]
    with pytest.raises(ConfigError, match=r"^discovery\.file\.path: "):
        await stage.reload(discovery={"file": {"path": str(tmp_path / "none")}}, retries=5)
    assert known(stage) == ["w0", "b"]
    assert stage.cluster.retries.limit == 0
    await stage.reload(discovery={})
    assert known(stage) == ["w0"]


def test_start_with_an_invalid_file(tmp_path: Path) -> None:
    """A configuration error that names the key."""
    path = tmp_path / "endpoints.toml"
    settings: Any = {"listen": "127.0.0.1:0", "discovery": {"file": {"path": str(path)}}}
    with pytest.raises(ConfigError, match=r"^discovery\.file\.path: .*No such file"):
        Server(Settings(**settings))
    path.write_text("x = 1\n")
    with pytest.raises(ConfigError, match=r"^discovery\.file: .*endpoints"):
        Server(Settings(**settings))


def test_check_command_reads_the_file(tmp_path: Path) -> None:
    """`balancer check` lists discovered endpoints."""
    path, config = tmp_path / "endpoints.toml", tmp_path / "balancer.toml"
    path.write_text(table(1))
    config.write_text(f'[discovery.file]\npath = "{path}"\n[[discovery.dns]]\nname = "w.test"\nport = 80\n')
    ran = CliRunner().invoke(cli, ["check", str(config)])
    assert ran.exit_code == 0
    assert "http://127.0.0.1:1 (file)" in ran.output
    assert "dns w.test:80" in ran.output


async def test_file_of_the_same_size_and_time_is_read(stage: Stage, tmp_path: Path) -> None:
    """Its time of change (ctime) cannot be set back."""
    path = tmp_path / "endpoints.toml"
    seen = set()
    for text in (table(1111, "a"), table(2222, "b")):
        path.write_text(text)
        os.utime(path, ns=(10**18, 10**18))
        seen.add((path.stat().st_size, path.stat().st_mtime_ns, path.stat().st_ino))
        if stage.server is None:
            await serve(stage, path)
    assert len(seen) == 1
    poll(stage, 2)
    assert known(stage) == ["b"]
