"""The configuration: keys, precedence of sources, and messages about invalid values."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from balancer.config.loading import Settings, endpoints_from_workers
from balancer.config.problems import ConfigError
from balancer.config.schema.listen import ListenAddress
from balancer.configuration import load
from tests.support.config_files import problem, write

SAMPLE = """
listen = "127.0.0.1:8080"
home_region = "emea"
policy = "latency-weighted"
[[endpoints]]
id = "emea-0"
address = "http://127.0.0.1:9001"
region = "emea"
weight = 1
"""


def test_sample_configuration(tmp_path: Path) -> None:
    """Given values and defaults."""
    settings = load(write(tmp_path, SAMPLE), {})
    assert (settings.listen, settings.home_region) == ("127.0.0.1:8080", "emea")
    assert (settings.policy.name, settings.policy.options) == ("latency-weighted", {})
    endpoint = settings.endpoints[0].endpoint()
    assert (endpoint.id, endpoint.address) == ("emea-0", "http://127.0.0.1:9001")
    assert (endpoint.region, endpoint.weight, endpoint.max_in_flight) == ("emea", 1.0, None)
    assert (settings.timeouts.first_byte, settings.pool.idle_timeout, settings.retries) == (25.0, 30.0, 2)


def test_precedence_of_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each source supplies the keys that those before it omit."""
    path = write(tmp_path, SAMPLE + "[timeouts]\nhead = 1\nqueue = 1\nlinger = 1\n")
    monkeypatch.setenv("BALANCER_HOME_REGION", "us")
    monkeypatch.setenv("BALANCER_TIMEOUTS__HEAD", "2")
    monkeypatch.setenv("BALANCER_TIMEOUTS__QUEUE", "2")
    monkeypatch.setenv("BALANCER_RETRIES", "3")
    settings = load(path, {"retries": 4, "timeouts": {"queue": 3}})
    assert (settings.home_region, settings.retries, settings.listen) == ("us", 4, "127.0.0.1:8080")
    timeouts = settings.timeouts
    assert (timeouts.linger, timeouts.head, timeouts.queue) == (1, 2, 3)


def test_port_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """$PORT (Heroku) overrides the file and listens on all addresses; the command line overrides it."""
    monkeypatch.setenv("PORT", "5000")
    path = write(tmp_path, SAMPLE)
    assert load(path, {}).listen == "0.0.0.0:5000"
    assert load(path, {"listen": "127.0.0.1:1"}).listen == "127.0.0.1:1"


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:9001",
        "ftp://a:1",
        "http://",
        "http://:1",
        "http://a:0",
        "http://a:99999",
        "http://a:x",
        "http://a:1/path",
        "http://a:1?q",
        "http://a:1#f",
        "http://u@a:1",
        "http://u:p@a:1",
        "http://[::1",
        "",
        "http://a\r\nX: b:80",
        "http://127.0.0.1:80\r\n",
        "http://127.0.0.1\t:80",
        "http://a\x1b[31m",
        "http://a b:80",
        "http://a\u202eb:80",
        "http://" + "a" * 300,
    ],
)
def test_invalid_addresses(tmp_path: Path, address: str) -> None:
    """An endpoint's address is that of a server or of a Unix socket; `urlsplit` ignores line ends and tabs."""
    text = f'[[endpoints]]\nid = "a"\naddress = {json.dumps(address)}\n'
    message = problem(tmp_path, text)
    assert "endpoints.0.address" in message
    assert "http://host:port, https://host:port or http+unix:///path" in message
    assert repr(re.sub("//.*@", "//…@", address))[-60:] in message
    assert "u:p" not in message


@pytest.mark.parametrize("address", ["http://a:1", "http://a:1/", "http://a", "http://[::1]:9"])
def test_valid_addresses(tmp_path: Path, address: str) -> None:
    """The port may be omitted, and a trailing slash is ignored."""
    settings = load(write(tmp_path, f'[[endpoints]]\nid = "a"\naddress = "{address}"\n'), {})
    assert settings.endpoints[0].address == address.rstrip("/")


def test_workers_of_the_command_line() -> None:
    """REGION=URL; ids are numbered within each region."""
    given = ["emea=http://a:1", "us=http://b:1", "emea=http://c:1"]
    assert [endpoint["id"] for endpoint in endpoints_from_workers(given)] == ["emea-0", "us-0", "emea-1"]
    for bad in ("http://a:1", "http://a:1/?x=y", "emea"):
        with pytest.raises(ConfigError, match="--worker"):
            endpoints_from_workers([bad])


@pytest.mark.parametrize(
    ("text", "host", "port", "shown"),
    [
        ("127.0.0.1:80", "127.0.0.1", 80, "127.0.0.1:80"),
        ("localhost:0", "localhost", 0, "localhost:0"),
        ("[::1]:8080", "::1", 8080, "[::1]:8080"),
        (":8080", "0.0.0.0", 8080, "0.0.0.0:8080"),
    ],
)
def test_listen_addresses(text: str, host: str, port: int, shown: str) -> None:
    """host:port, an IPv6 address in brackets, no host: all addresses."""
    address = ListenAddress.parse(text)
    assert (address.host, address.port, str(address)) == (host, port, shown)


@pytest.mark.parametrize("text", ["", "8080", "a:", "a:-1", "a:65536", "a:b", "a:١"])
def test_invalid_listen_addresses(text: str) -> None:
    """Anything without a port of 0–65535 after a colon."""
    with pytest.raises(ValueError, match="host:port"):
        ListenAddress.parse(text)


def test_token_is_not_in_the_repr() -> None:
    endpoints: Any = [{"id": "a", "address": "http://a:1"}]
    control: Any = {"token": "secret-of-some-length"}
    assert "secret" not in repr(Settings(endpoints=endpoints, admin=control))
