"""Internal fields (`headers.internal`): which lines are removed from a field block."""

from __future__ import annotations

import pytest

from balancer.http.h1.client import Client
from balancer.http.h1.internal_fields import InternalFields
from balancer.http.h1.response_head import ResponseHeads
from tests.support.outgoing import outgoing_request

INTERNAL = InternalFields(["X-Shard", "x-shard-key", "steel-int-*"])


@pytest.mark.parametrize(
    ("lines", "left"),
    [
        ([], []),
        (["Host: a", "Accept: */*"], ["Host: a", "Accept: */*"]),
        (["X-SHARD: 1", "Host: a"], ["Host: a"]),
        (["Host: a", "x-shard:1"], ["Host: a"]),
        (["Host: a", "X-Shard: 1", "X-Shard-Key: 2", "B: 3"], ["Host: a", "B: 3"]),
        (["X-Shard: 1", "x-shard: 2"], []),
        (["x-shard:", "Steel-Int-: a", "STEEL-INT-Mesh-Id:\tb", "steel-in: c"], ["steel-in: c"]),
        (["x-shards: 1", "a-x-shard: 2", "x-shar: 3"], ["x-shards: 1", "a-x-shard: 2", "x-shar: 3"]),
        (["Cookie: x-shard: 1", "x-shard: x-shard: 2"], ["Cookie: x-shard: 1"]),
    ],
)
def test_removed_lines(lines: list[str], left: list[str]) -> None:
    assert INTERNAL.without(block(lines)) == block(left)


def test_trailers_have_no_internal_fields() -> None:
    """Of requests also under names that a worker may confuse with them."""
    client = Client(b"192.0.2.1", b"b", b"http", False, INTERNAL)
    trailers = block(["X-Sum: 1", "x_shard: 2", "Steel-Int-A: 3"])
    assert client.sendable_trailers(trailers) == block(["X-Sum: 1"])
    assert client.visible_trailers(trailers) == block(["X-Sum: 1", "x_shard: 2"])
    assert Client(b"192.0.2.1", b"b", b"http", False).sendable_trailers(trailers) == trailers


def test_unchanged_block_is_the_same_object() -> None:
    """A block without internal fields is not copied."""
    whole = block(["Host: a"])
    assert INTERNAL.without(whole) is whole


def head(date: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\nDate: {date}\r\nX-Shard: 1\r\nX-Other: 2\r\nContent-Length: 0\r\n".encode()


def test_repeated_head_is_cached() -> None:
    """The result is cached; another Date makes another head."""
    heads = ResponseHeads()
    first = heads.incoming(head("now")).block_without(INTERNAL)
    assert first == block(["Date: now", "X-Other: 2", "Content-Length: 0"])
    assert heads.incoming(head("now")).block_without(INTERNAL) is first
    assert b"Date: then" in heads.incoming(head("then")).block_without(INTERNAL)


def test_cache_belongs_to_one_set_of_names() -> None:
    """A reload may change the names while the connection stays."""
    response = ResponseHeads().incoming(head("now"))
    for _ in range(2):
        assert b"X-Other" in response.block_without(INTERNAL)
        assert b"X-Shard" not in response.block_without(INTERNAL)
        assert b"X-Other" not in response.block_without(InternalFields(["x-other"]))
        assert b"X-Shard" in response.block_without(InternalFields(["x-other"]))


@pytest.mark.parametrize("is_trusted", [False, True])
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_removal_beside_forwarding_fields(is_trusted: bool, version: bytes) -> None:
    """For trusted and untrusted clients, also when other ends read the fields."""
    names = InternalFields(["X-Shard", "x-real-ip", "steel-*"])
    client = Client(b"10.0.0.1", b"a", is_trusted=is_trusted, internal=names)
    lines = [
        "Host: a",
        "X-Shard: 1",
        "Accept: b",
        "X-Real-IP: 2",
        "TE: trailers",
        "Steel-A: 3",
        "X-Shards: 4",
    ]
    raw = b"GET / HTTP/" + version + block(lines) + b"\r\n"
    head = outgoing_request(raw, client, b"id").head.lower()
    assert b"accept: b" in head
    assert b"x-shards: 4" in head
    assert not [line for line in head.split(b"\r\n") if line.startswith((b"x-shard:", b"x-real", b"steel"))]


def block(lines: list[str]) -> bytes:
    return "\r\n".join(["", *lines, ""]).encode()
