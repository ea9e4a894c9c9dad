"""How many bytes the kernel sends to a client at once, as far as the client has promised to take them."""

from __future__ import annotations

import asyncio
import socket
import sys
from struct import Struct
from typing import Final

_TCP_INFO: Final = Struct("=16xI4xI52xI60xI80xI")
"""Of `struct tcp_info` (linux/tcp.h): tcpi_snd_mss, tcpi_unacked, tcpi_snd_cwnd, tcpi_notsent_bytes, tcpi_snd_wnd."""

SAFE: Final = 0.75
"""Part of the receive window that is relied on: it is kept in packets, and not every packet is full."""

ROUND_TRIPS: Final = 2
"""Congestion windows that may be on their way or here: what one round trip brings is sent when it is acknowledged. With
one, a client on the same machine waits for acknowledgements, and 1 MiB costs a fifth more."""

_IS_LINUX: Final = sys.platform == "linux" and hasattr(socket, "TCP_INFO")


def window_of(transport: asyncio.Transport, most_unsent: int) -> int:
    """Bytes that do not wait here for the client if they are written now: what its receive window leaves, or, where
    that is less, what the network takes within a round trip; and up to `most_unsent` bytes that our kernel holds beyond
    that.

    An estimate: the kernel may take less when acknowledgements are late. 0 for a client that does not read, once its
    kernel and ours hold what they may, and where the system does not tell (before Linux 5.4). Some 2 µs.
    """
    if not _IS_LINUX:
        return 0
    try:
        info: bytes = transport.get_extra_info("socket").getsockopt(
            socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size
        )
    except OSError:
        return 0
    if len(info) < _TCP_INFO.size:
        return 0
    mss, unacked, congestion, unsent, receive = map(int, _TCP_INFO.unpack(info))
    ahead = unacked * mss + unsent + transport.get_write_buffer_size()
    window = min(int(SAFE * receive), ROUND_TRIPS * congestion * mss)
    return max(0, window + most_unsent - ahead)
