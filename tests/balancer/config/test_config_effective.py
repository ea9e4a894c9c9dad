"""`balancer check --print`: every key as TOML, with the source of its value."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from balancer.__main__ import main
from balancer.config.effective import toml
from balancer.configuration import load
from tests.support.certificates import Shelf
from tests.support.command_line import complaint, run_in_process
from tests.support.config_files import write
from tests.support.documentation import EXAMPLE, KEYS

SECRET = "hunter2-is-a-bad-secret"

TEXT = f"""\
home_region = "emea"
policy = {{ name = "c3", choices = 5 }}
trusted_proxies = ["10.0.0.0/8"]

[[endpoints]]
id = "a"
address = "http://a:1"
[endpoints.tls]
verify = false

[[endpoints]]
address = "http://b:1"
id = "b"

[health_checks]
path = "/h"
interval = 1.0

[[admission.levels]]
name = "gold"

[sticky]
cookie = "c"
key = "{SECRET}"

[discovery.file]
path = "more \\"endpoints\\".toml"
"""


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PORT", raising=False)
    monkeypatch.setenv("WEB_CONCURRENCY", "3")
    monkeypatch.setenv("BALANCER_LIMITS", '{"queue": 7}')
    monkeypatch.setenv("BALANCER_ADMIN__TOKEN", SECRET)


def checked(*arguments: str) -> str:
    done = run_in_process(main, "balancer", "check", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def printed(*arguments: str) -> str:
    return checked(*arguments, "--print")


def test_sources(tmp_path: Path) -> None:
    """Default, file and line, variable, option, derived; secrets are left out."""
    path = write(tmp_path, TEXT)
    output = printed(str(path), "--seed", "4", "--port", "9")
    lines = {re.sub(r" +# ", " # ", line) for line in output.replace(f"{tmp_path}/", "").splitlines()}
    for line in (
        'listen = "127.0.0.1:9" # --host, --port',
        "processes = 3 # WEB_CONCURRENCY",
        'home_region = "emea" # balancer.toml:1',
        "seed = 4 # --seed",
        "retries = 2 # default",
        'trusted_proxies = ["10.0.0.0/8"] # balancer.toml:3',
        'name = "c3" # balancer.toml:2',
        "choices = 5 # balancer.toml:2",
        "exponent = 3.0 # default",
        'id = "b" # balancer.toml:13',
        "verify = false # balancer.toml:9",
        "interval = 1.0 # balancer.toml:17",
        "fast_interval = 1.0 # derived",
        "queue = 7 # BALANCER_LIMITS",
        'default = "gold" # derived',
        "# token = (secret) # BALANCER_ADMIN__TOKEN",
        "# key = (secret) # balancer.toml:24",
        "# body = # default: none",
    ):
        assert line in lines, line
    assert SECRET not in output


def test_output_is_a_configuration(tmp_path: Path) -> None:
    """Read again it has the same values, but for secrets."""
    path = write(tmp_path, TEXT.replace('cookie = "c"\n', ""))
    settings = load(path, {})
    again = tmp_path / "again.toml"
    again.write_text(printed(str(path)))
    same = load(again, {}).model_dump(exclude={"policy", "sticky"})
    assert same == settings.model_dump(exclude={"policy", "sticky"})


@pytest.mark.parametrize(
    ("given", "absent"),
    [
        ('[tls]\ncertificate = "both.pem"\n', 'client_certificate = "required"'),
        ('[listeners.plain]\nlisten = "127.0.0.1:1"\nredirect = { scheme = "https" }\n', 'mode = "660"'),
        (
            '[[routes]]\nprefix = "/"\ncluster = "b"\nauth = { cluster = "b", path = "/" }\n'
            '[clusters.b]\nendpoints = [{ id = "b", address = "http://b:1" }]\n',
            'cache_by = ["authorization", "cookie"]',
        ),
    ],
    ids=["tls", "listener", "auth"],
)
def test_a_default_that_may_not_be_given_is_a_comment(tmp_path: Path, given: str, absent: str) -> None:
    """It needs another key. The output is a configuration."""
    Shelf(tmp_path).both("a")
    path = write(tmp_path, '[[endpoints]]\nid = "a"\naddress = "http://a:1"\n' + given)
    output = printed(str(path))
    assert re.search(f"^# {re.escape(absent)} +# default$", output, re.MULTILINE), output
    again = printed(str(write(tmp_path, output)))
    first, second = ([line.rpartition(" #")[0] for line in each.splitlines()] for each in (output, again))
    assert first == second


def test_output_with_named_pools_is_a_configuration(tmp_path: Path) -> None:
    """It has no keys of client connections in a pool, quotes names, and printed again it is the same."""
    pools = """
[[routes]]
cluster = "api.v1"
headers = { X-Version = "1" }
[clusters."api.v1"]
endpoints = [{ id = "a", address = "https://a:1", tls = { verify = false } }]
timeouts.first_byte = 3
health_checks.grpc = ""
key.by = "path"
[clusters.API-2.discovery]
file.path = "more.toml"
"""
    text = TEXT.replace(f'cookie = "c"\nkey = "{SECRET}"', 'header = "X-User"') + pools
    outputs = [printed(str(write(tmp_path, text)))]
    outputs.append(printed(str(write(tmp_path, outputs[0]))))
    first, second = ([line.partition(" #")[0].rstrip() for line in each.splitlines()] for each in outputs)
    assert first == second
    assert tomllib.loads(outputs[0])["clusters"]["api.v1"]["timeouts"]["first_byte"] == 3


def test_every_key_is_printed() -> None:
    """Those of tables that are configured."""
    document, table = set[str](), ""
    for line in printed(str(EXAMPLE)).splitlines():
        if header := re.fullmatch(r"\[+([a-z0-9_.]+)\]+", line):
            table = f"{header[1]}."
        elif key := re.match(r"(?:# )?([a-z_]+) =", line):
            document.add(f"{table}{key[1]}")
    absent = (
        "policy",
        "tls.",
        "endpoints.tls.",
        "discovery.",
        "routes.",
        "rate_limits.",
        "clusters",
        "listeners",
    )
    assert {key for key in KEYS if not key.startswith(absent)} <= document


def test_check_without_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment, as `serve` reads it."""
    monkeypatch.setenv("BALANCER_ENDPOINTS", '[{"id": "a", "address": "http://a:1"}]')
    assert re.search('id = "a" +# BALANCER_ENDPOINTS', printed())
    assert checked().startswith("the environment is valid: policy steelyard")
    assert re.search(
        "margin = 0.5 +# --policy", printed("--policy", '{"name": "region-aware", "margin": 0.5}')
    )
    line = complaint(main, "balancer", "check", "--worker", "r=http://a:1", "--policy", "c3x")
    assert line.startswith("balancer: --policy: policy: unknown policy 'c3x'")


@pytest.mark.parametrize(
    "value", [True, 0, -1.5, 1e300, 1e-9, "", 'a"\\b\n\x00\x7f\u2028é😀', [1, [2]], {"a b": [{}]}]
)
def test_values_as_toml(value: object) -> None:
    assert tomllib.loads(f"value = {toml(value)}") == {"value": value}
