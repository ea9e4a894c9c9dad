"""Bare TCP relay: the cost of moving bytes without parsing them, a lower bound for any Python proxy.

One upstream connection per client connection, workers in turn.

    python -m benchmarks.harness.relay PORT WORKER_PORT…
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import cast

import uvloop


class RelayConnection(asyncio.Protocol):
    """One side of a pair: writes what it reads to the other side, with backpressure."""

    transport: asyncio.Transport

    def __init__(self, other: RelayConnection | None = None) -> None:
        self.other = other

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        assert self.other is not None
        self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if self.other is not None:
            self.other.transport.close()


class RelayClient(RelayConnection):
    """Client side. uvloop reads at once, so data that arrives before the upstream connection is buffered."""

    def __init__(self, workers: Iterator[int]) -> None:
        super().__init__()
        self._worker = next(workers)
        self._early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connecting = asyncio.ensure_future(self._connect())

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self._early += data
        else:
            self.other.transport.write(data)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, other = await loop.create_connection(lambda: RelayConnection(self), "127.0.0.1", self._worker)
        except OSError:
            self.transport.abort()
            return
        self.other = other
        other.transport.write(self._early)
        if self.transport.is_closing():  # the client has left meanwhile
            other.transport.close()


async def serve(port: int, workers: Sequence[int]) -> None:
    """Relay until SIGTERM ends the process."""
    turn = itertools.cycle(workers)
    server = await asyncio.get_running_loop().create_server(lambda: RelayClient(turn), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), [int(worker) for worker in sys.argv[2:]]))
