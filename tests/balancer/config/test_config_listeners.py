"""Configuration of listeners: messages, `balancer check`."""

from __future__ import annotations

from pathlib import Path

import pytest

from balancer.__main__ import main
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
