"""Names looked up in the background: who waits, who does not, and what a name server's bad hour costs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from balancer.upstream.lookup import DnsLookup, SystemLookup, is_literal
from balancer.upstream.names import AT_ONCE, Names, NamesPlan
from balancer.upstream.resolved_name import NameRules
from balancer.upstream.resolver import Addresses, LookupFailed
from tests.balancer.conftest import ManualClock, Stage, get, response
from tests.balancer.name_server import AAAA, SERVFAIL, A, NameServer
from tests.balancer.test_admin import status

NAME = "api.test"
RULES = NameRules(shortest=1.0, longest=300.0, stale=100.0, negative=5.0)


class Zone:
    """Answers when the test lets it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answer: Addresses | LookupFailed = Addresses(("192.0.2.1",), 10.0)
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def __call__(self, name: str) -> Addresses:
        self.asked.append(name)
        await self.may_answer.wait()
        if isinstance(self.answer, LookupFailed):
            raise self.answer
        return self.answer


class Asked:
    """Names before a zone."""

    def __init__(self) -> None:
        self.zone = Zone()
        self.clock = ManualClock()
        self.heard: list[tuple[str, ...]] = []
        plan = NamesPlan(RULES, self.zone)
        self.names = Names(plan, self.clock.now, lambda _, hosts, __: self.heard.append(hosts))
        self.names.update([NAME, "192.0.2.9", "2001:db8::9"])

    async def sweep(self, seconds: float = 0.0) -> None:
        """Time passes, and all look-ups that it brings are done, or begun where there is no answer yet."""
        self.clock.at += seconds
        self.names.sweep(self.clock.at)
        if self.zone.may_answer.is_set():
            await self.names.settled()
        else:
            await asyncio.sleep(0)  # they begin, no more

    async def get(self) -> tuple[str, ...]:
        return await self.names.addresses(NAME)


@pytest.fixture
async def asked() -> AsyncIterator[Asked]:
    asked = Asked()
    yield asked
    await asked.names.close()
    assert not asked.names.is_looking


async def test_a_name_is_known_before_anybody_asks(asked: Asked) -> None:
    """The sweep looks names up, and addresses not at all."""
    await asked.sweep()
    assert (asked.zone.asked, asked.heard) == ([NAME], [("192.0.2.1",)])
    assert await asked.get() == ("192.0.2.1",)
    assert await asked.names.addresses("2001:db8::9") == ("2001:db8::9",)
    assert (asked.names.counts.fresh, asked.names.counts.waited) == (1, 0)


async def test_nobody_waits_for_a_name_that_was_known(asked: Asked) -> None:
    """A stale answer serves while a new one is looked up, once, and then the new one does."""
    await asked.sweep()
    asked.zone.may_answer.clear()
    asked.zone.answer = Addresses(("192.0.2.2",), 10.0)
    for _ in range(4):
        await asked.sweep(10.0)
        assert await asyncio.wait_for(asked.get(), 1.0) == ("192.0.2.1",)
    assert len(asked.zone.asked) == 2
    asked.zone.may_answer.set()
    await asked.sweep()
    assert await asked.get() == ("192.0.2.2",)
    assert (asked.names.counts.fresh, asked.names.counts.stale, asked.names.counts.waited) == (1, 4, 0)


async def test_an_answer_serves_who_has_waited_for_it(asked: Asked) -> None:
    """Though it holds for no time at all, and is forgotten before the waiter's turn comes."""
    asked.zone.answer = Addresses(("192.0.2.3",), 0.0)
    asked.names.plan = replace(asked.names.plan, rules=NameRules(shortest=0.0, longest=0.0, stale=0.0))
    for _ in range(3):
        assert await asked.get() == ("192.0.2.3",)
    assert (asked.names.counts.waited, len(asked.zone.asked)) == (3, 3)


async def test_names_are_looked_up_when_they_are_needed(asked: Asked) -> None:
    """Where it is wanted so: never by the sweep, and a stale answer serves while another is asked for."""
    asked.names.plan = replace(asked.names.plan, is_ahead=False)
    await asked.sweep()
    assert asked.zone.asked == []
    assert await asked.get() == ("192.0.2.1",)
    asked.zone.answer = Addresses(("192.0.2.2",), 10.0)
    await asked.sweep(10.0)
    assert (await asked.get(), len(asked.zone.asked)) == (("192.0.2.1",), 1)
    await asked.names.settled()
    assert (await asked.get(), len(asked.zone.asked)) == (("192.0.2.2",), 2)
    assert (asked.names.counts.waited, asked.names.counts.stale) == (1, 1)


