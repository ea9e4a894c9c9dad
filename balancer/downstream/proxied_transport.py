"""Transport that reports the addresses given by the PROXY protocol."""

from __future__ import annotations

import asyncio
from typing import Any

from balancer.downstream.proxy_protocol import Address

DELEGATED = (
    *("write", "write_eof", "can_write_eof", "close", "abort", "is_closing"),
    *("pause_reading", "resume_reading", "is_reading", "set_protocol", "get_protocol"),
    *("set_write_buffer_limits", "get_write_buffer_size", "get_write_buffer_limits"),
)


class ProxiedTransport(asyncio.Transport):
    """Wraps `transport` with the addresses `source` and `destination`, of the client instead of the proxy's.

    All methods but `get_extra_info` are the plain transport's own, which saves a call."""

    def __init__(self, transport: asyncio.Transport, source: Address, destination: Address) -> None:
        super().__init__({"peername": source, "sockname": destination})
        self._transport = transport
        for name in DELEGATED:
            setattr(self, name, getattr(transport, name))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        given = super().get_extra_info(name)
        return self._transport.get_extra_info(name, default) if given is None else given
