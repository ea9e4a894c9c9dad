"""The table [shared] of the configuration; the password of its URL is never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from balancer.__main__ import main
from balancer.config.schema.sections import SharedConfig
from tests.support.command_line import run_in_process

BASE = '[[endpoints]]\nid = "a"\naddress = "http://127.0.0.1:1"\nregion = "r"\n'


def checked(tmp_path: Path, table: str, *options: str) -> tuple[int, str]:
    path = tmp_path / "balancer.toml"
    path.write_text(f"{BASE}[shared]\n{table}\n")
    done = run_in_process(main, "balancer", "check", str(path), *options)
    return done.returncode, done.stderr if done.returncode else done.stdout


@pytest.mark.parametrize(
    "url",
    [
        "http://user:hush@h:1",
        "redis://",
        "redis://:hush@",
        "redis://:hush@h:99999",
        "redis://:hush@h:x",
        "redis://:hush@h/7",
        "rediss://:hush@h?ssl_cert_reqs=none",
        "redis://:hu#sh@h",
        "hush",
    ],
)
def test_a_wrong_url_is_one_line_without_it(tmp_path: Path, url: str) -> None:
    code, output = checked(tmp_path, f'url = "{url}"')
    assert code == 2
    [line] = output.splitlines()
    assert "shared.url" in line
    assert "redis://host:port" in line
    assert "hu" not in line.replace("[shared]", "")


def test_a_missing_package_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("balancer.config.schema.sections.find_spec", lambda _: None)
    code, output = checked(tmp_path, 'url = "redis://:hush@h"')
    assert code == 2
    [line] = output.splitlines()
    assert "pip install '.[shared]' in the checkout" in line
    assert "hush" not in line


def test_the_printed_configuration_hides_the_url(tmp_path: Path) -> None:
    code, output = checked(tmp_path, 'url = "rediss://user:hush@h:7"\nverify = false', "--print")
    assert code == 0
    assert "# url = (secret)" in output
    assert "hush" not in output


def test_the_name_of_the_store_has_no_credentials() -> None:
    urls = {"redis://user:hush@h": "redis://h:6379", "rediss://:hush@[::1]:7/0": "rediss://[::1]:7"}
    assert {url: SharedConfig(url=url).store for url in urls} == urls  # type: ignore[arg-type]
