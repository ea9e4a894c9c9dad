"""Workers a long way off, on a virtual clock: what is said takes half a round trip, and idle connections are closed.

Rule of this file: bytes are late, and nothing else is different from `wireless.py`. A worker that has closed answers
what still comes with a reset, as a kernel does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from balancer.upstream.connection_counts import PoolCounts
from balancer.upstream.pool import Pool
from tests.balancer.wireless import Peer, Wireless

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n%b\r\nok"


class FarWorker:
    """One connection's other end. `life` draws how many seconds it is kept idle."""

    def __init__(self, far: Far, peer: Peer) -> None:
        self._far = far
        self._peer = peer
        self._seen = 0
        self._is_closed = False
        self._idle = 0  # times that it became idle: of which one is counted down
        self._rest()

    def react(self, peer: Peer) -> None:
        """Bytes have left the unit."""
        data = bytes(peer.received[self._seen :])
        self._seen += len(data)
        self._far.later(self._far.trip / 2, self._arrived, data)

    def _arrived(self, data: bytes) -> None:
        if self._is_closed:
            self._far.later(self._far.trip / 2, self._peer.vanish)
            return
        self._idle += 1
        self._far.requests.append(data)
        self._far.later(self._far.service, self._answer, data.startswith(b"HEAD"))

    def _answer(self, is_head: bool) -> None:
        answer = OK % self._far.says
        self._far.later(self._far.trip / 2, self._peer.send, answer[:-2] if is_head else answer)
        self._rest()

    def _rest(self) -> None:
        self._far.later(self._far.life(), self._close, self._idle)

    def _close(self, idle: int) -> None:
        if idle == self._idle and not self._is_closed:
            self._is_closed = True
            self._far.later(self._far.trip / 2, self._peer.end)


class Far(Wireless):
    """A unit whose workers are `trip` seconds away and back, take `service` seconds, and say `says` in each head."""

    def __init__(self, life: Callable[[], float], endpoints: int = 1, **options: Any) -> None:
        super().__init__(endpoints, **options)
        self.life = life
        self.trip = 0.09
        self.service = 0.02
        self.says = b""
        self.requests: list[bytes] = []
        self.failed = 0
        self.before: dict[Pool, PoolCounts] = {}

    def later(self, seconds: float, call: Callable[..., object], *args: Any) -> None:
        """It happens then."""
        self.loop.call_later(seconds, call, *args)

    def pass_time(self, seconds: float) -> None:
        """As long, with a sweep every quarter of a second."""
        for _ in range(round(seconds / 0.25)):
            self.advance(0.25)

    def traffic(self, rng: Random, rate: float, number: int, request: bytes) -> list[Peer]:
        """So many requests at random instants, `rate` a second, each of a client of its own, and what they take."""
        clients: list[Peer] = []

        def come() -> None:
            client = self.client()
            client.send(request)
            clients.append(client)
            if len(clients) < number:
                self.later(rng.expovariate(rate), come)

        self.later(rng.expovariate(rate), come)
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
        peer.on_received = FarWorker(self, peer).react
