"""Opening a connection: order of the attempts (RFC 8305), duration of each phase, kinds of failure, and that no
connection leaks."""

from __future__ import annotations

import asyncio
import errno
import ssl
import weakref
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from balancer.config.schema.endpoint import UpstreamTlsConfig
from balancer.errors import ConnectFailed, ConnectTimeout, NameUnresolved
from balancer.tls.contexts import ClientTls
from balancer.upstream.dial.dial import dial, interleaved
from balancer.upstream.dial.phases import DialTimes
from balancer.upstream.dial.resolver import Addresses, LookupFailed
from balancer.upstream.dial.target import NetworkRoute, Routes
from benchmarks.harness.open_load import without_collections
from policies.facts import Endpoint
from tests.support.virtual import VirtualLoop, settle

T = TypeVar("T")

FOUR, OTHER_FOUR, SIX, OTHER_SIX = "192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2"
REFUSED = ConnectionRefusedError(111, "Connection refused")
NO_ROUTE = OSError(101, "Network is unreachable")


class Transport(asyncio.Transport):
    """A transport that records whether it was aborted."""

    is_open = True

    def abort(self) -> None:
        self.is_open = False


class Connected(asyncio.Protocol):
    """Records its transport."""

    transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport


class Network:
    """Names and addresses with delays on a virtual clock.

    Hosts accept after `delays`, or refuse if in `refusing`; the look-up takes `lookup` seconds, None: it fails.
    """

    def __init__(self, *hosts: str, lookup: float | None = 0.256) -> None:
        self.loop = VirtualLoop(self._dial)
        self.begun_at = self.loop.now()
        self.hosts = hosts
        self.lookup = lookup
        self.delays: dict[str, float] = {}
        self.refusing: dict[str, OSError] = {}
        self.dialled: list[str] = []
        self.dialled_at: dict[str, float] = {}  # seconds since the network was made
        self.transports: dict[str, Transport] = {}
        self.routes = Routes(now=self.loop.now)
        self.routes.names.look = self._look
        self.route = NetworkRoute(Endpoint("a", "http://api.test:80", "r"), self.routes)
        self.routes.put(self.route)

    async def _look(self, name: str) -> Addresses:
        if self.lookup is None:
            raise LookupFailed(f"{name}: has no addresses")
        await self._pass(self.lookup)
        return Addresses(self.hosts, 30.0)

    async def _pass(self, seconds: float) -> None:
        waiter = self.loop.create_future()
        self.loop.call_later(seconds, settle, waiter)
        await waiter

    def _dial(self, make: Any, host: str, port: int) -> asyncio.Future[Any]:
        async def connect() -> Any:
            await self._pass(self.delays.get(host, 1e9))
            if host in self.refusing:
                raise self.refusing[host]
            protocol, self.transports[host] = make(), Transport()
            protocol.connection_made(self.transports[host])
            return self.transports[host], protocol

        self.dialled.append(host)
        self.dialled_at[host] = round(self.loop.now() - self.begun_at, 6)
        return self.loop.create_task(connect())

    def dial(self, timeout: float = 2.0) -> tuple[Connected, DialTimes]:
        return self.run(dial(Connected, self.route, timeout))

    def run(self, doing: Coroutine[Any, Any, T]) -> T:
        with self.loop:
            task: asyncio.Task[T] = self.loop.create_task(doing)
            self.loop.advance(20.0)
            return task.result()

    @property
    def open(self) -> list[str]:
        return [host for host, transport in self.transports.items() if transport.is_open]


def test_families_alternate() -> None:
    """Families alternate, beginning with that of the first address; the one that worked before goes first."""
    assert interleaved([SIX, OTHER_SIX, FOUR, OTHER_FOUR]) == [SIX, FOUR, OTHER_SIX, OTHER_FOUR]
    assert interleaved([FOUR, OTHER_FOUR, SIX]) == [FOUR, SIX, OTHER_FOUR]
    assert interleaved([SIX, OTHER_SIX, FOUR], FOUR) == [FOUR, SIX, OTHER_SIX]
    assert interleaved([FOUR], SIX) == [FOUR]
    assert interleaved([]) == []


