"""Client connection with one awaited request at a time, its answers and a summary of their latencies.

A broken connection and an error status count alike as failure; the next request opens a new connection. Instants are
read from the monotonic clock next to the socket.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import astuple, dataclass, fields
from typing import Any

import numpy as np

from experiments.generator.client import GeneratorConnection, connect
from experiments.platform.processes import Child, all_of
from experiments.reproduce.launch import Counts, connection_counts

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


class OneCaller:
    """Client with at most one connection, which it owns."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._connection: GeneratorConnection | None = None
        self._status, self._service = 0, 0.0
        self._ended: asyncio.Future[float]

    async def ask(self, method: str = "GET", body: bytes = b"", call: str = "") -> ClientAnswer:
        """Send one request and wait for the response. Raises `NotConnected` if no connection can be made."""
        connection = self._connection
        if connection is None:
            connection = self._connection = await connect(self, self._host, self._port, CONNECT_TIMEOUT)
        head = f"{method} /work HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
        if body or method not in ("GET", "HEAD", "DELETE"):
            head += f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\n"
        self._status, self._service = 0, 0.0
        self._ended = asyncio.get_running_loop().create_future()
        began_at = time.monotonic()
        connection.send(f"{head}\r\n".encode() + body, self, method.encode())
        try:
            ended_at = await self._ended
        except asyncio.CancelledError:
            self.close()
            raise
        if not connection.is_reusable:
            self.close()
        return ClientAnswer(self._status, ended_at - began_at, self._service, call)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # --- ConnectionOwner

    def connection_closed(self, connection: GeneratorConnection) -> None:
        if self._connection is connection:
            self._connection = None

    # --- AnswerReceiver

    def answer_started(self, status: int, head: bytes) -> None:
        self._status, self._service = status, service_in(head)

    def answer_ended(self) -> None:
        if not self._ended.done():
            self._ended.set_result(time.monotonic())

    def answer_failed(self) -> None:
        self._status = 0
        self.answer_ended()


def service_in(block: bytes) -> float:
    """Service time in seconds from a response's header block; 0 without the field."""
    _, found, rest = block.lower().partition(b"\r\nx-worker-service-time:")
    return float(rest.partition(b"\r\n")[0]) if found else 0.0


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """`rate` in requests per second, the others in milliseconds."""

    rate: float
    min: float
    p50: float
    p75: float
    p95: float
    p99: float
    max: float
    mean: float
    sd: float

    def texts(self) -> list[str]:
        """All values, with one decimal below a hundred."""
        return [f"{value:.1f}" if value < 100 else f"{value:.0f}" for value in astuple(self)]


SUMMARY_HEADS = ("req/s", *(field.name for field in fields(LatencySummary)[1:]))


def summary_of(seconds: Sequence[float], span: float) -> LatencySummary:
    """Summary of at least one latency in seconds, over `span` seconds."""
    taken = np.array(seconds) * 1e3
    ranks = np.percentile(taken, [0, 50, 75, 95, 99, 100], method="inverted_cdf")
    least, p50, p75, p95, p99, most = map(float, ranks)
    rate = len(taken) / span if span > 0 else 0.0
    return LatencySummary(rate, least, p50, p75, p95, p99, most, float(taken.mean()), float(taken.std()))


@dataclass(frozen=True, slots=True)
class Calls:
    """Finished calls within `span` seconds, and what a balancer's connections did meanwhile."""

    answers: list[ClientAnswer]
    span: float
    connections: Counts

    @property
    def failed(self) -> int:
        """Number of requests that broke or got a status of 400 or more."""
        return sum(not one.is_ok for one in self.answers)

    def latency(self, time_scale: float = 1.0) -> LatencySummary:
        """Summary of all calls, failed ones too; `time_scale` is the measured seconds per second."""
        return summary_of([one.took / time_scale for one in self.answers], self.span / time_scale)


async def calls_of(
    balancer: Child, parties: Iterable[Coroutine[Any, Any, None]], answers: list[ClientAnswer]
) -> Calls:
    """Run all parties at once, which add their answers. Raises `FleetFailedError`."""
    before, began_at = await connection_counts(balancer), time.monotonic()
    await all_of(parties)
    span, after = time.monotonic() - began_at, await connection_counts(balancer)
    return Calls(answers, span, {name: count - before[name] for name, count in after.items()})


async def scheduled(balancer: Child, requests: Iterable[tuple[float, str, bytes, str]]) -> Calls:
    """Open loop on new connections, by instant (s), method, body and kind of each. Raises `FleetFailedError`."""
    answers: list[ClientAnswer] = []

    async def send(due_at: float, method: str, body: bytes, call: str) -> None:
        await asyncio.sleep(due_at - time.monotonic())
        with closing(OneCaller(*balancer.address)) as client:
            answers.append(await client.ask(method, body, call))

    def parties() -> Iterator[Coroutine[Any, Any, None]]:
        began_at = time.monotonic()
        for at, method, body, call in requests:
            yield send(began_at + at, method, body, call)

    return await calls_of(balancer, parties(), answers)
