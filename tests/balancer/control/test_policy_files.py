"""A running balancer with a policy from a file: reload reads it again, mistakes change nothing, the status shows the
version, and only the admin socket may name new files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from balancer.config.loading import read_settings
from balancer.config.problems import ConfigError
from balancer.config.schema.policy_spec import PolicySpec
from balancer.control.admin.merge import merged
from balancer.control.admin.policy_order import reload_order
from tests.support.admin_requests import TOKEN, local
from tests.support.stage import Stage
from tests.support.wire import get, response

TEXT = """
class Nth:
    def __init__(self, *, number: int = 0): self.number = number
    def pick(self, facts, available, now): return available[self.number]
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(TEXT)
    return tmp_path


def configured(folder: Path, policy: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "balancer.toml"
    path.write_text(f'policy = {policy}\n[[endpoints]]\nid = "a"\naddress = "http://127.0.0.1:1"\n')
    return path


def test_path_in_a_file_is_relative_to_the_file(here: Path) -> None:
    folder = here / "conf"
    path = configured(folder, '{ name = "mine.py:Nth", number = 1, canary = { name = "sub/mine.py:Nth" } }')
    (folder / "sub").mkdir()
    for target in (folder / "mine.py", folder / "sub" / "mine.py"):
        target.write_text(TEXT)
    policy = read_settings(path, {}).policy
    assert policy.name == f"{folder}/mine.py:Nth"
    assert policy.label == "Nth"
    assert list(policy.library.versions) == [f"{folder}/mine.py", f"{folder}/sub/mine.py"]


def test_path_of_the_command_line_and_the_environment_is_relative_to_the_working_directory(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = configured(here / "conf", '"random"')
    assert read_settings(path, {"policy": "mine.py:Nth"}).policy.name == f"{here}/mine.py:Nth"
    monkeypatch.setenv("BALANCER_POLICY", "mine.py:Nth")
    assert read_settings(path, {}).policy.name == f"{here}/mine.py:Nth"


def test_specification_differs_if_its_file_does(here: Path) -> None:
    """A reload keeps a policy, with what it has learned, only if its file is the same too."""
    path = configured(here, '"mine.py:Nth"')
    first, second = (read_settings(path, {}).policy for _ in range(2))
    assert first.is_same_as(second)
    (here / "mine.py").write_text(TEXT + "# changed\n")
    third = read_settings(path, {}).policy
    assert third == first
    assert not third.is_same_as(first)
    assert third.library.versions == {
        f"{here}/mine.py": hashlib.sha256((here / "mine.py").read_bytes()).hexdigest()[:12]
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n1 / 0", "policy: {file}:2: ZeroDivisionError: division by zero"),
        ("class Nth: ...", "policy: {file}:1: Nth has no method pick(self, facts, available, now)"),
        ("raise SystemExit(0)", "policy: {file}:1: SystemExit: 0"),
    ],
)
def test_mistake_is_one_line_of_the_configuration(here: Path, text: str, message: str) -> None:
    (here / "mine.py").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_settings(configured(here, '"mine.py:Nth"'), {})
    assert str(caught.value) == f"{here / 'balancer.toml'}:1: " + message.format(file=here / "mine.py")


def test_policy_is_made_of_the_file_that_was_checked(here: Path) -> None:
    """A file that is damaged between the check and its use does not matter."""
    spec: Any = PolicySpec.model_validate("mine.py:Nth")
    spec.make(Random(0))
    (here / "mine.py").write_text("damaged (")
    assert spec.make(Random(0)).number == 0


def test_merged_status_shows_if_processes_differ() -> None:
    plain: Any = {"spec": {"name": "random"}, "files": [], "differs": False}
    assert merged([plain, plain]) == plain
    assert merged([plain, plain | {"spec": {"name": "maglev"}}])["differs"]
    one: Any = plain | {"files": [{"path": "/a.py", "version": "111", "loaded": "2026-01-01T00:00:01+00:00"}]}
    other = plain | {"files": [{"path": "/a.py", "version": "222", "loaded": "2026-01-01T00:00:02+00:00"}]}
    assert merged([one, one]) == one
    assert merged([one, other])["differs"]
    assert merged([one, other])["files"] == [
        {"path": "/a.py", "version": "111, 222", "loaded": "2026-01-01T00:00:02+00:00"}
    ]


# --- a running balancer


def put(name: str, *fields: bytes) -> bytes:
    body = json.dumps({"name": name}).encode()
    head = (b"PUT /-/policy HTTP/1.1", b"Host: localhost", b"Content-Length: %d" % len(body), *fields)
    return b"\r\n".join(head) + b"\r\n\r\n" + body


async def test_put_reads_the_file_again_and_a_mistake_keeps_the_policy(stage: Stage, here: Path) -> None:
    await stage.serve(await stage.worker(response()))
    versions = []
    for text in (TEXT, TEXT + "# changed\n"):
        (here / "mine.py").write_text(text)
        answer = await stage.ask(put("mine.py:Nth"))
        assert answer.status == 200
        [file] = json.loads(answer.body)["files"]
        assert file["path"] == f"{here}/mine.py"
        versions.append(file["version"])
    assert versions[0] != versions[1]
    for text, message in (
        ("raise SystemExit", ":1: SystemExit"),
        ("class Nth(", ":1: SyntaxError"),
        ("", "no class"),
    ):
        (here / "mine.py").write_text(text)
        answer = await stage.ask(put("mine.py:Nth"))
        assert answer.status == 422
        assert message in json.loads(answer.body)["error"]
    policy = json.loads((await stage.ask(local(b"/-/status"))).body)["policy"]
    assert (policy["name"], policy["files"][0]["version"]) == (f"{here}/mine.py:Nth", versions[1])
    assert (await stage.ask(get())).status == 200


async def test_only_the_socket_may_name_a_new_file(stage: Stage, here: Path) -> None:
    """Over TCP the code of any file would run; what was named before can be restored there."""
    await stage.serve(await stage.worker(response()), admin={"token": TOKEN})
    bearer = b"Authorization: Bearer " + TOKEN.encode()

    async def over_tcp(name: str) -> int:
        client = await stage.client()
        return (await client.ask(put(name, bearer))).status

    assert await over_tcp("mine.py:Nth") == 403
    assert await over_tcp("antigravity:Nth") == 403
    assert await over_tcp("region-round-robin") == 200
    assert (await stage.ask(put("mine.py:Nth", bearer))).status == 200
    assert await over_tcp("random") == 200
    assert await over_tcp("mine.py:Nth") == 200


async def test_file_of_several_pools_is_sent_once(stage: Stage, here: Path) -> None:
    """To the sibling processes that reload: pools inherit the policy, and a request has a limit."""
    pool = {"endpoints": [{"id": "a", "address": "http://127.0.0.1:1"}]}
    policy = f"{here}/mine.py:Nth"
    await stage.serve(await stage.worker(response()), policy=policy, clusters={"one": pool, "two": pool})
    assert [each.policy.name for each in stage.control_plane.named.values()] == [policy] * 2
    order = json.loads(reload_order(stage.control_plane))
    assert [file["path"] for file in order["files"]] == [f"{here}/mine.py"]
