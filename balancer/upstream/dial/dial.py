"""Dial a worker: resolve its name, connect TCP with Happy Eyeballs, do the TLS handshake, all within one timeout.

Every failure is converted to a `ConnectFailed` here. Its message is what the client sees; system and OpenSSL errors and
the addresses that were tried are in its detail, for the log. A cancelled dial leaves no connection open.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from balancer.errors import ConnectFailed, ConnectTimeout, NameUnresolved, WorkerUntrusted
from balancer.tls.contexts import ClientTls
from balancer.tls.transport import TlsTransport
from balancer.upstream.dial.happy_eyeballs import Tried, first_of, interleaved
from balancer.upstream.dial.phases import DialTimes
from balancer.upstream.dial.resolver import LookupFailed

if TYPE_CHECKING:
    from balancer.upstream.dial.target import NetworkRoute

FAILED = "no TLS connection with the worker"
NAME_UNRESOLVED = "the worker's name has no address"
"""Messages of connect failures that the client sees."""

CERTIFICATE_KINDS = {
    **dict.fromkeys((9, 10), "certificate_expired"),  # or not yet valid
    **dict.fromkeys((18, 19), "certificate_self_signed"),
    **dict.fromkeys((2, 20, 21), "certificate_authority"),
    **dict.fromkeys((62, 63, 64), "certificate_name"),
}
"""Kind of certificate fault by X509_V_ERR_… of OpenSSL's x509_vfy.h."""

SYSTEM_KINDS = {
    # Of a Unix socket that is not there, or whose queue is full, the last two.
    **dict.fromkeys((errno.ECONNREFUSED, errno.ENOENT, errno.EAGAIN), "refused"),
    errno.ECONNRESET: "reset",
    errno.EPIPE: "reset",
    errno.ETIMEDOUT: "timeout",
    **dict.fromkeys(
        (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT), "unreachable"
    ),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "descriptors"),
}

P = TypeVar("P", bound=asyncio.Protocol)


async def dial(
    make: Callable[[], P],
    host: str,
    port: int,
    timeout: float,
    tls: ClientTls | None = None,
    route: NetworkRoute | None = None,
) -> tuple[P, DialTimes]:
    """Open a connection within `timeout` seconds; returns a connected protocol from `make`, and the connect phases.

    `make` is called once for each address that is tried. Raises `ConnectFailed`.
    """
    tried = Tried()
    try:
        async with asyncio.timeout(timeout):
            return await _dial(make, host, port, tls, route, tried)
    except (LookupFailed, OSError, UnicodeError, ConnectFailed) as error:
        # Tracebacks and kept errors would be cycles, which hold the TLS context until the garbage collector runs.
        error.__traceback__ = None
        raise _fault(error, timeout, host, tried, route) from None
    finally:
        tried.by_address.clear()


def _fault(
    error: Exception, timeout: float, host: str, tried: Tried, route: NetworkRoute | None
) -> ConnectFailed:
    """Convert any error of `_dial` to a `ConnectFailed`, and tell the route."""
    if isinstance(error, ConnectFailed):
        fault = error
    elif isinstance(error, TimeoutError):
        fault = _timed_out(timeout, host, tried)
    elif isinstance(error, LookupFailed):
        fault = NameUnresolved(NAME_UNRESOLVED, str(error))
    elif isinstance(error, OSError):
        fault = _failed(error, host, tried)
    else:  # UnicodeError: not a valid host name
        fault = NameUnresolved(NAME_UNRESOLVED, f"{host}: {error}")
    if route is not None:
        route.failed(fault)
    return fault


async def _dial(
    make: Callable[[], P],
    host: str,
    port: int,
    tls: ClientTls | None,
    route: NetworkRoute | None,
    tried: Tried,
) -> tuple[P, DialTimes]:
    now = monotonic if route is None else route.now
    began = now()
    hosts = (host,) if route is None else await route.addresses()
    found_at = now()
    session = None if route is None or tls is None else route.resumption.offer(tls)

    async def begin(address: str) -> _Line[P]:
        return await _Line(make(), tls, session).connect(address, port)

    order = hosts if route is None or len(hosts) == 1 else interleaved(hosts, route.best)
    address, line = await first_of(order, begin, _Line.abort, tried)
    connected_at = now()
    handshake_at = connected_at if tls is None else await line.handshake_done(now)
    phases = DialTimes(found_at - began, connected_at - began, handshake_at - began)
    if route is not None:
        if tls is not None:
            route.resumption.shaken(line.tls_object, tls, phases.handshake)
        route.opened(address, phases)
    return line.protocol, phases


