"""Storms: lists of events for a balancer without sockets, and the invariants that hold after each event.

A storm is plain bytes, so an input found by fuzzing can be kept and run again: events in a row, each 0xFE, a letter
of `EVENTS`, and a payload up to the next 0xFE. Bytes before the first event are sent by the storm's unruly side.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

from balancer.clients.turns import Turns
from balancer.config.schema.limits import BufferingLimits
from tests.support.readers import Lenient, requests_seen, responses_seen
from tests.support.wireless import Peer, Wireless, charged, miscounted, reload_with

Event = tuple[str, bytes]

MARK = b"\xfe"

SECONDS = (0.0, 0.3, 1.1, 2.5, 6.0)
"""Durations of a pause event, by its payload."""

TIMEOUTS = (
    *(("head", 1.0), ("request_idle", 1.0), ("keep_alive", 2.0), ("connect", 1.0)),
    *(("first_byte", 1.0), ("body_idle", 1.0), ("queue", 1.0), ("linger", 1.0)),
)
LIMITS = (("head", 4096), ("queue", 3))

BUFFERING = (
    BufferingLimits(),
    BufferingLimits(request=20_000, response=20_000, total=25_000),
    BufferingLimits(request=6_000, response=7_000, total=7_000),
    BufferingLimits(request=4, response=2_000, total=2_000),
)
"""Rules of buffering that a reload applies, by the payload of its event; the first: off."""

MOST_HELD = 4 * 65536
"""Bytes that may be buffered for one peer that reads nothing, without the read that is under way."""

REQUESTS = (
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"GET / HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
)
"""Requests that clients send if the worker is the unruly side."""

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def _send_without_end(peer: Peer) -> None:
    peer.send(b"HTTP/1.1 200 OK\r\n\r\n")
    for _ in range(20):
        peer.send(b"z" * 90_000)


MIRROR_COPIES = 4
MIRROR = (
    ("methods", ("GET", "HEAD", "OPTIONS", "POST")),
    *(("body", 1000), ("max_in_flight", MIRROR_COPIES)),
)

MIRRORS: dict[str, Callable[[Peer], None] | None] = {
    "answer": None,  # by `Storm._answer`
    "refuse": None,
    "hang": None,  # while connecting
    "end": None,
    "silent": lambda peer: None,
    "reset": Peer.vanish,
    "deaf": Peer.stall,
    "endless": _send_without_end,
    "broken": lambda peer: peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nabc\r\n\r\n"),
}
"""Ways of a mirror's worker: what it does when bytes arrive, or how it takes connections."""

_EVENT = re.compile(MARK + rb"(.)", re.S)


def decode(data: bytes, side: str) -> list[Event]:
    """Decode a file into events; `side` is "c" or "w", the sender of bytes before the first event."""
    first, *rest = _EVENT.split(data)
    events = [(side, first)] if first else []
    return events + [(chr(letter[0]), payload) for letter, payload in zip(rest[::2], rest[1::2], strict=True)]


def encode(events: list[Event]) -> bytes:
    """Encode events as a file."""
    return b"".join(MARK + letter.encode("latin-1") + payload for letter, payload in events)


def _of_worker(act: Callable[[Peer], None]) -> Callable[[Storm, bytes], None]:
    def happens(storm: Storm, payload: bytes) -> None:
        if storm.stage.workers:
            act(storm.stage.workers[-1])

    return happens


