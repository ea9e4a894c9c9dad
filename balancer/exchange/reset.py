"""Close of a connection by RST."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys

RESET_AT_CLOSE = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
"""A `struct linger` with a timeout of zero: closing sends RST."""


def reset(transport: asyncio.Transport) -> None:
    """Close a connection by RST, so that the peer does not take it for an orderly end.

    A transport that is closing and has nothing left to send has already ended in order; it is only aborted.
    """
    sock = transport.get_extra_info("socket")
    if sock is not None and (not transport.is_closing() or transport.get_write_buffer_size()):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
    transport.abort()
