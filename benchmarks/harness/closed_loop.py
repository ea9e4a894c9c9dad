"""Closed-loop load generator for machines without wrk; prints a report in the format of wrk. Measures no latency.

    python -m benchmarks.harness.closed_loop JSON

JSON has the fields of `ClosedLoop`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import cast

import httptools
import uvloop

from benchmarks.harness.certificates import client_context


class LoopClient(asyncio.Protocol):
    """One connection that sends the next request as soon as the response is complete."""

    def __init__(self, request: bytes, counts: Counter[str]) -> None:
        self._request = request
        self._counts = counts
        self.is_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpResponseParser(self)
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.abort()

    def on_message_complete(self) -> None:
        if not self.is_over:
            self._counts["requests"] += 1
            self._counts["bad status"] += self._parser.get_status_code() >= 400
            self.transport.write(self._request)

    def connection_lost(self, error: Exception | None) -> None:
        self._counts["read"] += not self.is_over


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Load on 127.0.0.1:`port` for `seconds`; `body` is the size of the request's body in bytes."""

    port: int
    method: str
    path: str
    body: int
    connections: int
    seconds: float
    is_tls: bool

    @property
    def request(self) -> bytes:
        """The request that is repeated."""
        length = f"Content-Length: {self.body}\r\n" if self.body else ""
        head = f"{self.method} {self.path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n{length}\r\n"
        return head.encode() + b"x" * self.body

    async def run(self) -> str:
        """Keep all connections busy; returns the report."""
        loop, counts, clients = asyncio.get_running_loop(), Counter[str](), list[LoopClient]()
        security = client_context() if self.is_tls else None
        began_at = time.monotonic()
        for _ in range(self.connections):
            try:
                _, client = await loop.create_connection(
                    lambda: LoopClient(self.request, counts), "127.0.0.1", self.port, ssl=security
                )
                clients.append(client)
            except OSError:
                counts["connect"] += 1
        await asyncio.sleep(began_at + self.seconds - time.monotonic())
        took = time.monotonic() - began_at
        for client in clients:
            client.is_over = True
            client.transport.abort()
        return report(counts, took)


def report(counts: Counter[str], took: float) -> str:
    """The lines of wrk's report that are parsed."""
    return (
        f"  {counts['requests']} requests in {took:.2f}s\n"
        f"  Socket errors: connect {counts['connect']}, read {counts['read']}, write 0, timeout 0\n"
        f"  Non-2xx or 3xx responses: {counts['bad status']}\n"
        f"Requests/sec: {counts['requests'] / took:.2f}\n"
    )


if __name__ == "__main__":
    print(uvloop.run(ClosedLoop(**json.loads(sys.argv[1])).run()), end="")
