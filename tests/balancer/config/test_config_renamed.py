"""Renamed keys, commands and variables: an old name is rejected with a message that names the new one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from balancer.__main__ import main
from balancer.config.problems import ConfigError
from balancer.config.renamed import RENAMED, renamed
from balancer.configuration import load, load_sidecar
from tests.support.command_line import complaint
from tests.test_project import KEYS

ENDPOINT = {"id": "a", "address": "http://127.0.0.1:9001"}

REQUIRED: dict[str, dict[str, Any]] = {
    "discovery.dns": {"name": "workers.test"},
    "discovery.file": {"path": "endpoints.toml"},
}
"""Required keys of tables, which are reported before an unknown one."""


def message_for(path: Path) -> str:
    """The error message for a configuration file."""
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    assert caught.value.exit_code == 2
    (message,) = caught.value.problems
    return re.sub(rf"^{re.escape(str(path))}:\d+: ", "", message)


def assert_renamed(message: str, old: str, new: str) -> None:
    """One line that begins with the old name and contains the new one."""
    assert message.startswith(f"{old}: ")
    assert new in message
    assert "\n" not in message.rstrip("\n")


def document_with(path: Path, key: str) -> Path:
    """A file with one endpoint and `key`, a dotted key of any value."""
    table, _, name = key.rpartition(".")
    text = f"[[endpoints]]\nid = {json.dumps(ENDPOINT['id'])}\naddress = {json.dumps(ENDPOINT['address'])}\n"
    if table:
        keys = REQUIRED.get(table, {}) | {name: 1}
        lines = "\n".join(f"{each} = {json.dumps(value)}" for each, value in keys.items())
        text += f"[[{table}]]\n{lines}\n" if table == "discovery.dns" else f"[{table}]\n{lines}\n"
    else:
        text += f"[{name}]\nany = 1\n"
    path.write_text(text)
    return path


def is_key(name: str) -> bool:
    return name in KEYS or any(key.startswith(f"{name}.") for key in KEYS)


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_old_key_in_a_file(tmp_path: Path, old: str, new: str) -> None:
    """If a whole table is renamed, the message names the table."""
    table = old.partition(".")[0]
    message = message_for(document_with(tmp_path / "balancer.toml", old))
    assert_renamed(
        message.replace("discovery.dns.0.", "discovery.dns."),
        *((table, RENAMED[table]) if table in RENAMED else (old, new)),
    )


@pytest.mark.parametrize(
    ("old", "new"), [pair for pair in RENAMED.items() if pair[0].split(".")[0] in RENAMED]
)
def test_old_key_in_a_renamed_table(tmp_path: Path, old: str, new: str) -> None:
    table, dot, key = old.partition(".")
    if dot:
        place = f"{RENAMED[table]}.{key}"
        message = message_for(document_with(tmp_path / "balancer.toml", place))
        assert_renamed(message, place, new)


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_old_key_in_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """For tables and single keys; a variable without the prefix is ignored."""
    variable, wanted = (f"BALANCER_{key.upper().replace('.', '__')}" for key in (old, new))
    path = tmp_path / "balancer.toml"
    path.write_text(f'endpoints = [{{ id = "a", address = "{ENDPOINT["address"]}" }}]\n')
    monkeypatch.setenv(variable.removeprefix("BALANCER_"), "1")
    load(path, {})
    monkeypatch.setenv(variable, "1")
    assert_renamed(message_for(path), variable, wanted)


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_new_keys_exist_and_old_ones_do_not(old: str, new: str) -> None:
    assert is_key(new)
    assert not is_key(old)


@pytest.mark.parametrize(
    ("key", "new"),
    [
        ("control.token", "admin.token"),
        ("watch.factor", "route_watch.factor"),
        ("shedding.levels.name", "admission.levels.name"),
        ("pool.max_age", None),
        ("control_token", None),
        ("", None),
    ],
)
def test_new_name_of_a_key(key: str, new: str | None) -> None:
    assert renamed(key) == new


def test_old_key_of_a_sidecar_origin(tmp_path: Path) -> None:
    """Tables of an origin have the same renamed keys."""
    path = tmp_path / "sidecar.toml"
    path.write_text('[[origins]]\nname = "a"\nurl = "http://a:1"\n[origins.pool]\nidle = 3.0\n')
    with pytest.raises(ConfigError, match=r":5: origins\.0\.pool\.idle: .*origins\.pool\.idle_timeout$"):
        load_sidecar(path, {})
    path.write_text('[[origins]]\nname = "a"\nurl = "http://a:1"\n[watch]\nenabled = false\n')
    with pytest.raises(ConfigError, match=r":4: watch: .*route_watch$"):
        load_sidecar(path, {})


@pytest.mark.parametrize(
    ("words", "variable", "old", "new"),
    [
        (["control", "get", "metrics"], None, "control", "admin"),
        (["endpoints", "up", "a"], None, "up", "ready"),
        (["endpoints", "down", "a"], None, "down", "maintenance"),
        (["status"], "BALANCER_CONTROL__TOKEN", "BALANCER_CONTROL__TOKEN", "BALANCER_ADMIN__TOKEN"),
        (
            ["endpoints", "list"],
            "BALANCER_CONTROL__SOCKET",
            "BALANCER_CONTROL__SOCKET",
            "BALANCER_ADMIN__SOCKET",
        ),
    ],
)
def test_old_command_or_variable(
    monkeypatch: pytest.MonkeyPatch, words: list[str], variable: str | None, old: str, new: str
) -> None:
    """Exit code 2 and one line, before anything is sent."""
    if variable is not None:
        monkeypatch.setenv(variable, "sixteen or more characters")
    assert_renamed(complaint(main, "balancer", *words).removeprefix("balancer: "), old, new)
