"""Secrets in files: the token of `admin.token_file`, and the warnings of `balancer check` about who may read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from balancer.__main__ import cli
from balancer.config.effective import effective
from balancer.config.problems import ConfigError
from balancer.configuration import load, load_with_sources
from tests.support.certificates import Shelf
from tests.support.command_line import run_in_process
from tests.support.config_files import refusals
from tests.support.stage import Stage
from tests.support.wire import get, response

TOKEN = "0123456789abcdef"
RULE = "HERE/token must hold one line of 16 characters or more, printable ASCII without spaces"
ENDPOINT = '[[endpoints]]\nid = "a"\naddress = "http://127.0.0.1:1"\nregion = "r"\n'


def configuration(folder: Path, text: str, mode: int = 0o600) -> Path:
    file = folder / "balancer.toml"
    file.write_text(text.replace("HERE", str(folder)) + ENDPOINT, encoding="utf-8")
    file.chmod(mode)
    return file


def warnings_of_check(file: Path) -> list[str]:
    """What `balancer check` says about other users."""
    ran = run_in_process(cli, "balancer", "check", str(file))
    assert ran.returncode == 0, ran.stderr
    return [line for line in (ran.stdout + ran.stderr).splitlines() if "other users" in line]


HELD = """
admin = { token = "TOKEN" } -> admin.token balancer.toml
admin = { token_file = "HERE/token" } -> admin.token_file token
tls = { certificate = "HERE/both.pem" } -> tls.certificate both.pem
tls = { certificate = "HERE/both.pem", key = "HERE/both.pem" } -> tls.key both.pem
[[tls.certificates]]; certificate = "HERE/both.pem" -> tls.certificates.0.certificate both.pem
upstream_tls = { certificate = "HERE/both.pem" }; [clusters.p]; [[clusters.p.endpoints]]; id = "b";
    address = "http://127.0.0.1:2"; [[routes]]; cluster = "p" -> upstream_tls.certificate both.pem
sticky = { cookie = "c", key = "TOKENTOKENTOKENTOKEN" } -> sticky.key balancer.toml
record = { path = "HERE/r", salt = "TOKEN" } -> record.salt balancer.toml
shared = { url = "redis://:word@127.0.0.1" } -> shared.url balancer.toml
shared = { url = "redis://127.0.0.1" } -> nothing -
"""


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o604, 0o755])
@pytest.mark.parametrize(("text", "held"), refusals(HELD.replace("TOKEN", TOKEN)))
def test_check_warns_about_secrets_that_others_may_read(
    text: str, held: str, mode: int, tmp_path: Path
) -> None:
    key, name = held.split()
    (tmp_path / "token").write_text(TOKEN + "\n", encoding="utf-8")
    Shelf(tmp_path).both("a.org")
    file = configuration(tmp_path, f"{text}\n", mode)
    for each in ("token", "both.pem"):
        (tmp_path / each).chmod(mode)
    readable = f"warning: {key}: {tmp_path / name} can be read by other users (mode {mode:04o}); chmod 600"
    assert warnings_of_check(file) == ([readable] if mode & 0o044 and key != "nothing" else [])


def test_a_secret_of_the_environment_is_in_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BALANCER_ADMIN__TOKEN", TOKEN)
    assert warnings_of_check(configuration(tmp_path, "", 0o644)) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read HERE/token: No such file or directory"),
        (b"short\n", RULE),
        (b"0123456789 abcdef", RULE),
        (b"0123456789abcdef\n\n0123456789abcdef\n", RULE),
        (b"\xff" * 20, "HERE/token: "),
        (b"", RULE),
    ],
)
def test_a_bad_token_file_is_refused(content: bytes | None, message: str, tmp_path: Path) -> None:
    """In one line that names the key and its place, and does not repeat the content."""
    if content is not None:
        (tmp_path / "token").write_bytes(content)
    file = configuration(tmp_path, 'admin.token_file = "HERE/token"\n')
    with pytest.raises(ConfigError) as refused:
        load(file, {})
    line = str(refused.value)
    assert f"{file}:1: admin.token_file: {message.replace('HERE', str(tmp_path))}" in line
    assert "\n" not in line
    assert "0123456789" not in line


def test_token_and_token_file_exclude_each_other(tmp_path: Path) -> None:
    file = configuration(tmp_path, f'admin = {{ token = "{TOKEN}", token_file = "x" }}\n')
    with pytest.raises(ConfigError, match="token_file: give token or token_file, not both"):
        load(file, {})


def test_a_token_file_opens_admin_listen_to_other_machines(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN, encoding="utf-8")
    file = configuration(tmp_path, 'admin = { token_file = "HERE/token", listen = "0.0.0.0:9180" }\n')
    token = load(file, {}).admin.token
    assert token is not None
    assert token.get_secret_value() == TOKEN
    reading = load_with_sources(file, {})
    assert TOKEN not in "\n".join(effective(reading.settings, reading.source))


async def test_a_token_that_is_replaced_holds_from_the_reload_on(stage: Stage, tmp_path: Path) -> None:
    """It opens the port for traffic to admin requests, as `admin.token` does."""
    worker = await stage.worker(response())
    holder = tmp_path / "token"
    endpoint = f'[[endpoints]]\nid = "w"\naddress = "http://127.0.0.1:{worker.port}"\nregion = "r"\n'
    file = tmp_path / "balancer.toml"
    file.write_text(f'admin.token_file = "{holder}"\n{endpoint}', encoding="utf-8")
    stage.read = lambda: load(file, {})
    holder.write_text(TOKEN + "\n", encoding="utf-8")
    await stage.serve(worker, admin=stage.read().admin.model_dump(exclude={"token_file"}))

    async def status_with(token: str) -> int:
        field = b"Authorization: Bearer " + token.encode()
        return (await stage.ask(get(b"/-/status", field))).status

    assert [await status_with(TOKEN), await status_with(TOKEN[::-1])] == [200, 404]
    holder.write_text(TOKEN[::-1] + "\n", encoding="utf-8")
    await stage.running.reload()
    assert [await status_with(TOKEN), await status_with(TOKEN[::-1])] == [404, 200]
