"""Listeners, rate limits and the store of several balancers in a configuration: messages, `balancer check`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from balancer.__main__ import main
from balancer.config.schema.rate_limits import RateLimitConfig
from balancer.config.schema.sections import SharedConfig
from tests.support.certificates import Shelf
from tests.support.command_line import run_in_process
from tests.support.config_files import problems, refusals, write

ENDPOINT = '[[endpoints]]\nid = "w"\naddress = "http://w:1"\n'
CLUSTER = '[clusters.api]\nendpoints = [{ id = "a", address = "http://a:1" }]\n'
HTTP = "[listeners.http]\n"
PROBLEMS_OF_HTTP = """
cluster = 'api' -> listen: is required
listen = '80' -> listen: must be host:port with a port of 0–65535, got '80'
listen = 'unix:x' -> listen: must be unix: and the absolute path of a socket, got 'unix:x'
listen = ':80'; cluster = 'a' -> cluster: must be one of api, default, got 'a'
listen = '127.0.0.1:8080' -> listen: is the address of listen, too
listen = ':80'; mode = '600' -> mode: applies only to a Unix socket
listen = ':80'; cluster = 'api'; redirect.scheme = 'https' -> redirect: give cluster or redirect, not both
listen = ':80'; redirect.scheme = 'http' -> redirect: all requests of this listener already ask for the scheme http
listen = ':80'; redirect = {} -> redirect: scheme, host, path, replace_prefix: give one of them or more
listen = ':80'; redirect.replace_prefix = '/' -> redirect: all requests of this listener already ask for /
listen = ':80'; tls.certificate = '/none' -> tls.certificate: cannot read /none: No such file or directory
listen = ':80'; redirct = 1 -> redirct: is not a known key; did you mean 'redirect'?
"""
PROBLEMS = [
    *((text, f"listeners.http.{problem}") for text, problem in refusals(PROBLEMS_OF_HTTP)),
    (f"listen = 'unix:/{'x' * 107}'", "listeners.http.listen: must have at most 107 bytes behind unix:"),
    (
        "listen = ':80'\n[listeners.b]\nlisten = ':80'",
        "listeners.b.listen: is the address of listeners.http, too",
    ),
    ("listen = 'unix:/s'\nmode = '888'", "listeners.http.mode: "),
    ("listen = ':80'\nproxy_protocol = ['x']", "listeners.http.proxy_protocol.0: "),
    (
        "listen = ':80'\n[listeners.default]\nlisten = ':81'",
        "listeners.default: is the name of the address 'listen'",
    ),
]


@pytest.mark.parametrize(("text", "expected"), PROBLEMS, ids=[expected for _, expected in PROBLEMS])
def test_problems_name_the_listener_and_what_is_allowed(tmp_path: Path, text: str, expected: str) -> None:
    lines = problems(write(tmp_path, f"{HTTP}{text}\n{ENDPOINT}{CLUSTER}"))
    assert any(expected in line for line in lines), lines
    assert all(line.startswith("balancer.toml") for line in lines)


def test_check_lists_the_listeners(tmp_path: Path) -> None:
    """A cluster that only a listener leads to is in use."""
    pair = Shelf(tmp_path).pair("shop.example.org")
    path = write(
        tmp_path,
        f"{HTTP}listen = ':80'\nredirect = {{ scheme = 'https', host = 'shop.example.org:8443' }}\n"
        f"[listeners.api]\nlisten = 'unix:/run/api.sock'\ncluster = 'api'\n"
        f"[listeners.more]\nlisten = ':443'\ntls = {{ certificate = '{pair['certificate']}', key = '{pair['key']}' }}\n"
        f"{ENDPOINT}{CLUSTER}",
    )
    lines = run_in_process(main, "balancer", "check", str(path)).stdout.splitlines()
    assert lines[1:4] == [
        "listener http: http://:80, redirect 308 to https://shop.example.org:8443",
        "listener api: unix:/run/api.sock, cluster api",
        "listener more: https://:443, routes",
    ]
    assert not [line for line in lines if "clusters.api" in line]


# --- rate limits


LIMIT = '[[rate_limits]]\nname = "a"\nrequests = 10\n'
ROUTE = '[[routes]]\ncluster = "default"\n'


def test_unused_limit_is_reported(tmp_path: Path) -> None:
    limits = LIMIT + LIMIT.replace('"a"', '"b"') + LIMIT.replace('"a"', '"c"') + "everywhere = true\n"
    path = write(tmp_path, f"{ENDPOINT}{limits}{ROUTE}rate_limit = 'b'")
    lines = run_in_process(main, "balancer", "check", str(path)).stdout.splitlines()
    assert "  *://*/*        cluster default, rate limit b" in lines
    assert [line for line in lines if line.startswith("warning")] == [
        "warning: rate limit a: applies to no request; name it in a route, or set everywhere = true"
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"name": "b"},
        {"requests": 2},
        {"period": 2},
        {"burst": 7},
        {"by": "all"},
        {"by": "header", "header": "x"},
        {"by": "header", "header": "y"},
    ],
)
def test_buckets_belong_to_what_defines_a_limit(change: dict[str, Any]) -> None:
    """Everything that gives a level another meaning, and nothing else, changes how buckets are found."""
    one: dict[str, Any] = {"name": "a", "requests": 1, "by": "header", "header": "z"}
    given = {key: value for key, value in one.items() if key != "header" or change.get("by") != "all"}
    assert RateLimitConfig(**given | change).identity != RateLimitConfig(**one).identity
    same = RateLimitConfig(**{**one, "header": "Z", "burst": 1, "everywhere": True})
    assert same.identity == RateLimitConfig(**one).identity


# --- the store that balancers share


def checked(tmp_path: Path, table: str, *options: str) -> tuple[int, str]:
    path = write(tmp_path, f"{ENDPOINT}[shared]\n{table}\n")
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
