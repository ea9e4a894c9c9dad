"""A running balancer with a policy from a file: reload reads it again, mistakes change nothing, the status shows the
version, and only the admin socket may name new files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from random import Random
from typing import Any

import pytest

from balancer.admin.merge import merged
from balancer.config.load import ConfigError, read_settings
from balancer.config.sections import PolicySpec

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
    assert str(caught.value) == message.format(file=here / "mine.py")


def test_policy_is_made_of_the_file_that_was_checked(here: Path) -> None:
    """A file that is damaged between the check and its use does not matter."""
    spec: Any = PolicySpec.model_validate("mine.py:Nth")
    spec.make(Random(0))
    (here / "mine.py").write_text("damaged (")
    assert spec.make(Random(0)).number == 0


def test_merged_status_shows_if_processes_differ() -> None:
    one = {"files": [{"path": "/a.py", "version": "111", "loaded": "2026-01-01T00:00:01+00:00"}]}
    other = {"files": [{"path": "/a.py", "version": "222", "loaded": "2026-01-01T00:00:02+00:00"}]}
    assert merged([one, one]) == one
    assert merged([one, other])["files"] == [
        {"path": "/a.py", "version": "111, 222", "loaded": "2026-01-01T00:00:02+00:00"}
    ]
