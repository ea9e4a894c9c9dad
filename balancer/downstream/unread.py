"""What a client has sent and nobody has read yet.

Rule of this file: it asks the kernel, about one connection that is about to be closed.
"""

from __future__ import annotations

import asyncio
import select


def has_unread(transport: asyncio.Transport) -> bool:
    """Whether bytes, or the end of them, wait to be read and will be. Not of a transport without a socket, nor of one
    that is paused: what waits there may wait for ever."""
    sock = transport.get_extra_info("socket")
    if sock is None or not transport.is_reading() or not hasattr(select, "poll") or sock.fileno() < 0:
        return False
    asked = select.poll()
    asked.register(sock.fileno(), select.POLLIN)
    return bool(asked.poll(0))