class _Line(Generic[P]):
    """One connection attempt: TCP to one address, with the TLS layer below `protocol` if `tls` is given."""

    def __init__(self, protocol: P, tls: ClientTls | None, session: ssl.SSLSession | None) -> None:
        self.protocol = protocol
        self._handshake: asyncio.Future[Exception | None] | None = None
        self._lowest: asyncio.Protocol = protocol
        self._transport: asyncio.Transport | None = None
        if tls is None:
            return
        self._handshake = asyncio.get_running_loop().create_future()
        done = partial(_resolve, self._handshake)  # not a method, which would be a cycle
        try:
            self._lowest = TlsTransport(tls.context, protocol, done, tls.name, session)
        except ValueError as error:  # not a valid server name
            raise WorkerUntrusted(FAILED, f"not a name for TLS: {error}") from None

    @property
    def tls_object(self) -> ssl.SSLObject:
        """OpenSSL object of the connection; only valid with TLS."""
        return cast(ssl.SSLObject, cast(TlsTransport, self._lowest).get_extra_info("ssl_object"))

    async def connect(self, address: str, port: int) -> _Line[P]:
        """Connect to one address by TCP, or to a path by a Unix socket; returns this attempt. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        if address.startswith("/"):
            self._transport, _ = await loop.create_unix_connection(lambda: self._lowest, address)
        else:
            self._transport, _ = await loop.create_connection(lambda: self._lowest, address, port)
        return self

    async def handshake_done(self, now: Callable[[], float]) -> float:
        """Wait for the TLS handshake; returns the time at which it was done. Raises `WorkerUntrusted`."""
        assert self._handshake is not None
        try:
            fault = await self._handshake
        except BaseException:
            self.abort()
            raise
        if fault is not None:
            self.abort()
            raise tls_failure(fault)
        return now()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _resolve(handshake: asyncio.Future[Exception | None], error: Exception | None) -> None:
    if not handshake.done():
        handshake.set_result(error)


def tls_failure(error: Exception) -> WorkerUntrusted:
    """Convert an error of the TLS handshake to a `WorkerUntrusted`, in one line with OpenSSL's reason if it gives
    one."""
    if isinstance(error, ssl.SSLCertVerificationError):
        kind = CERTIFICATE_KINDS.get(error.verify_code, "certificate")
        return WorkerUntrusted(FAILED, f"certificate refused: {error.verify_message}", kind)
    if isinstance(error, ssl.SSLError) and error.reason is not None:
        return WorkerUntrusted(FAILED, f"TLS handshake failed: {error.reason.replace('_', ' ').lower()}")
    return WorkerUntrusted(FAILED, f"TLS handshake failed: {error}")


def internal_failure(error: Exception) -> ConnectFailed:
    """Convert an unexpected exception, a fault of the balancer itself, to a `ConnectFailed` for the lease waiters."""
    return ConnectFailed("the connection could not be opened", f"{type(error).__name__}: {error}")


def _timed_out(timeout: float, host: str, tried: Tried) -> ConnectTimeout:
    detail = f"no connection within {timeout:g} s"
    if not tried.by_address:
        return ConnectTimeout(detail, f"{detail}: {host} was still being looked up")
    return ConnectTimeout(detail, f"{detail}{_told(host, tried)}")


def _failed(error: OSError, host: str, tried: Tried) -> ConnectFailed:
    detail = error.strerror or str(error)
    return ConnectFailed(detail, f"{detail}{_told(host, tried)}", kind_of(error))


def kind_of(error: OSError) -> str:
    """Kind of connect failure by `errno`, as counted in `NetworkRoute.faults`."""
    kind = SYSTEM_KINDS.get(error.errno or 0, "other")
    return "reset" if kind == "other" and isinstance(error, ConnectionError) else kind


def _told(host: str, tried: Tried) -> str:
    """The addresses that were tried, for the detail of an error; empty if the host is the only one."""
    return "" if list(tried.by_address) in ([], [host]) else f" ({host}: {tried})"
