"""Closed-loop load generator for machines without wrk; prints a report in the format of wrk. Measures no latency.

python -m benchmarks.harness.closed_loop PORT METHOD PATH BODY_BYTES CONNECTIONS SECONDS [tls]
"""

from __future__ import annotations

import asyncio
import ssl
import sys
import time
from collections import Counter
from typing import cast

import httptools
import uvloop

from benchmarks.harness.certificates import client_context


class Client(asyncio.Protocol):
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


def request_bytes(port: int, method: str, path: str, body: int) -> bytes:
    """Bytes of the request that is repeated."""
    length = f"Content-Length: {body}\r\n" if body else ""
    return f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{length}\r\n".encode() + b"x" * body


async def load(
    port: int, request: bytes, connections: int, seconds: float, security: ssl.SSLContext | None = None
) -> str:
    """Keep `connections` busy for `seconds`; returns the report."""
    loop, counts, clients = asyncio.get_running_loop(), Counter[str](), list[Client]()
    began_at = time.monotonic()
    for _ in range(connections):
        try:
            _, client = await loop.create_connection(
                lambda: Client(request, counts), "127.0.0.1", port, ssl=security
            )
            clients.append(client)
        except OSError:
            counts["connect"] += 1
    await asyncio.sleep(began_at + seconds - time.monotonic())
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


def main(
    port: str, method: str, path: str, body: str, connections: str, seconds: str, security: str = ""
) -> None:
    """Run the load and print the report."""
    request = request_bytes(int(port), method, path, int(body))
    context = client_context() if security else None
    print(uvloop.run(load(int(port), request, int(connections), float(seconds), context)), end="")


if __name__ == "__main__":
    main(*sys.argv[1:])
