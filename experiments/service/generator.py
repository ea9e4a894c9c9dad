"""Load generator for a service: open loop, over TLS or not, over HTTP/1.1 or HTTP/2, to one address.

A request counts as sent when the generator takes it up, so opening or waiting for a connection belongs to its service
time. A request on a connection that the server closes while it is idle is sent once more on another, as HTTP clients do
(RFC 9112 section 9.3.1), if its method is idempotent; over HTTP/2 also any that GOAWAY says was not processed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from experiments.errors import FleetFailedError
from experiments.generator.client import Sender
from experiments.generator.connections import Connections
from experiments.generator.generator import SPARE_CONNECTIONS, Generator, InFlightRequest, ignore_start
from experiments.generator.ledger import Ledger
from experiments.run_data import Floats
from experiments.scenario.streams import stream
from experiments.service.target import Destination, PreparedRequest

IDEMPOTENT = (b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE")


class ServiceRequest(InFlightRequest):
    """One request to the service."""

    __slots__ = ("_request", "_was_repeated")

    def __init__(self, generator: ServiceGenerator, number: int) -> None:
        super().__init__(generator, number)
        self._request = generator.request(number)
        self._was_repeated = False

    def depart(self, sender: Sender) -> bool:
        """Send the request; returns False if it timed out while a connection was being made."""
        if self.has_ended:
            return False
        self._sender = sender
        request = self._request
        sender.send(request.head, self, request.method, request.body)
        return True

    def answer_failed(self) -> None:
        if self.has_ended or self._was_repeated or not self._may_be_repeated:
            super().answer_failed()
            return
        self._was_repeated, self._sender = True, None
        self._generator.connections.lease_new(self.depart, self.refused)

    @property
    def _may_be_repeated(self) -> bool:
        sender = self._sender
        if sender is None:
            return False
        has_idled = sender.has_died and sender.has_answered
        return sender.was_refused or (has_idled and self._request.method in IDEMPOTENT)


class ServiceGenerator(Generator):
    """Sends requests to `destination` at `instants`, over at most `most` connections.

    Which of several requests is sent is drawn by `seed`, so that all entries of a block send the same.
    """

    def __init__(
        self, destination: Destination, instants: Floats, timeout: float, most: int, seed: int = 0
    ) -> None:
        pool = Connections(
            *destination.address, SPARE_CONNECTIONS, destination.tls, most, destination.is_http2
        )
        super().__init__(destination.address, "load", (), instants, len(instants), timeout, connections=pool)
        kinds, rng = len(destination.requests), stream("requests", seed)
        self._requests = destination.requests
        self._drawn: list[int] = rng.choice(kinds, len(instants), p=destination.shares).tolist()

    async def run(self, connections: int, begun: Callable[[float], None] = ignore_start) -> Ledger:
        """Open `connections` as far as the service accepts them, send all requests, wait for every end."""
        with suppress(FleetFailedError):
            await self.connections.open(connections)
        return await super().run(0, begun)

    def request(self, number: int) -> PreparedRequest:
        """The request of this number."""
        return self._requests[self._drawn[number]]

    def _send(self, at: float) -> None:
        flight = ServiceRequest(self, self.ledger.due(at))
        self.ledger.sent_at[flight.number] = time.monotonic()
        self._flights.append(flight)
        self.connections.lease(flight.depart, flight.refused)
