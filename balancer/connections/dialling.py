"""A connection to a worker that speaks https: TCP, then TLS, both within the caller's time.

Rule of this file: what OpenSSL says of a worker is for whoever runs the unit; the client is told that it failed.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, TypeVar

from balancer.errors import WorkerUntrusted
from balancer.tls.transport import TlsTransport

if TYPE_CHECKING:
    from balancer.tls.contexts import ClientTls

FAILED = "no TLS connection with the worker"
"""What the client is told."""

P = TypeVar("P", bound=asyncio.Protocol)


async def connect_tls(protocol: P, host: str, port: int, tls: ClientTls) -> P:
    """Connect `protocol`, ready to write. Raises OSError, or `WorkerUntrusted`; a cancelled one leaves nothing open."""
    loop = asyncio.get_running_loop()
    shaken: asyncio.Future[Exception | None] = loop.create_future()

    def on_handshake(error: Exception | None) -> None:
        if not shaken.done():
            shaken.set_result(error)

    def layer() -> TlsTransport:
        return TlsTransport(tls.context, protocol, on_handshake, tls.name)

    try:
        transport, _ = await loop.create_connection(layer, host, port)
    except ValueError as error:  # a name that none can have
        raise WorkerUntrusted(FAILED, f"not a name for TLS: {error}") from None
    try:
        fault = await shaken
    except BaseException:
        transport.abort()
        raise
    if fault is not None:
        transport.abort()
        raise WorkerUntrusted(FAILED, _reason(fault))
    return protocol


def _reason(error: Exception) -> str:
    """One line, the name that OpenSSL gives it where it gives one."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason is not None:
        return f"TLS handshake failed: {error.reason.replace('_', ' ').lower()}"
    return f"TLS handshake failed: {error}"
