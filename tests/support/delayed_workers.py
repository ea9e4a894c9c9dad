"""Delayed workers on a virtual clock: bytes take half a round trip, and idle connections are closed.

Like a kernel, a worker that has closed a connection answers further bytes with a reset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from balancer.upstream.connection_counts import PoolCounts
from balancer.upstream.pool import Pool
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