async def test_a_name_server_that_fails_changes_nothing(asked: Asked) -> None:
    """For as long as stale answers serve; it is asked every five seconds."""
    await asked.sweep()
    asked.zone.answer = LookupFailed("api.test: server failed")
    for _ in range(80):
        await asked.sweep(1.0)
        assert await asked.get() == ("192.0.2.1",)
    assert asked.names.counts.failed == 15
    await asked.sweep(40.0)
    with pytest.raises(LookupFailed, match="server failed"):
        await asked.get()


async def test_those_who_wait_wait_for_the_same(asked: Asked) -> None:
    """Ten requests, one look-up; one that gives up does not end it."""
    asked.zone.may_answer.clear()
    waiting = [asyncio.create_task(asked.get()) for _ in range(10)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    asked.zone.may_answer.set()
    assert await asyncio.gather(*waiting[1:]) == [("192.0.2.1",)] * 9
    assert (asked.zone.asked, asked.names.counts.waited) == ([NAME], 10)


async def test_a_name_that_does_not_resolve_is_refused_at_once(asked: Asked) -> None:
    """And asked for again by the sweep, so that the first request after it is mended is served."""
    asked.zone.answer = LookupFailed("api.test: has no addresses")
    for _ in range(10):
        with pytest.raises(LookupFailed, match=r"api\.test: has no addresses"):
            await asked.get()
    assert (asked.names.counts.waited, asked.names.counts.refused, len(asked.zone.asked)) == (1, 9, 1)
    asked.zone.answer = Addresses(("192.0.2.1",), 10.0)
    await asked.sweep(4.9)
    assert len(asked.zone.asked) == 1
    await asked.sweep(0.2)
    assert await asked.get() == ("192.0.2.1",)


async def test_names_that_nobody_has_any_more_are_forgotten(asked: Asked) -> None:
    """With the look-up that is under way; who waited for it is told."""
    asked.zone.may_answer.clear()
    waiting = asyncio.create_task(asked.get())
    await asyncio.sleep(0)
    asked.names.update(["other.test"])
    with pytest.raises(LookupFailed, match="given up"):
        await waiting
    assert list(asked.names.known) == ["other.test"]


async def test_a_thousand_names_take_turns(asked: Asked) -> None:
    """A start does not flood the name server."""
    asked.zone.may_answer.clear()
    asked.names.update(f"n{number}.test" for number in range(1000))
    await asked.sweep()
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(asked.zone.asked) == AT_ONCE
    asked.zone.may_answer.set()
    await asked.sweep()
    assert len(asked.zone.asked) == 1000


@pytest.mark.parametrize("host", ["192.0.2.1", "::1", "fe80::1%eth0"])
def test_addresses_are_no_names(host: str) -> None:
    """Nothing is looked up for them."""
    assert is_literal(host)
    assert not is_literal(f"x{host}")


# --- who is asked


@pytest.fixture
async def server() -> AsyncIterator[NameServer]:
    server = NameServer()
    await server.start()
    yield server
    server.stop()


def look(server: NameServer, timeout: float = 2.0) -> DnsLookup:
    return DnsLookup((f"127.0.0.1:{server.port}",), timeout)


async def test_the_dns_says_for_how_long(server: NameServer) -> None:
    """IPv6 first, the least TTL."""
    server.address(NAME, "192.0.2.1", "2001:db8::1", ttl=42)
    assert await look(server)(NAME) == Addresses(("2001:db8::1", "192.0.2.1"), 42)


@pytest.mark.parametrize(("bad", "host"), [(A, "2001:db8::1"), (AAAA, "192.0.2.1")])
async def test_half_an_answer_is_enough(server: NameServer, bad: int, host: str) -> None:
    """A zone that fails for one family is a zone that can be connected to."""
    server.address(NAME, "192.0.2.1", "2001:db8::1", ttl=42)
    server.failing_kinds = {bad}
    assert (await look(server)(NAME)).hosts == (host,)


async def test_what_a_name_server_may_do_wrong(server: NameServer) -> None:
    """One line each, and no longer than it may take."""
    with pytest.raises(LookupFailed, match=r"^api\.test: has no addresses$"):
        await look(server)(NAME)
    server.code = SERVFAIL
    with pytest.raises(LookupFailed, match=r"^api\.test: "):
        await look(server)(NAME)
    server.is_silent = True
    with pytest.raises(LookupFailed, match=r"^api\.test: "):
        await look(server, 0.05)(NAME)


async def test_this_machine_knows_itself() -> None:
    """By its hosts file; its answer holds for as long as we say."""
    found = await SystemLookup(ttl=7.0, timeout=5.0)("localhost")
    assert found.ttl == 7.0
    assert set(found.hosts) <= {"127.0.0.1", "::1"}


async def test_a_name_that_none_can_have() -> None:
    """A label has 63 letters at most: nobody else is asked."""
    with pytest.raises(LookupFailed, match=r"^x{70}\.test: "):
        await SystemLookup(ttl=7.0, timeout=5.0)("x" * 70 + ".test")


# --- the whole unit


def by_dns(server: NameServer) -> dict[str, object]:
    return {"resolver": "dns", "servers": [f"127.0.0.1:{server.port}"], "negative_ttl": 5.0}


async def test_requests_go_on_when_names_do_not(stage: Stage, server: NameServer) -> None:
    """A new connection for each, while the name server is silent: the last answer serves."""
    worker = await stage.worker(response(b"found", b"Connection: close"))
    server.address(NAME, "127.0.0.1", ttl=10)
    endpoints = [{"id": "w0", "address": f"http://{NAME}:{worker.port}"}]
    await stage.serve(endpoints=endpoints, names=by_dns(server))
    assert (await stage.ask(get())).body == b"found"
    server.is_silent = True
    stage.jump(3600)
    for _ in range(3):
        assert (await stage.ask(get())).body == b"found"
    told = (await status(stage))["names"]
    assert told["resolver"] == "dns"
    assert (told["waited"] + told["fresh"], told["stale"]) == (1, 3)
    (known,) = told["known"]
    assert (known["name"], known["addresses"], known["state"]) == (NAME, ["127.0.0.1"], "stale")


async def test_a_name_that_does_not_resolve(stage: Stage, server: NameServer) -> None:
    """The client learns that much, the operator why; it is counted, and costs no second look-up."""
    endpoints = [{"id": "w0", "address": f"http://{NAME}:80"}]
    await stage.serve(endpoints=endpoints, names=by_dns(server), retries=0)
    for _ in range(3):
        answer = await stage.ask(get())
        assert (answer.status, b'"name_unresolved"' in answer.body) == (502, True)
        assert NAME.encode() not in answer.body
    assert server.asked in ([(NAME, A), (NAME, AAAA)], [(NAME, AAAA), (NAME, A)])
    (endpoint,) = (await status(stage))["endpoints"]
    assert endpoint["connections"]["last_fault"] == "api.test: has no addresses"
    assert endpoint["route"]["faults"] == {"name": 3}


async def test_the_next_address_is_tried(stage: Stage, server: NameServer) -> None:
    """One refuses, the other serves and goes first from then on."""
    worker = await stage.worker(response(b"second", b"Connection: close"))
    server.address(NAME, "127.0.0.1", "::1", ttl=10)
    endpoints = [{"id": "w0", "address": f"http://{NAME}:{worker.port}"}]
    await stage.serve(endpoints=endpoints, names=by_dns(server))
    for _ in range(2):
        assert (await stage.ask(get())).body == b"second"
    assert stage.pool().route.best == "127.0.0.1"
    assert stage.pool().route.faults == {}


async def test_what_was_tried_is_told(stage: Stage, server: NameServer) -> None:
    """Each address with what became of it."""
    server.address(NAME, "127.0.0.1", "127.0.0.2", ttl=10)
    endpoints = [{"id": "w0", "address": f"http://{NAME}:{stage.dead_port()}"}]
    await stage.serve(endpoints=endpoints, names=by_dns(server), retries=0)
    assert (await stage.ask(get())).status == 502
    fault = stage.pool().last_fault or ""
    assert f"({NAME}: 127.0.0.1: " in fault
    assert "; 127.0.0.2: " in fault
    assert stage.pool().route.faults == {"refused": 1}
