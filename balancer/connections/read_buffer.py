"""Where bytes go that are read to be passed on: how many at once is how many a slow reader makes us keep.

A transport that reads for an `asyncio.Protocol` takes up to 256 kB at once (uvloop). All of it is kept until the other
side has taken it, so a slow reader would cost 256 kB, whatever `limits.buffer` says. For an `asyncio.BufferedProtocol`
the size of the buffer is the bound. The buffer is used within one callback of the loop, so all connections share one.
"""

from __future__ import annotations

import threading
from typing import Final

READ: Final = 32_768
"""Bytes of a read for a reader of whom nothing is known."""

MOST: Final = 256_000
"""Bytes of a read for one who takes them at once. 1 MiB costs a tenth more by 192 KiB, and half as much again by 128 or
by 256 KiB, which glibc's malloc maps and unmaps each time."""


class _Buffers(threading.local):
    """One for each thread that runs a loop: a loop reads without holding the interpreter's lock."""

    def __init__(self) -> None:
        self.whole = memoryview(bytearray(MOST))
        self.view = self.whole[:READ]


_buffers = _Buffers()


def read_buffer() -> memoryview:
    """`READ` bytes for this thread's loop. What was read must be copied before the callback returns."""
    return _buffers.view


def whole_buffer() -> memoryview:
    """The same and what follows it: `MOST` bytes."""
    return _buffers.whole
