"""Configuration of rate limits: defaults, messages, warnings of `balancer check`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from balancer.__main__ import main
from balancer.config.schema.rate_limits import RateLimitConfig
from tests.support.command_line import run_in_process
from tests.support.config_files import problems, refusals, write

ENDPOINT = '[[endpoints]]\nid = "w"\naddress = "http://w:1"\n'
LIMIT = '[[rate_limits]]\nname = "a"\nrequests = 10\n'
ROUTE = '[[routes]]\ncluster = "default"\n'


PROBLEMS_OF_A_LIMIT = """
burst = 0 -> rate_limits.0.burst: input should be greater than or equal to 1, got 0
period = 0 -> rate_limits.0.period: input should be greater than or equal to 1, got 0
period = 0.5 -> rate_limits.0.period: input should be a valid integer, got 0.5
by = 'ip' -> rate_limits.0.by: input should be 'client', 'key', 'header' or 'all', got 'ip'
by = 'header' -> rate_limits.0.header: is required with by = "header": which field
header = 'x' -> rate_limits.0.header: applies only to by = "header"
[[routes]]; cluster = 'default'; rate_limit = 'b' -> routes.0.rate_limit: must be one of a, got 'b'
max_buckets = 1 -> rate_limits.0.max_buckets: is not a known key
"""
NO_KEY = (
    'rate_limits.0.by: "key" needs a request key: give [key] or sticky.header; a sticky cookie names an endpoint, '
    "not a client"
)
PROBLEMS = [
    *((LIMIT + text, message) for text, message in refusals(PROBLEMS_OF_A_LIMIT)),
    ('[[rate_limits]]\nname = "a"', "rate_limits.0.requests: is required"),
    ("[[rate_limits]]\nrequests = 1", "rate_limits.0.name: is required"),
    (f"{LIMIT}{LIMIT}", "rate_limits.1.name: 'a' is there twice"),
    (f"{ROUTE}rate_limit = 'b'", "routes.0.rate_limit: must be one of none, got 'b'"),
    (f"{LIMIT}by = 'key'", NO_KEY),
    (f"{LIMIT}by = 'key'\n[sticky]\ncookie = 'c'\nkey = '{'k' * 16}'", NO_KEY),
]


@pytest.mark.parametrize(("text", "expected"), PROBLEMS)
def test_mistake_gets_one_line(tmp_path: Path, text: str, expected: str) -> None:
    [line] = problems(write(tmp_path, ENDPOINT + text))
    assert line.partition(": ")[2] == expected


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
