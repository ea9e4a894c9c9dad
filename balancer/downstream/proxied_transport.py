"""Transport that reports the addresses given by the PROXY protocol.

Only `get_extra_info` differs from the plain transport: it returns the client's addresses instead of the proxy's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from balancer.downstream.proxy_protocol import Address


class ProxiedTransport(asyncio.Transport):
    """Wraps `transport` with the addresses `source` and `destination`."""

    __slots__ = ("_destination", "_source", "_transport", "write")

    write: Callable[[bytes], None]  # type: ignore[assignment]  # an attribute where the base has a method
    """The plain transport's own method, to save a call."""

    def __init__(self, transport: asyncio.Transport, source: Address, destination: Address) -> None:
        self._transport = transport
        self._source = source
        self._destination = destination
        self.write = transport.write

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return self._source
        if name == "sockname":
            return self._destination
        return self._transport.get_extra_info(name, default)

    def write_eof(self) -> None:
        self._transport.write_eof()

    def can_write_eof(self) -> bool:
        return self._transport.can_write_eof()

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def is_reading(self) -> bool:
        return self._transport.is_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._transport.get_write_buffer_limits()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._transport.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._transport.get_protocol()
