"""DNS server with delayed answers: every name resolves to 127.0.0.1.

Implements as much of RFC 1035 as one question per datagram needs. Answers type A; other types have no records.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import AsyncExitStack
from typing import cast

HEAD = struct.Struct("!6H")
ADDRESS = socket.inet_aton("127.0.0.1")
POINTER = 0xC00C
"""Compression pointer to byte 12, the name in the question."""

TYPE_A, CLASS_IN = 1, 1
FLAGS = 0x8180
"""Response, recursion desired and available."""


class NameServer(asyncio.DatagramProtocol):
    """Answers after `delay` seconds with a TTL of `ttl` seconds."""

    def __init__(self, delay: float, ttl: int) -> None:
        self._delay, self._ttl = delay, ttl

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        if reply := answer_to(data, self._ttl):
            asyncio.get_running_loop().call_later(self._delay, self._send, reply, address)

    def _send(self, reply: bytes, address: tuple[str, int]) -> None:
        if not self._transport.is_closing():
            self._transport.sendto(reply, address)


def answer_to(query: bytes, ttl: int) -> bytes:
    """Complete response; empty if the query has no question."""
    end = query.find(b"\0", HEAD.size) + 5  # the name ends with an empty label; type and class follow
    if end < HEAD.size + 5 or len(query) < end:
        return b""
    (number,), (kind,) = struct.unpack_from("!H", query), struct.unpack_from("!H", query, end - 4)
    has_address = kind == TYPE_A
    head = HEAD.pack(number, FLAGS, 1, int(has_address), 0, 0)
    record = struct.pack("!HHHIH", POINTER, TYPE_A, CLASS_IN, ttl, len(ADDRESS)) + ADDRESS
    return head + query[HEAD.size : end] + (record if has_address else b"")


async def name_server(delay: float, ttl: int, stack: AsyncExitStack) -> int:
    """Start a server that runs until the stack ends; returns its loopback port."""
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: NameServer(delay, ttl), ("127.0.0.1", 0))
    stack.callback(transport.close)
    return int(transport.get_extra_info("sockname")[1])
