"""Dial a worker: resolve its name, connect TCP with Happy Eyeballs, do the TLS handshake, all within one timeout.

Every failure is converted to a `ConnectFailed` here. Its message is what the client sees; system and OpenSSL errors and
the addresses that were tried are in its detail, for the log. A cancelled dial leaves no connection open.

Attempts to several addresses are staggered (RFC 8305): one begins `STAGGER` seconds after the previous one, or as soon
as an attempt has failed. The first to connect wins and all others are cancelled; no connection stays open when the race
ends, however it ends.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from balancer.errors import ConnectFailed, ConnectTimeout, NameUnresolved, WorkerUntrusted
from balancer.tls.contexts import ClientTls
from balancer.tls.transport import TlsTransport
from balancer.upstream.dial.phases import DialTimes
from balancer.upstream.dial.resolver import LookupFailed

if TYPE_CHECKING:
    from balancer.upstream.dial.target import NetworkRoute


STAGGER = 0.25
"""Seconds between attempts: the recommended Connection Attempt Delay (§ 5)."""

T = TypeVar("T")


def interleaved(hosts: Sequence[str], first: str | None = None) -> list[str]:
    """Addresses with alternating families, beginning with the family of the first (§ 4); `first` is moved to the front
    if present."""
    is_six = bool(hosts) and ":" in hosts[0]
    same = [host for host in hosts if (":" in host) is is_six]
    other = [host for host in hosts if (":" in host) is not is_six]
    turns = [host for pair in zip_longest(same, other) for host in pair if host is not None]
    if first in turns:
        turns.remove(first)
        turns.insert(0, first)
    return turns


class Tried:
    """Result of each attempted address, in order of attempts; None while an attempt is pending."""

    def __init__(self) -> None:
        self.by_address: dict[str, OSError | None] = {}

    def __str__(self) -> str:
        return "; ".join(f"{address}: {_words(error)}" for address, error in self.by_address.items())

    @property
    def fault(self) -> OSError:
        """Most informative error: a refused or reset connection comes before an unreachable network, which may be of an
        address family that this host lacks."""
        faults = [error for error in self.by_address.values() if error is not None]
        return next((error for error in faults if isinstance(error, ConnectionError)), faults[0])


def _words(error: OSError | None) -> str:
    return "no answer" if error is None else error.strerror or str(error)


async def first_of(
    addresses: Sequence[str], begin: Callable[[str], Awaitable[T]], discard: Callable[[T], None], tried: Tried
) -> tuple[str, T]:
    """Connect to the first of `addresses` that `begin` succeeds with; returns the address and the result.

    `discard` receives connections that are not needed. Raises `OSError` if all attempts fail; `tried` holds the
    details.
    """
    if len(addresses) > 1:
        return await _race(addresses, begin, discard, tried)
    (address,) = addresses
    tried.by_address[address] = None
    try:
        return address, await begin(address)
    except OSError as error:
        tried.by_address[address] = error
        raise


async def _race(
    addresses: Sequence[str], begin: Callable[[str], Awaitable[T]], discard: Callable[[T], None], tried: Tried
) -> tuple[str, T]:
    waiting = deque(addresses)
    running: dict[asyncio.Future[T], str] = {}
    try:
        while waiting or running:
            if waiting:
                address = waiting.popleft()
                tried.by_address[address] = None
                running[asyncio.ensure_future(begin(address))] = address
            await asyncio.wait(
                running, timeout=STAGGER if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in [task for task in running if task.done()]:
                address = running.pop(task)
                error = task.exception()
                if error is None:
                    return address, task.result()
                if not isinstance(error, OSError):
                    raise error
                tried.by_address[address] = error
        raise tried.fault
    finally:
        for task in running:
            task.cancel()
            task.add_done_callback(lambda task: _discard_late(task, discard))


def _discard_late(task: asyncio.Future[T], discard: Callable[[T], None]) -> None:
    """Discard the result of a cancelled attempt that had succeeded nevertheless."""
    try:
        error = task.exception()
    except asyncio.CancelledError:  # asking makes the task let go of it; its traceback holds the TLS context
        return
    if error is None:
        discard(task.result())


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
    make: Callable[[], P], route: NetworkRoute, timeout: float, tls: ClientTls | None = None
) -> tuple[P, DialTimes]:
    """Open a connection within `timeout` seconds; returns a connected protocol from `make`, and the connect phases.

    `make` is called once for each address that is tried. Raises `ConnectFailed`.
    """
    tried = Tried()
    try:
        async with asyncio.timeout(timeout):
            return await _dial(make, route, tls, tried)
    except (LookupFailed, OSError, UnicodeError, ConnectFailed) as error:
        # Tracebacks and kept errors would be cycles, which hold the TLS context until the garbage collector runs.
        error.__traceback__ = None
        raise _fault(error, timeout, route, tried) from None
    finally:
        tried.by_address.clear()


def _fault(error: Exception, timeout: float, route: NetworkRoute, tried: Tried) -> ConnectFailed:
    """Convert any error of `_dial` to a `ConnectFailed`, and report it to the route."""
    host, addresses = route.host, [*tried.by_address]
    told = "" if addresses in ([], [host]) else f" ({host}: {tried})"  # behind the reason, for the log
    if isinstance(error, ConnectFailed):
        fault = error
    elif isinstance(error, TimeoutError):
        detail = f"no connection within {timeout:g} s"
        told = told if addresses else f": {host} was still being looked up"
        fault = ConnectTimeout(detail, detail + told)
    elif isinstance(error, LookupFailed):
        fault = NameUnresolved(NAME_UNRESOLVED, str(error))
    elif isinstance(error, OSError):
        detail = error.strerror or str(error)
        fault = ConnectFailed(detail, detail + told, kind_of(error))
    else:
        fault = NameUnresolved(NAME_UNRESOLVED, f"{host}: {error}")  # UnicodeError: not a valid host name
    route.failed(fault)
    return fault


async def _dial(
    make: Callable[[], P], route: NetworkRoute, tls: ClientTls | None, tried: Tried
) -> tuple[P, DialTimes]:
    now = route.now
    began = now()
    hosts = await route.addresses()
    found_at = now()
    session = None if tls is None else route.resumption.offer(tls)

    async def begin(address: str) -> _Line[P]:
        return await _Line(make(), tls, session).connect(address, route.port)

    order = hosts if len(hosts) == 1 else interleaved(hosts, route.best)
    address, line = await first_of(order, begin, _Line.abort, tried)
    connected_at = now()
    handshake_at = connected_at if tls is None else await line.handshake_done(now)
    phases = DialTimes(found_at - began, connected_at - began, handshake_at - began)
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


def kind_of(error: OSError) -> str:
    """Kind of connect failure by `errno`, as counted in `NetworkRoute.faults`."""
    kind = SYSTEM_KINDS.get(error.errno or 0, "other")
    return "reset" if kind == "other" and isinstance(error, ConnectionError) else kind
