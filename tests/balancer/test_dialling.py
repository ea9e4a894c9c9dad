"""Opening a connection: how long each phase took, what a failure is called, and that nothing stays open."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from balancer.errors import ConnectFailed, ConnectTimeout, NameUnresolved
from balancer.upstream.connect_phases import Phases
from balancer.upstream.dial import dial
from balancer.upstream.names import NamesPlan
from balancer.upstream.resolved_name import NameRules
from balancer.upstream.resolver import Addresses, LookupFailed
from balancer.upstream.route import Route, Routes, RoutesPlan
from policies.facts import Endpoint
from tests.balancer.test_happy_eyeballs import settle
from tests.balancer.virtual import VirtualLoop

T = TypeVar("T")

FOUR, FOUR_TOO, SIX = "192.0.2.1", "192.0.2.2", "2001:db8::1"


class Transport(asyncio.Transport):
    """That remembers whether it was given up."""

    is_open = True

    def abort(self) -> None:
        self.is_open = False


class WaitQueue(asyncio.Protocol):
    """Who is connected."""

    transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport


class World:
    """Names and addresses that take their time. `hosts` answer after `delays`, or refuse if they are among `refusing`;
    the name takes `lookup` seconds, None: it does not resolve."""

    def __init__(self, *hosts: str, lookup: float | None = 0.256) -> None:
        self.loop = VirtualLoop(self._dial)
        self.hosts = hosts
        self.lookup = lookup
        self.delays: dict[str, float] = {}
        self.refusing: dict[str, OSError] = {}
        self.asked: list[str] = []
        self.transports: dict[str, Transport] = {}
        plan = RoutesPlan(NamesPlan(NameRules(), self._look))
        self.routes = Routes(plan, self.loop.now)
        self.route = Route(Endpoint("a", "http://api.test:80", "r"), self.routes)

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

        self.asked.append(host)
        return self.loop.create_task(connect())

    def dial(self, timeout: float = 2.0) -> tuple[WaitQueue, Phases]:
        return self.run(dial(WaitQueue, "api.test", 80, timeout, None, self.route))

    def run(self, doing: Coroutine[Any, Any, T]) -> T:
        with self.loop:
            task: asyncio.Task[T] = self.loop.create_task(doing)
            self.loop.advance(20.0)
            return task.result()

    @property
    def open(self) -> list[str]:
        return [host for host, transport in self.transports.items() if transport.is_open]


def test_phases_are_counted_from_the_beginning() -> None:
    """As curl counts them; what is known costs nothing the second time."""
    world = World(FOUR)
    world.delays = {FOUR: 0.041}
    _, cold = world.dial()
    assert (round(cold.namelookup, 6), round(cold.connect, 6)) == (0.256, 0.297)
    assert cold.appconnect == cold.connect
    assert (round(cold.trip, 6), cold.handshake) == (0.041, 0.0)
    _, warm = world.dial()
    assert (warm.namelookup, round(warm.connect, 6)) == (0.0, 0.041)


def test_what_has_worked_goes_first() -> None:
    """IPv6 that leads nowhere costs a quarter of a second once."""
    world = World(SIX, FOUR)
    world.delays = {FOUR: 0.04}
    _, first = world.dial()
    assert first.trip == pytest.approx(0.29)
    _, second = world.dial()
    assert second.trip == pytest.approx(0.04)
    assert (world.asked, world.route.best) == ([SIX, FOUR, FOUR], FOUR)
    assert world.open == [FOUR]


def test_what_has_worked_may_stop_working() -> None:
    """Then another one does, and goes first."""
    world = World(FOUR, FOUR_TOO)
    world.delays = {FOUR: 0.04, FOUR_TOO: 0.04}
    world.dial()
    world.refusing = {FOUR: ConnectionRefusedError(111, "Connection refused")}
    world.dial()
    world.dial()
    assert world.asked == [FOUR, FOUR, FOUR_TOO, FOUR_TOO]


def test_time_is_for_all_of_it() -> None:
    """The look-up included; who waits learns what was tried."""
    world = World(SIX, FOUR, lookup=0.1)
    with pytest.raises(ConnectTimeout) as caught:
        world.dial(timeout=0.3)
    assert str(caught.value) == "no connection within 0.3 s"
    assert caught.value.inside == f"no connection within 0.3 s (api.test: {SIX}: no answer)"
    with pytest.raises(ConnectTimeout) as caught:
        world.dial(timeout=0.3)
    assert caught.value.inside.endswith(f"(api.test: {SIX}: no answer; {FOUR}: no answer)")
    assert world.route.faults == {"timeout": 2}


def test_a_look_up_that_takes_too_long() -> None:
    """It goes on by itself, for the next one."""
    world = World(FOUR, lookup=3.0)
    world.delays = {FOUR: 0.04}
    with pytest.raises(ConnectTimeout) as caught:
        world.dial()
    assert caught.value.inside == "no connection within 2 s: api.test was still being looked up"
    assert world.dial()[1].namelookup == 0.0


def test_a_name_without_addresses() -> None:
    """The client is not told which."""
    world = World(lookup=None)
    with pytest.raises(NameUnresolved) as caught:
        world.dial()
    assert (str(caught.value), caught.value.inside) == (
        "the worker's name has no address",
        "api.test: has no addresses",
    )
    assert world.route.faults == {"name": 1}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "refused"),
        (OSError(101, "Network is unreachable"), "unreachable"),
        (OSError(113, "No route to host"), "unreachable"),
        (ConnectionResetError(104, "Connection reset by peer"), "reset"),
        (ConnectionResetError("lost"), "reset"),
        (OSError(24, "Too many open files"), "descriptors"),
        (OSError("odd"), "other"),
    ],
)
def test_failures_are_counted_by_kind(error: OSError, kind: str) -> None:
    """And say in the system's words what was wrong, and where."""
    world = World(FOUR)
    world.delays, world.refusing = {FOUR: 0.04}, {FOUR: error}
    with pytest.raises(ConnectFailed) as caught:
        world.dial()
    assert caught.value.kind == kind
    words = error.strerror or str(error)
    assert (str(caught.value), caught.value.inside) == (words, f"{words} (api.test: {FOUR}: {words})")
    assert world.route.faults == {kind: 1}


@pytest.mark.parametrize("after", [0.0, 0.1, 0.256, 0.27, 0.297, 0.5, 0.506, 0.547])
def test_cancelled_at_any_time(after: float) -> None:
    """Within the look-up, the first attempt, the second: nothing is left."""
    world = World(SIX, FOUR)
    world.delays = {SIX: 0.3, FOUR: 0.05}
    with world.loop:
        task = world.loop.create_task(dial(WaitQueue, "api.test", 80, 2.0, None, world.route))
        if after:
            world.loop.advance(after)
        task.cancel()
        world.loop.advance(20.0)
    assert task.cancelled()
    assert world.open == []


def test_without_a_route() -> None:
    """Whoever keeps nothing leaves the name to the loop."""
    world = World()
    world.delays = {"api.test": 0.3}
    _, phases = world.run(dial(WaitQueue, "api.test", 80, 2.0))
    assert world.asked == ["api.test"]
    assert phases.namelookup <= phases.connect == phases.appconnect