@pytest.mark.parametrize(
    ("delays", "refusing", "winner", "trip", "dialled_at"),
    [
        ({SIX: 0.2}, {}, SIX, 0.2, {SIX: 0.0}),
        ({FOUR: 0.04}, {}, FOUR, 0.29, {SIX: 0.0, FOUR: 0.25}),
        ({SIX: 0.0, FOUR: 0.04}, {SIX: NO_ROUTE}, FOUR, 0.04, {SIX: 0.0, FOUR: 0.0}),
        ({SIX: 0.3, FOUR: 0.1}, {}, SIX, 0.3, {SIX: 0.0, FOUR: 0.25}),
        ({SIX: 0.5, FOUR: 0.25, OTHER_SIX: 1.0}, {}, SIX, 0.5, {SIX: 0.0, FOUR: 0.25}),
    ],
    ids=["quick first", "silent first", "failing first", "slow first", "simultaneous success"],
)
def test_staggered_attempts(
    delays: dict[str, float],
    refusing: dict[str, OSError],
    winner: str,
    trip: float,
    dialled_at: dict[str, float],
) -> None:
    """The next one begins after 250 ms or a failure, and runs beside the others; all but the winner are closed."""
    network = Network(SIX, OTHER_SIX, FOUR, lookup=0.0)
    network.delays, network.refusing = delays, refusing
    _, phases = network.dial()
    assert (network.route.best, round(phases.trip, 6), network.dialled_at) == (winner, trip, dialled_at)
    assert network.open == [winner]


def test_all_addresses_fail() -> None:
    """A refusal is reported in preference to an unreachable network; the detail has every attempt."""
    network = Network(SIX, OTHER_SIX, FOUR)
    network.delays = dict.fromkeys((SIX, OTHER_SIX, FOUR), 0.01)
    network.refusing = {SIX: NO_ROUTE, OTHER_SIX: NO_ROUTE, FOUR: REFUSED}
    with pytest.raises(ConnectFailed) as caught:
        network.dial()
    assert caught.value.kind == "refused"
    assert caught.value.inside.count("Network is unreachable") == 2
    assert f"{FOUR}: Connection refused" in caught.value.inside


def test_phases_of_a_connection() -> None:
    """Durations count from the start, as in curl; a cached name takes no time."""
    network = Network(FOUR)
    network.delays = {FOUR: 0.041}
    _, cold = network.dial()
    assert (round(cold.namelookup, 6), round(cold.connect, 6)) == (0.256, 0.297)
    assert cold.appconnect == cold.connect
    assert (round(cold.trip, 6), cold.handshake) == (0.041, 0.0)
    _, warm = network.dial()
    assert (warm.namelookup, round(warm.connect, 6)) == (0.0, 0.041)


def test_address_that_worked_is_tried_first() -> None:
    """An unreachable IPv6 address costs a quarter of a second once."""
    network = Network(SIX, FOUR)
    network.delays = {FOUR: 0.04}
    _, first = network.dial()
    assert first.trip == pytest.approx(0.29)
    _, second = network.dial()
    assert second.trip == pytest.approx(0.04)
    assert (network.dialled, network.route.best) == ([SIX, FOUR, FOUR], FOUR)
    assert network.open == [FOUR]


def test_failing_address_is_replaced() -> None:
    """Another address is then tried and preferred."""
    network = Network(FOUR, OTHER_FOUR)
    network.delays = {FOUR: 0.04, OTHER_FOUR: 0.04}
    network.dial()
    network.refusing = {FOUR: ConnectionRefusedError(111, "Connection refused")}
    network.dial()
    network.dial()
    assert network.dialled == [FOUR, FOUR, OTHER_FOUR, OTHER_FOUR]


