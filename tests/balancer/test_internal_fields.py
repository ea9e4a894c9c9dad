"""Fields that are for our own network: which lines leave a block, byte for byte."""

from __future__ import annotations

import pytest

from balancer.messages.internal_fields import InternalFields

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
def test_lines_that_leave(lines: list[str], left: list[str]) -> None:
    assert INTERNAL.without(block(lines)) == block(left)


def test_nothing_found_is_the_same_object() -> None:
    """A request without any costs no copy."""
    whole = block(["Host: a"])
    assert INTERNAL.without(whole) is whole


def block(lines: list[str]) -> bytes:
    return "\r\n".join(["", *lines, ""]).encode()
