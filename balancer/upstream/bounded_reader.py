"""Adaptive read size: bounds how much is read at once by how quickly the receiver drains it.

uvloop reads up to 256,000 bytes at once for an `asyncio.Protocol`. With a slow receiver the proxy would buffer all of
it, whatever `limits.buffer` says. For an `asyncio.BufferedProtocol` the buffer's size is the limit. A read then costs 1
µs more, so connections that carry short responses, or long ones to fast clients, keep the plain protocol.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Final, cast

from balancer.config.schema.limits import READ

LONGEST_READ: Final = 256_000
"""Read size in bytes for a receiver that keeps up; it is uvloop's own. GET of 1 MiB costs a third more with reads of 64
KiB, and a fifth more with 96 KiB."""


class _Buffers(threading.local):
    """Read buffer shared by all connections of a thread: it is only used within one callback of the loop."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(LONGEST_READ))


_buffers = _Buffers()


class BoundedReader(asyncio.BufferedProtocol):
    """Buffered protocol that reads at most `size` bytes at once and delivers them to `protocol`."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self.size = READ
        self._view = _buffers.view
        self.data_received = protocol.data_received  # also for a transport that has bytes
        self.eof_received = protocol.eof_received  # type: ignore[method-assign]
        self.connection_lost = protocol.connection_lost  # type: ignore[method-assign]
        self.pause_writing = protocol.pause_writing  # type: ignore[method-assign]
        self.resume_writing = protocol.resume_writing  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[: self.size]

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(self._view[:nbytes].tobytes())


def bounded(transport: asyncio.Transport, protocol: asyncio.Protocol) -> BoundedReader:
    """Insert a `BoundedReader` below `protocol`; with TLS, between the TLS layer and the plain transport."""
    below = getattr(transport, "below", None)
    reader = BoundedReader(protocol if below is None else cast(asyncio.Protocol, transport))
    (transport if below is None else below).set_protocol(reader)
    return reader


def unbounded(transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
    """Remove the `BoundedReader` that `bounded` inserted."""
    below = getattr(transport, "below", None)
    if below is None:
        transport.set_protocol(protocol)
    else:
        below.set_protocol(cast(asyncio.Protocol, transport))
