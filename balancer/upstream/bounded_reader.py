"""Reads whose size follows how quickly the other side takes the bytes.

uvloop reads up to 256,000 bytes at once for an `asyncio.Protocol`, and a slow reader would make the proxy hold all of
it, whatever `limits.buffer` says. For an `asyncio.BufferedProtocol` the size of the buffer is the limit. A read then
costs 1 µs more, so connections that carry short responses, or long ones to quick clients, keep the plain protocol.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Final, cast

READ: Final = 32_768
"""Bytes of a read for a receiver that is slow or new."""

LONGEST_READ: Final = 256_000
"""Bytes of a read for a receiver that takes them at once: uvloop's own. GET of 1 MiB costs a third more with reads of
64 KiB, and a fifth more with 96 KiB."""


def next_size(size: int, receiver: asyncio.WriteTransport) -> int:
    """Double the size of a read if the kernel has taken all that was written to `receiver`, else halve it."""
    return max(READ, size // 2) if receiver.get_write_buffer_size() else min(2 * size, LONGEST_READ)


class _Buffers(threading.local):
    """A buffer is used within one callback of the loop, so all connections of a thread share one."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(LONGEST_READ))


_buffers = _Buffers()


class BoundedReader(asyncio.BufferedProtocol):
    """Reads for `protocol`, at most `size` bytes at once."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self.size = READ
        self._view = _buffers.view
        self._deliver = protocol.data_received
        self.eof_received = protocol.eof_received  # type: ignore[method-assign]
        self.connection_lost = protocol.connection_lost  # type: ignore[method-assign]
        self.pause_writing = protocol.pause_writing  # type: ignore[method-assign]
        self.resume_writing = protocol.resume_writing  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[: self.size]

    def buffer_updated(self, nbytes: int) -> None:
        self._deliver(self._view[:nbytes].tobytes())


def bounded(transport: asyncio.Transport, protocol: asyncio.Protocol) -> BoundedReader:
    """Put a reader between `protocol` and its transport; with TLS, between the TLS layer and the plain transport."""
    below = getattr(transport, "below", None)
    reader = BoundedReader(protocol if below is None else cast(asyncio.Protocol, transport))
    (transport if below is None else below).set_protocol(reader)
    return reader


def unbounded(transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
    """Take the reader away again."""
    below = getattr(transport, "below", None)
    if below is None:
        transport.set_protocol(protocol)
    else:
        below.set_protocol(cast(asyncio.Protocol, transport))
