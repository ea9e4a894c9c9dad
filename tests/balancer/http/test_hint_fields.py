"""Hints in request fields: priority, timeout and start; senseless values count as absent."""

from __future__ import annotations

import pytest

from balancer.http.h1.client import Client
from balancer.http.h1.request_head import RequestHeads
from balancer.http.h1.request_hints import HintFields

FIELDS = HintFields("X-Priority", {"high": 0, "low": 1}, "X-Timeout-Ms", "X-Request-Start")


def hints_of(*lines: bytes) -> tuple[int | None, float | None, float | None] | None:
    """Level, timeout and start that a head with these lines states."""
    stated = FIELDS.of(b"\r\nHost: a\r\n" + b"".join(line + b"\r\n" for line in lines))
    return (stated.level, stated.limit, stated.started_at) if stated is not None else None


@pytest.mark.parametrize(
    ("line", "stated"),
    [
        (b"Accept: */*", None),
        (b"X-Priority: low", (1, None, None)),
        (b"x-priority:HIGH ", (0, None, None)),
        (b"X-Priority: urgent", (None, None, None)),
        (b"X-Timeout-Ms: 1500", (None, 1.5, None)),
        (b"X-Timeout-Ms: 0", (None, 0.0, None)),
        (b"X-Timeout-Ms: -1", (None, None, None)),
        (b"X-Timeout-Ms: 1e9", (None, None, None)),
        (b"X-Timeout-Ms: 1234567890", (None, None, None)),
        (b"X-Request-Start: 1700000000123", (None, None, 1700000000.123)),
        (b"X-Request-Start: t=1700000000.123", (None, None, 1700000000.123)),
        (b"X-Request-Start: t=1700000000123456", (None, None, 1700000000.123456)),
        (b"X-Request-Start: yesterday", (None, None, None)),
        (b"X-Request-Start: ", (None, None, None)),
        (b"Not-X-Priority: low", None),
    ],
)
def test_hint_of_one_field(line: bytes, stated: object) -> None:
    assert hints_of(line) == stated


def test_hints_of_several_fields() -> None:
    """The last field of a kind counts."""
    lines = (b"X-Priority: low", b"X-Timeout-Ms: 20", b"X-Priority: high", b"X-Request-Start: 1700000000")
    assert hints_of(*lines) == (0, 0.02, 1700000000.0)


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1", b"GET http://a/ HTTP/1.1", b"OPTIONS * HTTP/1.1"])
def test_hints_do_not_outlast_their_request(start: bytes) -> None:
    """Whatever the request line looks like; the fields are forwarded."""
    heads = RequestHeads(Client(b"192.0.2.1", b"a:80", stated=FIELDS), lambda: b"id")
    levels: list[int | None] = []
    for line in (b"", b"X-Priority: low\r\n", b"X-Priority: low\r\n", b"X-Priority: high\r\n", b""):
        request = heads.outgoing(start + b"\r\nHost: a\r\n" + line + b"\r\n")
        assert line in request.head
        stated = request.fields.stated
        levels.append(stated.level if stated is not None else None)
    assert levels == [None, 1, 1, 0, None]


def test_hints_are_not_read_unless_configured() -> None:
    heads = RequestHeads(Client(b"192.0.2.1", b"a:80"), lambda: b"id")
    request = heads.outgoing(b"GET / HTTP/1.1\r\nHost: a\r\nX-Priority: low\r\n\r\n")
    assert request.fields.stated is None