class Storm:
    """A balancer with two endpoints under a list of events; `side` is the unruly side, the other one keeps to HTTP.

    With `mirror`, a way of `MIRRORS`, all requests are mirrored to a worker that behaves like that. `turns`: in place
    of those of the proxy, whose budget no storm exceeds.
    """

    def __init__(self, side: str, mirror: str | None = None, turns: Turns | None = None) -> None:
        self.side = side
        options: dict[str, Any] = {} if mirror is None else {"mirror": MIRROR}
        self.stage = Wireless(2, timeouts=TIMEOUTS, limits=LIMITS, **options)
        self.stage.cluster.process.turns = turns or self.stage.cluster.process.turns
        self.asked: dict[int, list[bytes]] = {}
        self._answered: dict[int, int] = {}
        self._is_bytewise = False
        self._longest = 0
        if side == "c":
            self.stage.worker_script = self._answer
        if mirror in ("refuse", "hang", "end"):
            self.stage.mirror_dialling = mirror
        self.stage.mirror_script = self._answer if mirror == "answer" else MIRRORS.get(mirror or "silent")

    # --- events

    def run(self, events: list[Event]) -> None:
        """Run the events; check the invariants after each, and the final ones at the end."""
        with self.stage:
            self.stage.client()
            if self.side == "w":
                self._ask(b"")
            for letter, payload in events:
                self.EVENTS.get(letter, Storm._pass)(self, payload)
                self.stage.turn()
                self._check_counts()
            self._check_timeouts_end_everything()
            self._check_readers_agree()
            self._check_nothing_is_left()

    @property
    def peers(self) -> list[Peer]:
        """All clients and workers but those of the mirror, in order."""
        return self.stage.clients + self.stage.workers

    @property
    def _client(self) -> Peer:
        return self.stage.clients[-1]

    def _send(self, peer: Peer, data: bytes) -> None:
        self._longest = max(self._longest, len(data))
        for piece in (data[i : i + 1] for i in range(len(data))) if self._is_bytewise else (data,):
            peer.send(piece)

    def _client_sends(self, payload: bytes) -> None:
        if self.side == "w":
            self._ask(payload)
        else:
            self._send(self._client, payload)

    def _worker_sends(self, payload: bytes) -> None:
        if self.stage.workers:
            self._send(self.stage.workers[-1], payload)

    def _ask(self, payload: bytes) -> None:
        request = REQUESTS[(payload[0] if payload else 0) % len(REQUESTS)]
        if self._client.is_open and not self._client.has_ended:
            self.asked.setdefault(len(self.stage.clients), []).append(request.partition(b" ")[0])
            self._send(self._client, request)

    def _answer(self, peer: Peer) -> None:
        """Respond to every complete request, as a lenient reader counts them."""
        answered = self._answered.get(id(peer), 0)
        reader = Lenient(bytes(peer.received[answered:]), takes_last=False)
        for request in reader.requests():
            if request.is_whole:
                peer.send(ANSWER[:-2] if request.line[0] == b"HEAD" else ANSWER)
        self._answered[id(peer)] = answered + reader.read

    def _pass(self, payload: bytes) -> None:
        self.stage.advance(SECONDS[(payload[0] if payload else 1) % len(SECONDS)])

    def _dial(self, payload: bytes) -> None:
        self.stage.dialling = ("accept", "refuse", "hang")[(payload[0] if payload else 0) % 3]

    def _split(self, payload: bytes) -> None:
        self._is_bytewise = not self._is_bytewise

    def _buffer(self, payload: bytes) -> None:
        control_plane = self.stage.control_plane
        limits = BUFFERING[(payload[0] if payload else 1) % len(BUFFERING)]
        high_water = control_plane.config.settings.limits.model_copy(update={"buffer": 1024})
        reload_with(control_plane, buffering=limits, limits=high_water)
        for downstream in self.stage.downstreams:
            downstream.apply()

    def _toggle(self, payload: bytes) -> None:
        state = self.stage.cluster.router.states[0]
        self.stage.cluster.router.set_enabled(state.id, not state.enabled)

    EVENTS: ClassVar[dict[str, Callable[[Storm, bytes], None]]] = {
        "c": _client_sends,
        "w": _worker_sends,
        "n": lambda self, _: (self.stage.client(), None)[1],
        "e": lambda self, _: self._client.end(),
        "x": lambda self, _: self._client.vanish(),
        "s": lambda self, _: self._client.stall(),
        "t": lambda self, payload: self._client.take(payload[0] * 256 if payload else None),
        "E": _of_worker(Peer.end),
        "X": _of_worker(Peer.vanish),
        "S": _of_worker(Peer.stall),
        "T": _of_worker(Peer.take),
        "p": _pass,
        "d": _dial,
        "b": _split,
        "o": _toggle,
        "B": _buffer,
        "q": lambda self, _: self.stage.cluster.process.drain(),
    }

    # --- invariants

    def _check_counts(self) -> None:
        """At any time: connection counts and kept bytes add up, nothing is leased without a request, and buffers are
        bounded."""
        cluster = self.stage.cluster
        pools = cluster.pools.by_id.values()
        for each in self.stage.clusters[1:]:
            assert each.router.in_flight <= MIRROR_COPIES
            assert sum(pool.leased for pool in each.pools.by_id.values()) <= each.router.in_flight
        held = sum(pool.idle + pool.leased + pool.opening for pool in pools)
        assert held == cluster.pools.open_connections, [*pools]
        assert sum(state.in_flight for state in cluster.router.states) <= cluster.process.in_flight, (
            cluster.router.states
        )
        assert sum(pool.leased for pool in pools) <= cluster.process.in_flight, [*pools]
        assert cluster.process.buffer_budget.kept == charged(cluster)
        assert not miscounted(self.stage.clusters), miscounted(self.stage.clusters)
        bound = MOST_HELD + 2 * self._longest
        peers = self.stage.clients + self.stage.workers + self.stage.copies_to
        assert all(peer.unread <= bound for peer in peers)

    def _check_timeouts_end_everything(self) -> None:
        """Without further events, timeouts alone end every client connection."""
        cluster = self.stage.cluster
        self.stage.control_plane.checks.stop()  # it connects to unreachable endpoints as long as they are
        times = 0
        while (
            times < 16 + 2 * cluster.counts.requests
        ):  # pipelined requests have their timeouts one after the other
            self.stage.advance(2.5)
            times += 1
        left = [peer for peer in self.stage.clients if peer.is_open]
        assert not left, f"open after {2.5 * times} s: {[bytes(peer.received) for peer in left]}"
        assert not cluster.process.downstreams
        assert cluster.process.in_flight == len(cluster.queue) == cluster.process.buffer_budget.kept == 0
        assert not any(mirror.copies for mirror in self.stage.control_plane.mirrors.by_route.values())
        assert not any(pool.leased or pool.opening or pool.idle for pool in cluster.pools.by_id.values())

    def _check_readers_agree(self) -> None:
        """All readers see the same messages, and each request at a worker starts where the balancer began one."""
        routed = 0
        for peer in self.stage.workers:
            seen = requests_seen(bytes(peer.received))
            assert {request.start for request in seen} <= {*peer.writes}
            routed += len(seen)
        assert routed <= self.stage.cluster.router.routed
        for number, methods in self.asked.items():
            peer = self.stage.clients[number - 1]
            seen = responses_seen(bytes(peer.received), methods, peer.ending == "end")
            final = [response for response in seen if response.line[1] >= b"2"]
            assert len(final) <= len(methods)

    def _check_nothing_is_left(self) -> None:
        """When all peers are gone, each request was settled, and nothing refers to a connection."""
        stage, cluster = self.stage, self.stage.cluster
        stage.leave()
        for each in stage.clusters:
            states = each.router.states
            assert [state.in_flight for state in states] == [0] * len(states)
            assert sum(sum(state.outcomes.values()) for state in states) == each.router.routed
            assert each.pools.open_connections == 0
        assert len(cluster.queue) == cluster.process.buffer_budget.kept == len(cluster.process.usages) == 0
        left = stage.left_behind()
        assert not left, left
