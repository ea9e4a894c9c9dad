"""Client connection with one awaited request at a time.

A broken connection and an error status count alike as failure; the next request opens a new connection. Instants are
read from the monotonic clock next to the socket.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass

from experiments.generator.client import GeneratorConnection, connect
from experiments.platform.processes import all_of

CONNECT_TIMEOUT = 150.0
"""Seconds. With a full backlog, a client connects when the kernel retries the SYN, after 1, 3, 7, 15, 31, 63 s."""


@dataclass(frozen=True, slots=True)
class ClientAnswer:
    """Result of one request. `took` is seconds from sending to the last byte; `status` is 0 if the connection broke;
    `service` is the service time in seconds that the worker reports; `call` names the kind of request.
    """

    status: int
    took: float
    service: float = 0.0
    call: str = ""

    @property
    def is_ok(self) -> bool:
        return 200 <= self.status < 400


def failures(answers: Iterable[ClientAnswer]) -> int:
    """Number of requests that broke or got a status of 400 or more."""
    return sum(not one.is_ok for one in answers)


class OneCaller:
    """Client with at most one connection, which it owns."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._connection: GeneratorConnection | None = None

    async def ask(self, method: str = "GET", body: bytes = b"", call: str = "") -> ClientAnswer:
        """Send one request and wait for the response. Raises `NotConnected` if no connection can be made."""
        connection = self._connection
        if connection is None:
            connection = self._connection = await connect(self, self._host, self._port, CONNECT_TIMEOUT)
        head = f"{method} /work HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
        if body or method not in ("GET", "HEAD", "DELETE"):
            head += f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\n"
        receiver = TimedAnswer()
        began_at = time.monotonic()
        connection.send(f"{head}\r\n".encode() + body, receiver, method.encode())
        try:
            ended_at = await receiver.ended
        except asyncio.CancelledError:
            self.close()
            raise
        if not connection.is_reusable:
            self.close()
        return ClientAnswer(receiver.status, ended_at - began_at, receiver.service, call)

    def close(self) -> None:
        """Close the connection without waiting."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # --- ConnectionOwner

    def connection_closed(self, connection: GeneratorConnection) -> None:
        if self._connection is connection:
            self._connection = None


class TimedAnswer:
    """Receiver of one response. `ended` resolves to the instant of its last byte."""

    def __init__(self) -> None:
        self.status = 0
        self.service = 0.0
        self.ended: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def answer_started(self, status: int, head: bytes) -> None:
        self.status = status
        self.service = service_in(head)

    def answer_ended(self) -> None:
        if not self.ended.done():
            self.ended.set_result(time.monotonic())

    def answer_failed(self) -> None:
        self.status = 0
        self.answer_ended()


def service_in(block: bytes) -> float:
    """Service time in seconds from a response's header block; 0 without the field."""
    _, found, rest = block.lower().partition(b"\r\nx-worker-service-time:")
    return float(rest.partition(b"\r\n")[0]) if found else 0.0


@dataclass(frozen=True, slots=True)
class Calls:
    """Finished calls, within `span` seconds."""

    answers: list[ClientAnswer]
    span: float


async def scheduled(address: tuple[str, int], requests: Iterable[tuple[float, str, bytes, str]]) -> Calls:
    """Open loop on new connections: of each request the instant in seconds, method, body and kind.

    Raises `NotConnected`.
    """
    answers: list[ClientAnswer] = []
    began_at = time.monotonic()

    async def send(at: float, method: str, body: bytes, call: str) -> None:
        await asyncio.sleep(began_at + at - time.monotonic())
        with closing(OneCaller(*address)) as client:
            answers.append(await client.ask(method, body, call))

    await all_of(send(*request) for request in requests)
    return Calls(answers, time.monotonic() - began_at)
