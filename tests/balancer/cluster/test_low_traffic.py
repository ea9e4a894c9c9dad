"""A quarter of a request per second and endpoint, to workers 90 ms away that keep connections for 4 s.

Pools and sweep run on a virtual clock: bytes take half a round trip, and a worker that has closed a connection answers
further bytes with a reset, as a kernel does. Expected values are theoretical: arrivals are a Poisson process, so a gap
is longer than t seconds with probability exp(-t/4).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import copy
from math import exp
from random import Random
from typing import Any

import pytest

from balancer.upstream.connection_counts import PoolCounts
from balancer.upstream.http1.pool import ConnectionPool
from balancer.upstream.pool import Pool
from tests.support.wire import get, post
from tests.support.wireless import Peer, Wireless

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n%b\r\nok"


class DelayedWorker:
    """Worker's end of a connection. `life` draws how many seconds it is kept idle."""

    def __init__(self, delayed: DelayedWorkers, peer: Peer) -> None:
        self._delayed = delayed
        self._peer = peer
        self._seen = 0
        self._is_closed = False
        self._idle = 0  # number of idle periods: a timer belongs to one of them
        self._rest()

    def react(self, peer: Peer) -> None:
        """Receive bytes of the balancer."""
        data = bytes(peer.received[self._seen :])
        self._seen += len(data)
        self._delayed.later(self._delayed.trip / 2, self._arrived, data)

    def _arrived(self, data: bytes) -> None:
        if self._is_closed:
            self._delayed.later(self._delayed.trip / 2, self._peer.vanish)
            return
        self._idle += 1
        self._delayed.requests.append(data)
        self._delayed.later(self._delayed.service, self._answer, data.startswith(b"HEAD"))

    def _answer(self, is_head: bool) -> None:
        answer = OK % self._delayed.extra_field
        self._delayed.later(self._delayed.trip / 2, self._peer.send, answer[:-2] if is_head else answer)
        self._rest()

    def _rest(self) -> None:
        self._delayed.later(self._delayed.life(), self._close, self._idle)

    def _close(self, idle: int) -> None:
        if idle == self._idle and not self._is_closed:
            self._is_closed = True
            self._delayed.later(self._delayed.trip / 2, self._peer.end)


