"""Endpoints by a file that is watched: taken when it stands still, and never emptied by accident."""

from __future__ import annotations

import json
import os
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from balancer.__main__ import cli
from balancer.config.load import ConfigError, Settings, first_problem
from balancer.server import Server
from tests.balancer.conftest import ScriptedWorker, Stage, get, response
from tests.balancer.test_admin import local, status
from tests.balancer.test_reload import endpoint

TABLE = '[[endpoints]]\nid = "{id}"\naddress = "http://127.0.0.1:{port}"\n'


def table(port: int, name: str = "a", more: str = "") -> str:
    return TABLE.format(id=name, port=port) + more


STAMPS = count(10**18)


def write(path: Path, text: str) -> None:
    """As an editor does: in place. Stamped so that two of a test differ however quickly they come."""
    stamp = next(STAMPS)
    path.write_text(text)
    os.utime(path, ns=(stamp, stamp))


def known(stage: Stage) -> list[str]:
    return list(stage.control_plane.registry.members)


def looked(stage: Stage, times: int = 1) -> None:
    """Looks, a second apart."""
    for _ in range(times):
        stage.clock.at += 1
        stage.control_plane.discovery.tick(stage.clock.at)


async def serve(stage: Stage, path: Path, *workers: ScriptedWorker, **keys: Any) -> list[str]:
    """With the lines that it says later."""
    await stage.serve(*workers, discovery={"file": {"path": str(path), **keys}})
    said: list[str] = []
    stage.control_plane.discovery.say = said.append
    return said


@pytest.mark.parametrize("kind", ["toml", "json", "list"])
async def test_languages(stage: Stage, tmp_path: Path, kind: str) -> None:
    """TOML, or JSON where the name says so: a table of endpoints or just the list."""
    worker = await stage.worker(response(b"found"))
    one = endpoint(worker, "a", weight=2)
    path = tmp_path / ("endpoints.toml" if kind == "toml" else "endpoints.json")
    text = table(worker.port, more='weight = 2\nregion = "r"\n')
    path.write_text(text if kind == "toml" else json.dumps([one] if kind == "list" else {"endpoints": [one]}))
    await serve(stage, path)
    assert (await stage.ask(get())).body == b"found"
    (told,) = (await status(stage))["endpoints"]
    assert (told["id"], told["weight"], told["region"], told["source"]) == ("a", 2, "r", f"file {path}")
    assert (await status(stage))["discovery"] == [{"source": f"file {path}", "endpoints": 1, "problem": None}]
    assert b"steelyard_discovered{" in (await stage.ask(local(b"/-/metrics"))).body


async def test_a_change(stage: Stage, tmp_path: Path) -> None:
    """Taken at the second look that finds it the same; who stays keeps what is known."""
    path = tmp_path / "endpoints.toml"
    path.write_text(table(1) + table(2, "b"))
    said = await serve(stage, path)
    state = stage.state("b")
    write(path, table(2, "b") + table(3, "c"))
    looked(stage)
    assert known(stage) == ["a", "b"]
    looked(stage)
    assert known(stage) == ["b", "c"]
    assert stage.state("b") is state
    assert said == []


async def test_a_file_that_is_being_written(stage: Stage, tmp_path: Path) -> None:
    """As long as it changes from look to look it is left alone, even where what there is could be read."""
    path = tmp_path / "endpoints.toml"
    path.write_text(table(1) + table(2, "b"))
    said = await serve(stage, path)
    whole = table(1) + table(2, "b") + table(3, "c")
    for end in range(len(table(1)), len(whole), 9):
        write(path, whole[:end])
        looked(stage)
        assert known(stage) == ["a", "b"]
    write(path, whole)
    looked(stage, 2)
    assert known(stage) == ["a", "b", "c"]
    assert said == []


async def test_a_file_that_is_replaced(stage: Stage, tmp_path: Path) -> None:
    """By a rename, as one should: another inode is another file, however alike."""
    path, fresh = tmp_path / "endpoints.toml", tmp_path / "fresh"
    path.write_text(table(1))
    stamp = path.stat().st_mtime_ns
    await serve(stage, path)
    fresh.write_text(table(2))
    os.utime(fresh, ns=(stamp, stamp))
    fresh.rename(path)
    looked(stage, 2)
    assert stage.state("a").endpoint.address == "http://127.0.0.1:2"


BROKEN = {
    "half": (table(1)[:-5], "not TOML"),
    "no table": ("x = 1\n", "endpoints: is required"),
    "bad key": (table(1, more="wight = 2\n"), "endpoints.0.wight: is not a known key"),
    "bad address": (table(0), "endpoints.0.address: must be http://host:port"),
    "twice": (table(1) + table(1), "endpoints.1.id: 'a' is used twice"),
    "empty": ("endpoints = []\n", "endpoints: is empty"),
    "no text": ("\0\0", "not TOML"),
    "nothing": ("", "endpoints: is required"),
}


@pytest.mark.parametrize("case", BROKEN)
async def test_a_file_that_is_not_good(stage: Stage, tmp_path: Path, case: str) -> None:
    """What is known stays; it is said once, in one line, and seen in the status until it is good again."""
    path = tmp_path / "endpoints.toml"
    path.write_text(table(1) + table(2, "b"))
    said = await serve(stage, path)
    text, named = BROKEN[case]
    write(path, text)
    looked(stage, 5)
    assert known(stage) == ["a", "b"]
    assert len(said) == 1
    assert said[0].startswith(f"discovery.file: {path}: {named}")
    assert said[0].endswith("; the endpoints that are known stay")
    assert "\n" not in said[0]
    assert (await status(stage))["discovery"][0]["problem"] in said[0]
    write(path, table(3, "c"))
    looked(stage, 2)
    assert known(stage) == ["c"]
    assert (await status(stage))["discovery"][0]["problem"] is None


