"""Configuration files of the tests, and what loading one reports."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from balancer.config.problems import ConfigError
from balancer.configuration import load
from tests.support.wire import ScriptedWorker

ENDPOINT = '[[endpoints]]\nid = "a"\naddress = "http://127.0.0.1:9001"\n'


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "balancer.toml"
    path.write_text(text)
    return path


def problems(path: Path) -> list[str]:
    """The messages about a file, one line each, without its folder."""
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    assert caught.value.exit_code == 2
    assert not any("\n" in message for message in caught.value.problems)
    return [message.replace(f"{path.parent}/", "") for message in caught.value.problems]


def problem(tmp_path: Path, text: str) -> str:
    """The only message, without file and line."""
    (message,) = problems(write(tmp_path, text))
    return re.sub(r"^balancer\.toml(:\d+)?: ", "", message)


def refusals(table: str) -> list[tuple[str, str]]:
    """The rows of a table `keys -> message`: what is given, with `; ` between two lines, and its message,
    which may be on the next line.
    """
    rows = [row.partition(" -> ") for row in table.strip().replace("\n    ", " ").splitlines()]
    return [(given.replace("; ", "\n"), message) for given, _, message in rows]


TABLE = '[[endpoints]]\nid = "{id}"\naddress = "http://127.0.0.1:{port}"\n'


def table(port: int, name: str = "a", more: str = "") -> str:
    return TABLE.format(id=name, port=port) + more


def write_workers(folder: Path, *workers: ScriptedWorker, more: str = "") -> None:
    endpoints = [
        f'[[endpoints]]\nid = "w{at}"\naddress = "http://127.0.0.1:{worker.port}"\nregion = "r"\n'
        for at, worker in enumerate(workers)
    ]
    (folder / "balancer.toml").write_text("\n".join([more, *endpoints]))
