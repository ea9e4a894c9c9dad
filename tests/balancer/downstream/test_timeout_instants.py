"""No timeout is early, and none later than its sweep: for every key, HTTP/1.1 and HTTP/2, and any phase between its
start and the sweeps.
"""

from __future__ import annotations

import asyncio
import struct
from math import isclose
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.clock import SWEEP_PERIOD
from tests.support import frames
from tests.support.frames import END_HEADERS, frame, head, rst
from tests.support.http2_client import WEBSOCKET, accept_of, fields
from tests.support.scripts import hang
from tests.support.stage import Stage
from tests.support.wire import get
from tests.support.wireless import Peer, Wireless

LIMIT = 2.0
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n"
LONG_POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999\r\n\r\n"
UPGRADE = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
SWITCHED = b"HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: "
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
LONG_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 20000\r\n\r\n" + bytes(20000)
PIECE = bytes(16384)
STALL, TAKE, LEAVE = b"stall", b"take", b"leave"

FRAMES = {
    GET: head(1, *fields()),
    POST: head(1, *fields(method=b"POST"), flags=END_HEADERS),
    LONG_POST: head(1, *fields(method=b"POST"), flags=END_HEADERS),
    UPGRADE: head(1, *WEBSOCKET, flags=END_HEADERS),
    b"x": frame(frames.DATA, b"x", 1),
    b"123456789": frame(frames.DATA, b"123456789", 1, frames.END_STREAM),
    PIECE: frame(frames.DATA, PIECE, 1),
    STALL: frame(frames.SETTINGS, struct.pack("!HI", 4, 0)),
    TAKE: frame(frames.WINDOW_UPDATE, struct.pack("!I", 65535), 1),
    LEAVE: rst(1),
}
"""What a client of HTTP/2 sends for the same."""

Act = tuple[str, bytes]
"""What the client, another one or the first worker sends, or whether it reads; how the next dial goes; or that the
balancer leaves its clients."""

FULL, SMALL = (("in_flight", 1),), (("buffer", 4096),)
SLOW: list[Act] = [("client", STALL), ("client", GET), ("worker", LONG_OK)]

CASES: list[tuple[str, str, list[Act], dict[str, Any]]] = [
    ("head", "2", [], {}),
    ("head", "1", [("client", GET[:9])], {}),
    ("keep_alive", "12", [("client", GET), ("worker", OK)], {}),
    ("keep_alive", "12", [*SLOW, ("client", TAKE)], {"limits": SMALL}),
    ("keep_alive", "2", [("client", GET), ("client", LEAVE)], {}),
    ("keep_alive", "2", [*SLOW, ("client", LEAVE)], {"limits": SMALL}),
    ("request_idle", "12", [("client", POST)], {}),
    ("request_idle", "12", [("client", POST), ("client", b"x")], {}),
    ("request_idle", "12",
     [("client", LONG_POST), ("worker", STALL), *[("client", PIECE)] * 5, ("worker", TAKE)], {}),
    ("request_idle", "12",
     [("other", GET), ("client", LONG_POST), ("client", PIECE), ("worker", OK)], {"limits": FULL + SMALL}),
    ("connect", "12", [("dial", b"hang"), ("client", GET)], {"retries": 0}),
    ("first_byte", "12", [("client", GET)], {}),
    ("first_byte", "12", [("client", POST), ("client", b"123456789")], {}),
    ("attempt", "12", [("client", GET)], {}),
    ("total", "12", [("client", GET)], {}),
    ("queue", "12", [("other", GET), ("client", GET)], {"limits": FULL}),
    ("body_idle", "12", [("client", GET), ("worker", HEAD)], {}),
    ("body_idle", "12", [("client", GET), ("worker", HEAD), ("worker", b"x" * 100)], {}),
    ("tunnel_idle", "12", [("client", UPGRADE), ("worker", SWITCHED), ("client", b"x")], {}),
    ("linger", "1", [("client", b"GET / HTTP/1.1\r\nHost: a\r\nBad Field: x\r\n\r\n")], {}),
    ("linger", "2", [("balancer", LEAVE)], {}),
]  # fmt: skip
"""Key, versions of HTTP, and what leads up to the start of its timeout: time passes before the last act."""


def act(stage: Wireless, version: str, actor: str, data: bytes) -> None:
    """Perform one act."""
    if actor == "dial":
        stage.dialling = data.decode()
        return
    if actor == "balancer":
        for downstream in list(stage.downstreams):
            downstream.close_if_idle(stage.loop.now(), -1.0)
        return
    peer = stage.workers[0] if actor == "worker" else stage.clients[actor == "other"]
    if data is SWITCHED:
        key = bytes(peer.received).partition(b"Sec-WebSocket-Key: ")[2].partition(b"\r")[0]
        data += accept_of(key) + b"\r\n\r\n"
    if actor == "client" and version == "2":
        peer.send(FRAMES[data])
    elif data in (STALL, TAKE):
        peer.stall() if data is STALL else peer.take()
    else:
        peer.send(data)


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


@pytest.mark.parametrize(
    ("key", "version", "acts", "options"),
    [(key, version, *others) for key, versions, *others in CASES for version in versions],
)
@settings(max_examples=12, deadline=None)
@given(
    phase=st.floats(0.0, SWEEP_PERIOD),
    earlier=st.floats(0.0, 1.9),
    lateness=st.floats(0.001, SWEEP_PERIOD / 2),
)
def test_timeouts_are_never_early(
    key: str, version: str, acts: list[Act], options: dict[str, Any],
    phase: float, earlier: float, lateness: float,
) -> None:  # fmt: skip
    with Wireless(2, timeouts=((key, LIMIT),), **{"retries": 1} | options) as stage:
        period = SWEEP_PERIOD + lateness
        sweeps, client = Sweeps(stage, phase, period), stage.client()
        stage.client()
        if version == "2":
            client.send(frames.PREFACE + frame(frames.SETTINGS))
            stage.turn()
        for number, (actor, data) in enumerate(acts, 1):
            if number == len(acts):
                stage.turn()
                sweeps.wait(earlier)
            act(stage, version, actor, data)
            stage.turn()
        started, before = stage.loop.now(), state_of(stage, client)
        while state_of(stage, client) == before:
            sweeps.wait(SWEEP_PERIOD / 8)
            assert stage.loop.now() < started + 2 * LIMIT
        elapsed = stage.loop.now() - started
        assert elapsed > LIMIT or isclose(elapsed, LIMIT)
        assert elapsed < LIMIT + period + SWEEP_PERIOD / 8 + 1e-6
        stage.leave()


def state_of(stage: Wireless, client: Peer) -> tuple[int, str | None, bool, int]:
    """What a timeout changes: bytes at the client, its end, whether it is connected, connections to workers."""
    return len(client.received), client.ending, client.is_open, len(stage.workers)


async def test_grace_period_is_not_cut_short(stage: Stage) -> None:
    """The only timeout that no sweep enforces: it has a timer of the event loop, in real time."""
    await stage.serve(await stage.worker(hang), timeouts={"shutdown": 0.1})
    await stage.sending(get())
    await stage.eventually(lambda: stage.state().in_flight)
    now = asyncio.get_running_loop().time
    began = now()
    assert not await stage.running.stop()
    assert now() - began > 0.1 or isclose(now() - began, 0.1, abs_tol=1e-6)
