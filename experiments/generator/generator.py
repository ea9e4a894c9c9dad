"""The load generator on asyncio: requests are sent when they are due, whatever became of earlier ones.

It needs little processor time (asyncio protocols, llhttp, no task and no timer per request), because a
generator that costs more than the balancer measures itself. Latency counts from the instant at which a request was due,
so a stalled system cannot hide behind requests that were never sent (coordinated omission). Every instant is read from
`time.monotonic()`, never from the loop's cached time.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable, Sequence

from experiments.generator.client import Sender
from experiments.generator.connections import Connections
from experiments.generator.ledger import Ledger
from experiments.run_data import Floats, Kind, Place
from workers.alarm import open_alarm

WORKER_FIELD = re.compile(rb"\r\nx-worker-name:[ \t]*([^\r]*)", re.IGNORECASE)

SPARE_CONNECTIONS = 8
SWEEP = 0.02
"""Seconds between two sweeps for timed-out requests."""


class InFlightRequest:
    """One request in flight: the receiver of its response."""

    __slots__ = ("_generator", "_sender", "has_ended", "kind", "number")

    def __init__(self, generator: Generator, number: int) -> None:
        self._generator = generator
        self.number = number
        self._sender: Sender | None = None
        self.has_ended = False
        self.kind = Kind.OK

    def depart(self, sender: Sender) -> bool:
        """Send the request; returns False if it timed out while a connection was being made."""
        if self.has_ended:
            return False
        self._sender = sender
        self._generator.send(self.number, sender, self)
        return True

    def refused(self) -> None:
        """End the request because no connection could be opened, or none has taken it."""
        self.end(Kind.REFUSED)

    def answer_started(self, status: int, head: bytes) -> None:
        found = WORKER_FIELD.search(head)
        self._generator.ledger.answered(self.number, time.monotonic(), status, found[1] if found else b"")
        if status >= 400:
            self.kind = Kind.ERROR_STATUS

    def answer_ended(self) -> None:
        if self._sender is not None:
            self._generator.connections.give_back(self._sender)
        self.end(Kind.TIMEOUT if self._generator.is_late(self.number) else self.kind)

    def answer_failed(self) -> None:
        self.end(Kind.RESET)

    def time_out(self) -> None:
        """End the request and give up its sender, by which an answer may still arrive."""
        if not self.has_ended:
            if self._sender is not None:
                self._sender.close()
            self.end(Kind.TIMEOUT)

    def end(self, kind: Kind) -> None:
        """Record the end of the request, at most once."""
        if not self.has_ended:
            self.has_ended = True
            self._generator.ended(self.number, kind)


def ignore_start(started_at: float) -> None:
    pass


class Generator:
    """Sends `count` requests: those of `instants` when they are due, the rest one per answer.

    `instants` has shape (m,), m <= count, in seconds from the start. With m == count the loop is open, else it is
    closed and m requests are kept outstanding: a sliding batch. `timeout` in seconds from the due instant. `demand`, if
    given, holds the X-Service-Times header value of each request, by number. `connections` replaces the pool of plain
    connections to `address`.
    """

    flight: type[InFlightRequest] = InFlightRequest
    """Requests in flight."""

    def __init__(
        self,
        address: tuple[str, int],
        name: str,
        places: Sequence[Place],
        instants: Floats,
        count: int,
        timeout: float,
        path: str = "/work",
        demand: Sequence[bytes] = (),
        connections: Connections | None = None,
    ) -> None:
        self.connections = connections or Connections(
            *address, SPARE_CONNECTIONS if len(instants) == count else 0
        )
        self.ledger = Ledger(places, time.monotonic())
        self.count = count
        self._timeout = timeout
        self._due = deque(instants.tolist())
        self._is_closed_loop = len(instants) < count
        host = f"{address[0]}:{address[1]}"
        self._demand = demand
        demand_field = "X-Service-Times: %b\r\n" if demand else ""
        self._head = (
            f"GET {path} HTTP/1.1\r\nHost: {host}\r\nX-Request-ID: {name}-%d\r\n{demand_field}\r\n".encode()
        )
        self._flights: deque[InFlightRequest] = deque()
        self._finished: asyncio.Future[None] | None = None

    async def run(self, connections: int, begun: Callable[[float], None] = ignore_start) -> Ledger:
        """Open `connections`, send all requests, wait for every end. On cancellation, open rows are closed first.

        `begun` is called as the load starts, with that instant of `time.monotonic()`. Raises `FleetFailedError` when
        the first connections cannot be opened.
        """
        loop = asyncio.get_running_loop()
        await self.connections.open(connections)
        self._finished = loop.create_future()
        self._alarm = open_alarm(loop, self._send_due)
        sweeper = loop.create_task(self._sweep())
        self.ledger.started_at = time.monotonic()
        begun(self.ledger.started_at)
        try:
            self._send_due()
            await self._finished
        finally:
            self._alarm.close()
            sweeper.cancel()
            self._finished.cancel()
            await self.connections.close()
            self.ledger.close(time.monotonic())
        return self.ledger

    def head(self, number: int) -> bytes:
        """Bytes of a request, with a unique X-Request-ID."""
        return self._head % ((number, self._demand[number]) if self._demand else number)

    def send(self, number: int, sender: Sender, receiver: InFlightRequest) -> None:
        """Send a request by `sender`, and note when."""
        self.ledger.sent_at[number] = time.monotonic()
        sender.send(self.head(number), receiver)

    def is_late(self, number: int) -> bool:
        """Whether the answer that a request has now came after its timeout."""
        return time.monotonic() > self.ledger.scheduled_at[number] + self._timeout

    def ended(self, number: int, kind: Kind) -> None:
        """Record the end of a request; in a closed loop, send the next one."""
        now = time.monotonic()
        self.ledger.ended(number, now, kind)
        if self._is_closed_loop and len(self.ledger) < self.count and not self.is_over:
            self._send(now)
        elif len(self.ledger.ended_order) >= self.count and not self.is_over:
            assert self._finished is not None
            self._finished.set_result(None)

    @property
    def is_over(self) -> bool:
        """Whether the run has not begun or has ended."""
        return self._finished is None or self._finished.done()

    def _send_due(self) -> None:
        """Send all requests that are due, then set the alarm to the next one."""
        start, due = self.ledger.started_at, self._due
        while due and start + due[0] <= time.monotonic():
            at = start + due.popleft()
            self._send(time.monotonic() if self._is_closed_loop else at)  # a slot is free once it is opened
        self._alarm.set(start + due[0] if due else None)

    def _send(self, at: float) -> None:
        flight = self.flight(self, self.ledger.due(at))
        self._flights.append(flight)
        self.connections.lease(flight.depart, flight.refused)

    async def _sweep(self) -> None:
        """Time out overdue requests. Timeouts are equal, so the oldest requests come first."""
        while True:
            await asyncio.sleep(SWEEP)
            overdue = time.monotonic() - self._timeout
            while self._flights:
                oldest = self._flights[0]
                if not oldest.has_ended and self.ledger.scheduled_at[oldest.number] > overdue:
                    break
                self._flights.popleft().time_out()
