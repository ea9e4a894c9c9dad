"""A request of HTTP/2 of some 20 bytes that refers to long fields costs at most four times a short one, whatever is
configured; clients with large cookies and tokens are served."""

from __future__ import annotations

import sys

import pytest

from balancer.config.schema.limits import Limits
from balancer.downstream.http2.request_heads import StreamRequestHeads
from balancer.errors import RequestRejected
from balancer.http.h1.client import Client
from tests.support.amplified import ALL, FEATURES, HEADS, Played, play
from tests.support.expressions import IS_COMPILED

MOST = 4.0
AMBIGUOUS = {
    "routes by path": [f":path {name}" for name in ("%61", "%2f", "%e4a", "../", "%2e%2e/")],
    "routes by parameter": [":path x?%61&"],
}
OK = b"\x88"
"""The status 200 as an indexed field."""

pytestmark = pytest.mark.no_cover


class Calls:
    """Number of calls of Python and C functions so far."""

    def __init__(self) -> None:
        self.number = 0
        self.marks: list[int] = []

    def __call__(self, frame: object, event: str, argument: object) -> None:
        self.number += event in ("call", "c_call")

    def mark(self) -> None:
        self.marks.append(self.number)


def too_costly(played: list[Played], costs: list[int]) -> list[str]:
    """The heads that cost more than `MOST` short ones; the first is a short one."""
    assert len(costs) == len(played) > 1
    assert costs[0] > 0
    return [
        f"{one.feature}, {one.head}: {cost / costs[0]:.1f}"
        for one, cost in zip(played, costs, strict=True)
        if cost > MOST * costs[0]
    ]


@pytest.mark.skipif(IS_COMPILED, reason="calls of compiled code are not counted")
@pytest.mark.parametrize("feature", FEATURES)
def test_calls_of_a_head_that_refers_to_long_fields(feature: str) -> None:
    """No function is called for each byte, code, cookie or address of a head; what is repeated too often is refused."""
    calls = Calls()
    before = sys.getprofile()
    sys.setprofile(calls)
    try:
        played = list(play(feature, list(ALL), calls.mark))
    finally:
        sys.setprofile(before)
    costs = [after - start for start, after in zip(calls.marks[::2], calls.marks[1::2], strict=True)]
    assert too_costly(played, costs) == []
    refused = [one.head for one in played if one.statuses != {OK}]
    ambiguous = AMBIGUOUS.get(feature, [])
    assert refused == [*(head for head in HEADS if head.startswith("8 x")), *ambiguous]


# --- what clients send


def read(*others: tuple[bytes, bytes]) -> None:
    heads = StreamRequestHeads(Client(b"192.0.2.7", b"127.0.0.1:80"), Limits(), lambda: b"id")
    asked = ((b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"a"), (b":path", b"/"))
    for _ in range(100):
        heads.read((*asked, *others), True)


TOKEN = b"t" * 3_000


@pytest.mark.parametrize(
    "others",
    [
        [(b"cookie", b"c" * 8_192)],
        [(b"cookie", b"c%03d=%b" % (at, b"x" * 100)) for at in range(180)],
        [(b"cookie", b"c%03d=%b" % (at, b"x" * 1000)) for at in range(16)],
        [(b"authorization", b"Bearer " + b"t" * 16_384), (b"cookie", b"sid=1")],
        [(b"cookie", b"jwt=" + TOKEN), (b"cookie", b"jwt=" + TOKEN), (b"authorization", TOKEN)],
        [(b"x-tag", b"same")] * 90,
    ],
    ids=["cookie", "crumbs", "long crumbs", "token", "token of two paths", "short field"],
)
def test_large_heads_of_clients(others: list[tuple[bytes, bytes]]) -> None:
    read(*others)


@pytest.mark.parametrize(
    "others",
    [[(b"cookie", b"c" * 4_000)] * 3, [(b"x" * 4_000, b"%d" % at) for at in range(3)]],
    ids=["field", "name"],
)
def test_head_of_the_same_long_field(others: list[tuple[bytes, bytes]]) -> None:
    """Whether it refers to a field or only to its name."""
    with pytest.raises(RequestRejected) as caught:
        read(*others)
    assert (caught.value.status, caught.value.reason) == (431, "head_too_large")
