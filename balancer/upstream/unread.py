"""Check for unread data on a connection that is to be closed or used, by asking the kernel."""

from __future__ import annotations

import asyncio
import select


def has_unread(transport: asyncio.Transport) -> bool:
    """Return whether received bytes or a FIN wait to be read and will be.

    False for a transport without a socket, and for a paused one, whose data may never be read.
    """
    sock = transport.get_extra_info("socket")
    if sock is None or not transport.is_reading() or not hasattr(select, "poll") or sock.fileno() < 0:
        return False
    asked = select.poll()
    asked.register(sock.fileno(), select.POLLIN)
    return bool(asked.poll(0))
