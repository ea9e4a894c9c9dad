"""Renamed keys, commands and variables: each old name is refused by one line with the new one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from balancer.__main__ import main
from balancer.config.load import ConfigError
from balancer.config.renamed import RENAMED, renamed
from balancer.configuration import load, load_sidecar
from tests.test_project import KEYS

ENDPOINT = {"id": "a", "address": "http://127.0.0.1:9001"}

REQUIRED: dict[str, dict[str, Any]] = {
    "discovery.dns": {"name": "workers.test"},
    "discovery.file": {"path": "endpoints.toml"},
}
"""Required keys of tables, which are reported before an unknown one."""


def line_of(path: Path) -> str:
    """The message for a configuration file."""
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    assert caught.value.exit_code == 2
    return str(caught.value)


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
def test_a_file_with_an_old_key(tmp_path: Path, old: str, new: str) -> None:
    """Of a renamed table the table is named, as its keys may be more than one."""
    table = old.partition(".")[0]
    expected = f"{table}: renamed to {RENAMED[table]}" if table in RENAMED else f"{old}: renamed to {new}"
    said = line_of(document_with(tmp_path / "balancer.toml", old))
    assert said.replace("discovery.dns.0.", "discovery.dns.") == expected


@pytest.mark.parametrize(
    ("old", "new"), [pair for pair in RENAMED.items() if pair[0].split(".")[0] in RENAMED]
)
def test_an_old_key_in_a_table_with_its_new_name(tmp_path: Path, old: str, new: str) -> None:
    table, dot, key = old.partition(".")
    if dot:
        place = f"{RENAMED[table]}.{key}"
        said = line_of(document_with(tmp_path / "balancer.toml", place))
        assert said == f"{place}: renamed to {new}"


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_a_variable_with_an_old_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    """Of a whole table and of a single key; a variable of another program is none of ours."""
    variable, wanted = (f"BALANCER_{key.upper().replace('.', '__')}" for key in (old, new))
    path = tmp_path / "balancer.toml"
    path.write_text(f'endpoints = [{{ id = "a", address = "{ENDPOINT["address"]}" }}]\n')
    monkeypatch.setenv(variable.removeprefix("BALANCER_"), "1")
    load(path, {})
    monkeypatch.setenv(variable, "1")
    assert line_of(path) == f"{variable}: renamed to {wanted}"


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_the_new_key_exists_and_the_old_one_does_not(old: str, new: str) -> None:
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
def test_a_table_stands_for_its_other_keys(key: str, new: str | None) -> None:
    assert renamed(key) == new


def test_a_key_of_a_sidecar_s_origin(tmp_path: Path) -> None:
    """Its tables are those of the whole."""
    path = tmp_path / "sidecar.toml"
    path.write_text('[[origins]]\nname = "a"\nurl = "http://a:1"\n[origins.pool]\nidle = 3.0\n')
    with pytest.raises(
        ConfigError, match=r"^origins\.0\.pool\.idle: renamed to origins\.pool\.idle_timeout$"
    ):
        load_sidecar(path, {})
    path.write_text('[[origins]]\nname = "a"\nurl = "http://a:1"\n[watch]\nenabled = false\n')
    with pytest.raises(ConfigError, match=r"^watch: renamed to route_watch$"):
        load_sidecar(path, {})


@pytest.mark.parametrize(
    ("words", "variable", "said"),
    [
        (["control", "get", "metrics"], None, "control: renamed to admin"),
        (["endpoints", "up", "a"], None, "up: renamed to ready"),
        (["endpoints", "down", "a"], None, "down: renamed to maintenance"),
        (
            ["status"],
            "BALANCER_CONTROL__TOKEN",
            "BALANCER_CONTROL__TOKEN: renamed to BALANCER_ADMIN__TOKEN",
        ),
        (
            ["endpoints", "list"],
            "BALANCER_CONTROL__SOCKET",
            "BALANCER_CONTROL__SOCKET: renamed to BALANCER_ADMIN__SOCKET",
        ),
    ],
)
def test_an_old_command_or_variable_of_a_command(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    variable: str | None,
    said: str,
) -> None:
    """Before anything is sent: exit 2, one line."""
    monkeypatch.setattr("sys.argv", ["balancer", *words])
    if variable is not None:
        monkeypatch.setenv(variable, "sixteen or more characters")
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"balancer: {said}\n"