def test_connect_timeout() -> None:
    """The timeout includes the look-up; `inside` lists the addresses that were tried."""
    network = Network(SIX, FOUR, lookup=0.1)
    with pytest.raises(ConnectTimeout) as caught:
        network.dial(timeout=0.3)
    assert "0.3 s" in str(caught.value)
    assert SIX not in str(caught.value)
    assert f"api.test: {SIX}" in caught.value.inside
    with pytest.raises(ConnectTimeout) as caught:
        network.dial(timeout=0.3)
    assert all(address in caught.value.inside for address in (SIX, FOUR))
    assert network.route.faults == {"timeout": 2}


def test_slow_look_up() -> None:
    """The look-up continues for the next request."""
    network = Network(FOUR, lookup=3.0)
    network.delays = {FOUR: 0.04}
    with pytest.raises(ConnectTimeout) as caught:
        network.dial()
    assert "api.test" in caught.value.inside
    assert network.dial()[1].namelookup == 0.0


def test_name_without_addresses() -> None:
    """The message for the client does not contain the name."""
    network = Network(lookup=None)
    with pytest.raises(NameUnresolved) as caught:
        network.dial()
    assert "api.test" not in str(caught.value)
    assert "api.test" in caught.value.inside
    assert network.route.faults == {"name": 1}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (REFUSED, "refused"),
        (NO_ROUTE, "unreachable"),
        (OSError(113, "No route to host"), "unreachable"),
        (ConnectionResetError(104, "Connection reset by peer"), "reset"),
        (ConnectionResetError("lost"), "reset"),
        (OSError(24, "Too many open files"), "descriptors"),
        (OSError("odd"), "other"),
    ],
)
def test_failures_are_counted_by_kind(error: OSError, kind: str) -> None:
    """The system's message; `inside` adds name and address."""
    network = Network(FOUR)
    network.delays, network.refusing = {FOUR: 0.04}, {FOUR: error}
    with pytest.raises(ConnectFailed) as caught:
        network.dial()
    assert caught.value.kind == kind
    words = error.strerror or str(error)
    assert str(caught.value) == words
    assert f"api.test: {FOUR}: {words}" in caught.value.inside
    assert network.route.faults == {kind: 1}


@pytest.mark.parametrize("after", [0.0, 0.1, 0.256, 0.27, 0.297, 0.5, 0.506, 0.547])
def test_cancellation_leaks_no_connection(after: float) -> None:
    """During the look-up, the first attempt and the second."""
    network = Network(SIX, FOUR)
    network.delays = {SIX: 0.3, FOUR: 0.05}
    with network.loop:
        task = network.loop.create_task(dial(Connected, network.route, 2.0))
        if after:
            network.loop.advance(after)
        task.cancel()
        network.loop.advance(20.0)
    assert task.cancelled()
    assert network.open == []


@pytest.mark.parametrize("hosts", [(FOUR,), (FOUR, OTHER_FOUR, SIX)])
@pytest.mark.parametrize(
    ("lookup", "refusing"),
    [(0.1, True), (0.1, False), (None, True)],
    ids=["refused", "unanswered", "unresolved"],
)
def test_failed_dial_keeps_no_tls_context(
    hosts: tuple[str, ...], lookup: float | None, refusing: bool
) -> None:
    """Without the garbage collector, which runs once in millions of objects and does not know of OpenSSL's memory."""
    network = Network(*hosts, lookup=lookup)
    if refusing:
        network.delays = dict.fromkeys(hosts, 0.01)
        network.refusing = {host: OSError(errno.ECONNREFUSED, "refused") for host in hosts}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls = ClientTls(context, "api.test", UpstreamTlsConfig())
    left = weakref.ref(context)

    async def fail(tls: ClientTls) -> None:
        with pytest.raises(ConnectFailed):
            await dial(Connected, network.route, 2.0, tls)

    with without_collections():
        network.run(fail(tls))
        network.refusing.clear()
        del tls, context
        assert left() is None
