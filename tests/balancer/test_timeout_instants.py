"""No timeout is early, and none later than its sweep: for every key and any phase between its start and the sweeps."""

from __future__ import annotations

from math import isclose
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.clock import SWEEP_PERIOD
from tests.balancer.wireless import Peer, Wireless

LIMIT = 2.0
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n"
UPGRADE = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"
SWITCHED = b"HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

Act = tuple[str, bytes]
"""What the client, another one or the first worker sends."""

CASES: list[tuple[str, list[Act], dict[str, Any]]] = [
    ("head", [("client", GET[:9])], {}),
    ("keep_alive", [("client", GET), ("worker", OK)], {}),
    ("request_idle", [("client", POST)], {}),
    ("request_idle", [("client", POST), ("client", b"x")], {}),
    ("first_byte", [("client", GET)], {}),
    ("first_byte", [("client", POST), ("client", b"123456789")], {}),
    ("attempt", [("client", GET)], {}),
    ("total", [("client", GET)], {}),
    ("queue", [("other", GET), ("client", GET)], {"limits": (("in_flight", 1),)}),
    ("body_idle", [("client", GET), ("worker", HEAD)], {}),
    ("body_idle", [("client", GET), ("worker", HEAD), ("worker", b"x" * 100)], {}),
    ("tunnel_idle", [("client", UPGRADE), ("worker", SWITCHED), ("client", b"x")], {}),
    ("linger", [("client", b"GET / HTTP/1.1\r\nHost: a\r\nBad Field: x\r\n\r\n")], {}),
]
"""Key, and what leads up to the start of its timeout: time passes before the last act."""


class Sweeps:
    """Lets time pass with a sweep every `period` seconds, the first one `phase` seconds from the start.

    A timer of the event loop is always a little late, so sweeps are never an exact `SWEEP_PERIOD` apart.
    """

    def __init__(self, stage: Wireless, phase: float, period: float) -> None:
        self._stage = stage
        self._due = phase
        self._period = period

    def wait(self, seconds: float) -> None:
        while self._due <= seconds:
            self._stage.advance(self._due)
            seconds -= self._due
            self._due = self._period
        self._stage.loop.advance(seconds)
        self._due -= seconds


@pytest.mark.parametrize(("key", "acts", "options"), CASES)
@settings(max_examples=25, deadline=None)
@given(
    phase=st.floats(0.0, SWEEP_PERIOD),
    earlier=st.floats(0.0, 1.9),
    lateness=st.floats(0.001, SWEEP_PERIOD / 2),
)
def test_timeouts_are_never_early(
    key: str, acts: list[Act], options: dict[str, Any], phase: float, earlier: float, lateness: float
) -> None:
    with Wireless(2, timeouts=((key, LIMIT),), retries=1, **options) as stage:
        period = SWEEP_PERIOD + lateness
        sweeps, client = Sweeps(stage, phase, period), stage.client()
        clients = {"client": client, "other": stage.client()}
        for number, (sender, data) in enumerate(acts, 1):
            if number == len(acts):
                stage.turn()
                sweeps.wait(earlier)
            (stage.workers[0] if sender == "worker" else clients[sender]).send(data)
            stage.turn()
        started, before = stage.loop.now(), state_of(stage, client)
        while state_of(stage, client) == before:
            sweeps.wait(SWEEP_PERIOD / 8)
            assert stage.loop.now() < started + 2 * LIMIT
        elapsed = stage.loop.now() - started
        assert elapsed > LIMIT or isclose(elapsed, LIMIT)
        assert elapsed < LIMIT + period + SWEEP_PERIOD / 8 + 1e-6
        stage.leave()


def state_of(stage: Wireless, client: Peer) -> tuple[int, bool, int]:
    """What a timeout changes: bytes at the client, whether it is connected, connections to workers."""
    return len(client.received), client.is_open, len(stage.workers)
