"""Load generator for a service: open loop, over TLS or not, to one address.

A request counts as sent when the generator takes it up, so opening or waiting for a connection belongs to its service
time. A request on a connection that the server closes while it is idle is sent once more on another, as HTTP clients do
(RFC 9112 section 9.3.1), if its method is idempotent.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from experiments.errors import FleetFailedError
from experiments.generator.client import GeneratorConnection
from experiments.generator.connections import Connections
from experiments.generator.generator import SPARE_CONNECTIONS, Generator, InFlightRequest, ignore_start
from experiments.generator.ledger import Ledger
from experiments.run_data import Floats
from experiments.service.target import Destination

IDEMPOTENT = (b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE")


class ServiceRequest(InFlightRequest):
    """One request to the service."""

    __slots__ = ("_destination", "_is_on_used_connection", "_was_repeated")

    def __init__(self, generator: ServiceGenerator, number: int) -> None:
        super().__init__(generator, number)
        self._destination = generator.destination
        self._is_on_used_connection = self._was_repeated = False

    def depart(self, connection: GeneratorConnection) -> bool:
        """Send the request on a connection; returns False if it timed out while the connection was being made."""
        if self.has_ended:
            return False
        self._connection = connection
        self._is_on_used_connection = connection.has_answered
        connection.send(self._destination.request, self, self._destination.method)
        return True

    def answer_failed(self) -> None:
        connection = self._connection
        may_repeat = self._is_on_used_connection and self._destination.method in IDEMPOTENT
        if (
            self.has_ended
            or self._was_repeated
            or not may_repeat
            or connection is None
            or not connection.has_died
        ):
            super().answer_failed()
            return
        self._was_repeated, self._connection = True, None
        self._generator.connections.lease_new(self.depart, self.refused)


class ServiceGenerator(Generator):
    """Sends requests to `destination` at `instants`, over at most `most` connections."""

    def __init__(self, destination: Destination, instants: Floats, timeout: float, most: int) -> None:
        pool = Connections(*destination.address, SPARE_CONNECTIONS, destination.tls, most)
        super().__init__(destination.address, "load", (), instants, len(instants), timeout, connections=pool)
        self.destination = destination

    async def run(self, connections: int, begun: Callable[[float], None] = ignore_start) -> Ledger:
        """Open `connections` as far as the service accepts them, send all requests, wait for every end."""
        with suppress(FleetFailedError):
            await self.connections.open(connections)
        return await super().run(0, begun)

    def _send(self, at: float) -> None:
        flight = ServiceRequest(self, self.ledger.due(at))
        self.ledger.sent_at[flight.number] = time.monotonic()
        self._flights.append(flight)
        self.connections.lease(flight.depart, flight.refused)