async def test_a_file_that_is_gone(stage: Stage, tmp_path: Path) -> None:
    """It may come back."""
    path = tmp_path / "endpoints.toml"
    path.write_text(table(1))
    said = await serve(stage, path)
    path.unlink()
    looked(stage, 3)
    assert said == [
        f"discovery.file.path: cannot read {path}: No such file or directory; the endpoints that are known stay"
    ]
    write(path, table(1) + table(2, "b"))
    looked(stage, 2)
    assert known(stage) == ["a", "b"]


async def test_an_empty_list_where_that_is_allowed(stage: Stage, tmp_path: Path) -> None:
    path = tmp_path / "endpoints.toml"
    path.write_text(table(1))
    await serve(stage, path, allow_empty=True)
    write(path, "endpoints = []\n")
    looked(stage, 2)
    assert known(stage) == []
    assert (await stage.ask(get())).status == 503


async def test_an_endpoint_s_own_file_that_is_not_there(stage: Stage, tmp_path: Path) -> None:
    """Its table `tls` is tried before anything changes."""
    path = tmp_path / "endpoints.toml"
    path.write_text(table(1))
    said = await serve(stage, path)
    secure = table(2, "b").replace("http:", "https:") + 'tls = { ca = "/none.pem" }\n'
    write(path, secure)
    looked(stage, 2)
    assert known(stage) == ["a"]
    assert said == [
        "tls.ca: cannot read /none.pem: No such file or directory; the endpoints that are known stay"
    ]


async def test_beside_those_of_the_configuration(stage: Stage, tmp_path: Path) -> None:
    """These come first, and win where both name an id."""
    path = tmp_path / "endpoints.toml"
    worker = await stage.worker(response(b"ours"))
    path.write_text(table(1, "w0") + table(2, "b"))
    await serve(stage, path, worker)
    assert known(stage) == ["w0", "b"]
    assert stage.state("w0").endpoint.address == f"http://127.0.0.1:{worker.port}"


async def test_reload(stage: Stage, tmp_path: Path) -> None:
    """Another file counts at once; the same one goes on; none takes its endpoints along; a bad one is refused."""
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    worker = await stage.worker(response())
    one.write_text(table(1))
    two.write_text(table(2, "b"))
    await serve(stage, one, worker)
    (source,) = stage.control_plane.discovery.sources
    await stage.reload(retries=0)
    assert list(stage.control_plane.discovery.sources) == [source]
    await stage.reload(discovery={"file": {"path": str(two)}})
    assert known(stage) == ["w0", "b"]
    with pytest.raises(ConfigError, match=r"^discovery\.file\.path: cannot read "):
        await stage.reload(discovery={"file": {"path": str(tmp_path / "none")}}, retries=5)
    assert known(stage) == ["w0", "b"]
    assert stage.proxy.retries.limit == 0
    await stage.reload(discovery={})
    assert known(stage) == ["w0"]


def test_a_start_with_a_file_that_is_not_good(tmp_path: Path) -> None:
    """Is none: one line that names it."""
    path = tmp_path / "endpoints.toml"
    settings: Any = {"listen": "127.0.0.1:0", "discovery": {"file": {"path": str(path)}}}
    with pytest.raises(ConfigError, match=r"^discovery\.file\.path: cannot read .*: No such file"):
        Server(Settings(**settings))
    path.write_text("x = 1\n")
    with pytest.raises(ConfigError, match=r"^discovery\.file: .*: endpoints: is required"):
        Server(Settings(**settings))


def test_check_reads_it_too(tmp_path: Path) -> None:
    """And says what it found."""
    path, config = tmp_path / "endpoints.toml", tmp_path / "balancer.toml"
    path.write_text(table(1))
    config.write_text(f'[discovery.file]\npath = "{path}"\n[[discovery.dns]]\nname = "w.test"\nport = 80\n')
    ran = CliRunner().invoke(cli, ["check", str(config)])
    assert ran.exit_code == 0
    assert "http://127.0.0.1:1 (file)" in ran.output
    assert "dns w.test:80" in ran.output


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({}, "endpoints: is required"),
        ({"dns": [{"name": "a"}]}, "port: is required with address records"),
        ({"dns": [{"name": "a", "record": "srv", "port": 1}]}, "port: must not be given"),
        ({"dns": [{"name": "a b", "port": 1}]}, "discovery.dns.0.name"),
        ({"dns": [{"name": "a", "port": 1}] * 2}, "dns.1.name: a:1 is there twice"),
        (
            {"dns": [{"name": "a", "port": 1, "servers": ["x:53"]}]},
            "discovery.dns.0.servers: must be address",
        ),
        ({"file": {"pth": "x"}}, "discovery.file.path: is required"),
    ],
)
def test_mistakes_in_the_configuration(keys: Any, named: str) -> None:
    """Named in one line."""
    with pytest.raises(ValidationError) as caught:
        Settings(discovery=keys)
    assert named in first_problem(caught.value)