class DelayedWorkers(Wireless):
    """A balancer whose workers have a round trip of `trip` s, a service time of `service` s, and send `extra_field`."""

    def __init__(self, life: Callable[[], float], endpoints: int = 1, **options: Any) -> None:
        super().__init__(endpoints, **options)
        self.life = life
        self.trip = 0.09
        self.service = 0.02
        self.extra_field = b""
        self.requests: list[bytes] = []
        self.failed = 0
        self.before: dict[Pool, PoolCounts] = {}

    def later(self, seconds: float, call: Callable[..., object], *args: Any) -> None:
        """Schedule a call."""
        self.loop.call_later(seconds, call, *args)

    def pass_time(self, seconds: float) -> None:
        """Advance the clock, with a sweep every quarter of a second."""
        for _ in range(round(seconds / 0.25)):
            self.advance(0.25)

    def traffic(self, rng: Random, rate: float, number: int, request: bytes) -> list[Peer]:
        """Send `number` requests at random instants, `rate` a second, each from its own client; return the clients."""
        clients: list[Peer] = []

        def arrive() -> None:
            client = self.client()
            client.send(request)
            clients.append(client)
            if len(clients) < number:
                self.later(rng.expovariate(rate), arrive)

        self.later(rng.expovariate(rate), arrive)
        while len(clients) < number:
            self.advance(0.25)
        self.pass_time(1.0)
        return clients

    def _dial(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> asyncio.Future[Any]:
        shown = super()._dial(factory, host, port) if self.dialling == "refuse" else self.loop.create_future()
        if self.dialling == "accept":
            self.later(self.trip, self._connected, shown, factory, host, port)
        return shown

    def _connected(
        self, future: asyncio.Future[Any], factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> None:
        if future.cancelled():
            return
        future.set_result(super()._dial(factory, host, port).result())
        peer = self.workers[-1]
        peer.on_received = DelayedWorker(self, peer).react


ENDPOINTS = 8
RATE = 0.25
NUMBER = 2000
LEARNING = 60
KEPT = 4.0


def timer() -> float:
    """Idle timeout of a worker with a timer."""
    return KEPT


def run(
    life: Callable[[], float], request: bytes, *, extra_field: bytes = b"", retries: int = 0, **pool: Any
) -> DelayedWorkers:
    """Traffic after a learning phase that is not counted."""
    delayed = DelayedWorkers(life, ENDPOINTS, policy="random", retries=retries, pool=tuple(pool.items()))
    delayed.extra_field = extra_field
    rng = Random(1)
    with delayed:
        delayed.traffic(rng, RATE * ENDPOINTS, LEARNING, request)
        delayed.before = {each: copy(each.counts) for each in pools(delayed)}
        delayed.requests.clear()
        clients = delayed.traffic(rng, RATE * ENDPOINTS, NUMBER, request)
        answers = [bytes(client.received) for client in clients]
        delayed.leave()
    delayed.failed = sum(not answer.startswith(b"HTTP/1.1 200") for answer in answers)
    return delayed


def pools(delayed: DelayedWorkers) -> list[ConnectionPool]:
    return [pool for pool in delayed.cluster.pools.by_id.values() if isinstance(pool, ConnectionPool)]


def total(delayed: DelayedWorkers, name: str) -> int:
    return sum(getattr(pool.counts, name) - getattr(delayed.before[pool], name) for pool in pools(delayed))


def cold_share(delayed: DelayedWorkers) -> float:
    """Share of the requests that waited for a connection."""
    return total(delayed, "cold") / NUMBER


@pytest.mark.second_tier
@pytest.mark.parametrize(
    ("extra_field", "idle_timeout"),
    [(b"", 3.5), (b"Keep-Alive: timeout=4\r\n", 3.9)],
    ids=["observed", "announced"],
)
def test_share_of_cold_requests_without_preconnect(extra_field: bytes, idle_timeout: float) -> None:
    """The estimate stays a little below 4 s, so no request meets a close.

    Longer gaps and overlapping requests need a new connection.
    """
    delayed = run(timer, get(), extra_field=extra_field)
    learned = [pool.idle_connections.limit for pool in pools(delayed)]
    assert idle_timeout <= min(learned) <= max(learned) <= KEPT - delayed.trip + 1e-6
    expected = exp(-RATE * min(learned)) + RATE * (delayed.trip + delayed.service)
    assert cold_share(delayed) == pytest.approx(expected, abs=0.04)
    assert (delayed.failed, total(delayed, "died"), total(delayed, "opened")) == (
        0,
        0,
        total(delayed, "cold"),
    )


@pytest.mark.second_tier
def test_closes_without_an_estimate() -> None:
    """With `pool.idle_timeout` equal to the worker's and nothing learned, requests meet its close."""
    delayed = run(timer, get(), risk=0.0, idle_timeout=KEPT)
    assert cold_share(delayed) == pytest.approx(exp(-RATE * KEPT), abs=0.06)
    assert delayed.failed == total(delayed, "died") > 0


@pytest.mark.second_tier
@pytest.mark.parametrize("request_", [get(), post(b"once")], ids=["GET", "POST"])
@pytest.mark.parametrize("heartbeat", [None, "/alive"], ids=["anew", "heartbeats"])
def test_preconnected_connections(request_: bytes, heartbeat: str | None) -> None:
    """Two per endpoint: fewer than 1 % of the requests wait, and none fails."""
    delayed = run(timer, request_, preconnect=2, heartbeat=heartbeat)
    assert cold_share(delayed) < 0.01
    assert (delayed.failed, total(delayed, "died")) == (0, 0)
    beats = sum(
        request.startswith(b"HEAD /alive HTTP/1.1\r\nHost: 192.0.2.1") for request in delayed.requests
    )
    on_their_way = total(delayed, "heartbeats") - beats
    assert 0 <= on_their_way <= ENDPOINTS
    assert len(delayed.requests) == NUMBER + beats
    assert bool(beats) == bool(heartbeat)
    assert delayed.cluster.router.routed == NUMBER + LEARNING, "policies saw the requests alone"


@pytest.mark.second_tier
def test_worker_that_closes_at_random() -> None:
    """Idempotent requests use old connections and are retried; others get a new one."""
    drawn = Random(7)
    delayed = run(lambda: drawn.uniform(0, 2), get(), retries=2)
    assert delayed.failed == 0
    assert min(pool.idle_connections.limit for pool in pools(delayed)) > 0.25
    assert total(delayed, "reused") > 0.1 * NUMBER
    delayed = run(lambda: drawn.uniform(0.2, 2), post(b"once"), retries=0)
    assert delayed.failed == 0
    assert total(delayed, "reused") < 0.05 * NUMBER
