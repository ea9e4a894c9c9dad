"""Reads that are as long as the one to whom they are passed on can take.

A transport that reads for an `asyncio.Protocol` takes up to 256 kB at once (uvloop), and all of it is kept until the
other side has taken it: a slow reader costs 256 kB, whatever `limits.buffer` says. For an `asyncio.BufferedProtocol`
the size of the buffer is the bound. A read then costs 1 µs more, so a connection is bounded once it carries a body that
does not come in one read. Until then the kernel bounds its reads: its receive buffer is small.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from contextlib import suppress
from typing import Final, cast

READ: Final = 32_768
"""Bytes of a read for one of whom nothing is known, or who is slow."""

MOST: Final = 256_000
"""Bytes of a read for one who takes them at once. 1 MiB costs a tenth more by 192 KiB, and half as much again by 128 or
by 256 KiB, which glibc's malloc maps and unmaps each time."""


FIRST: Final = 65_536
"""Bytes of a read before that, on Linux: about what a worker may send at once over a new connection anyhow. Elsewhere
it is what the system gives, and at most 256 kB."""

_SO_BUF_LOCK: Final = 72
"""asm-generic/socket.h, since Linux 5.14: which buffers stay as large as they were set."""


def _can_unlock() -> bool:
    if sys.platform != "linux":
        return False
    try:
        with socket.socket() as sock:
            sock.getsockopt(socket.SOL_SOCKET, _SO_BUF_LOCK)
    except OSError:
        return False
    return True


_CAN_UNLOCK: Final = _can_unlock()


class _Buffers(threading.local):
    """A buffer is used within one callback of the loop, so all connections share one; one for each thread that runs a
    loop, because a loop reads without holding the interpreter's lock."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(MOST))


_buffers = _Buffers()


class BoundedReader(asyncio.BufferedProtocol):
    """Reads for `protocol`, which hears of everything else, too: `window` bytes at once, at least `READ`."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self.window = 0
        self._view = _buffers.view
        self._deliver = protocol.data_received
        self.eof_received = protocol.eof_received  # type: ignore[method-assign]
        self.connection_lost = protocol.connection_lost  # type: ignore[method-assign]
        self.pause_writing = protocol.pause_writing  # type: ignore[method-assign]
        self.resume_writing = protocol.resume_writing  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[: max(READ, self.window)]

    def buffer_updated(self, nbytes: int) -> None:
        self._deliver(self._view[:nbytes].tobytes())


def hold_receive_buffer(transport: asyncio.BaseTransport) -> None:
    """Let the kernel receive no more than `FIRST` bytes before they are read, where that can be undone."""
    _set(transport, socket.SO_RCVBUF, FIRST // 2)  # the kernel doubles it


def _let_grow(transport: asyncio.BaseTransport) -> None:
    """Let the receive buffer grow with the traffic, as that of any other connection."""
    _set(transport, _SO_BUF_LOCK, 0)


def _set(transport: asyncio.BaseTransport, option: int, value: int) -> None:
    sock = transport.get_extra_info("socket")
    if _CAN_UNLOCK and sock is not None:
        with suppress(OSError):  # it is closed by now
            sock.setsockopt(socket.SOL_SOCKET, option, value)


def bounded(transport: asyncio.Transport, protocol: asyncio.Protocol) -> BoundedReader:
    """Put a reader between `protocol` and the transport that it has; under TLS between that and the plain transport."""
    _let_grow(transport)
    below = getattr(transport, "below", None)
    reader = BoundedReader(protocol if below is None else cast(asyncio.Protocol, transport))
    (transport if below is None else below).set_protocol(reader)
    return reader
