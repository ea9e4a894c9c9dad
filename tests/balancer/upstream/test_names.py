"""Background look-ups of names: which requests wait, stale answers, failing name servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import pytest

from balancer.config.schema.names import NamesConfig
from balancer.upstream.dial.resolver import (
    Addresses,
    Look,
    LookupFailed,
    dns_lookup,
    is_literal,
    system_lookup,
)
from balancer.upstream.dial.target import MAX_LOOKUPS, CachedName, CacheState, Names
from tests.support.admin_requests import status
from tests.support.name_server import AAAA, SERVFAIL, A, NameServer
from tests.support.stage import ManualClock, Stage
from tests.support.wire import get, response

NAME = "api.test"
CONFIG = NamesConfig(min_ttl=1.0, max_ttl=300.0, max_stale=100.0, negative_ttl=5.0)


class HeldLookup:
    """A look-up whose answers the test holds back or replaces."""

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


class NamesWithLookup:
    """`Names` with a `HeldLookup` behind it."""

    def __init__(self) -> None:
        self.lookup = HeldLookup()
        self.clock = ManualClock()
        self.reported: list[tuple[str, ...]] = []
        self.names = Names(CONFIG, self.clock.now, lambda _, hosts, __: self.reported.append(hosts))
        self.names.look = self.lookup
        for host in (NAME, "192.0.2.9", "2001:db8::9"):
            self.names.add(host)

    async def sweep(self, seconds: float = 0.0) -> None:
        """Advance the clock and finish due look-ups, or only start them while answers are held back."""
        self.clock.at += seconds
        self.names.sweep(self.clock.at)
        if self.lookup.may_answer.is_set():
            await self.names.settled()
        else:
            await asyncio.sleep(0)  # the look-ups start, no more

    async def get(self) -> tuple[str, ...]:
        return await self.names.addresses(NAME)


@pytest.fixture
async def resolver() -> AsyncIterator[NamesWithLookup]:
    resolver = NamesWithLookup()
    yield resolver
    await resolver.names.close()
    assert not resolver.names.is_looking


async def test_sweep_looks_names_up_before_requests(resolver: NamesWithLookup) -> None:
    """Literal addresses are not looked up."""
    await resolver.sweep()
    assert (resolver.lookup.asked, resolver.reported) == ([NAME], [("192.0.2.1",)])
    assert await resolver.get() == ("192.0.2.1",)
    assert await resolver.names.addresses("2001:db8::9") == ("2001:db8::9",)
    assert (resolver.names.counts.fresh, resolver.names.counts.waited) == (1, 0)


async def test_stale_answer_serves_without_waiting(resolver: NamesWithLookup) -> None:
    """The stale answer serves until the one look-up in the background is done."""
    await resolver.sweep()
    resolver.lookup.may_answer.clear()
    resolver.lookup.answer = Addresses(("192.0.2.2",), 10.0)
    for _ in range(4):
        await resolver.sweep(10.0)
        assert await asyncio.wait_for(resolver.get(), 1.0) == ("192.0.2.1",)
    assert len(resolver.lookup.asked) == 2
    resolver.lookup.may_answer.set()
    await resolver.sweep()
    assert await resolver.get() == ("192.0.2.2",)
    assert (resolver.names.counts.fresh, resolver.names.counts.stale, resolver.names.counts.waited) == (
        1,
        4,
        0,
    )


async def test_answer_without_ttl_serves_the_waiting_request(resolver: NamesWithLookup) -> None:
    """An answer with TTL 0 has expired before the waiting request resumes."""
    resolver.lookup.answer = Addresses(("192.0.2.3",), 0.0)
    resolver.names.config = NamesConfig.model_construct(min_ttl=0.0, max_ttl=0.0, max_stale=0.0)
    for _ in range(3):
        assert await resolver.get() == ("192.0.2.3",)
    assert (resolver.names.counts.waited, len(resolver.lookup.asked)) == (3, 3)


async def test_names_are_looked_up_on_demand_without_ahead(resolver: NamesWithLookup) -> None:
    """`prefetch` False: the sweep looks nothing up, and a stale answer serves during the look-up."""
    resolver.names.config = CONFIG.model_copy(update={"prefetch": False})
    await resolver.sweep()
    assert resolver.lookup.asked == []
    assert await resolver.get() == ("192.0.2.1",)
    resolver.lookup.answer = Addresses(("192.0.2.2",), 10.0)
    await resolver.sweep(10.0)
    assert (await resolver.get(), len(resolver.lookup.asked)) == (("192.0.2.1",), 1)
    await resolver.names.settled()
    assert (await resolver.get(), len(resolver.lookup.asked)) == (("192.0.2.2",), 2)
    assert (resolver.names.counts.waited, resolver.names.counts.stale) == (1, 1)


async def test_stale_answer_serves_while_name_server_fails(resolver: NamesWithLookup) -> None:
    """Stale answers serve until `stale` has passed; the look-up is repeated every five seconds."""
    await resolver.sweep()
    resolver.lookup.answer = LookupFailed("api.test: server failed")
    for _ in range(80):
        await resolver.sweep(1.0)
        assert await resolver.get() == ("192.0.2.1",)
    assert resolver.names.counts.failed == 15
    await resolver.sweep(40.0)
    with pytest.raises(LookupFailed, match="server failed"):
        await resolver.get()


async def test_concurrent_requests_share_one_lookup(resolver: NamesWithLookup) -> None:
    """Cancelling one waiting request does not cancel the look-up."""
    resolver.lookup.may_answer.clear()
    waiting = [asyncio.create_task(resolver.get()) for _ in range(10)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    resolver.lookup.may_answer.set()
    assert await asyncio.gather(*waiting[1:]) == [("192.0.2.1",)] * 9
    assert (resolver.lookup.asked, resolver.names.counts.waited) == ([NAME], 10)


async def test_unresolved_name_is_refused_without_another_lookup(resolver: NamesWithLookup) -> None:
    """The sweep repeats the look-up after `negative` seconds."""
    resolver.lookup.answer = LookupFailed("api.test: has no addresses")
    for _ in range(10):
        with pytest.raises(LookupFailed, match=r"api\.test: has no addresses"):
            await resolver.get()
    assert (resolver.names.counts.waited, resolver.names.counts.refused, len(resolver.lookup.asked)) == (
        1,
        9,
        1,
    )
    resolver.lookup.answer = Addresses(("192.0.2.1",), 10.0)
    await resolver.sweep(4.9)
    assert len(resolver.lookup.asked) == 1
    await resolver.sweep(0.2)
    assert await resolver.get() == ("192.0.2.1",)
    assert resolver.names.known[NAME].fault is None


async def test_name_of_no_endpoint_is_forgotten(resolver: NamesWithLookup) -> None:
    """Its look-up is cancelled, and requests that wait for it fail. One that comes later does not keep it."""
    resolver.lookup.may_answer.clear()
    waiting = asyncio.create_task(resolver.get())
    await asyncio.sleep(0)
    resolver.names.add("other.test")
    resolver.names.forget(NAME)
    with pytest.raises(LookupFailed, match="given up"):
        await waiting
    resolver.lookup.may_answer.set()
    await resolver.get()
    assert list(resolver.names.known) == ["other.test"]


async def test_concurrent_lookups_are_bounded(resolver: NamesWithLookup) -> None:
    """At most `MAX_LOOKUPS` look-ups run at a time."""
    resolver.lookup.may_answer.clear()
    resolver.names.forget(NAME)
    for number in range(1000):
        resolver.names.add(f"n{number}.test")
    await resolver.sweep()
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(resolver.lookup.asked) == MAX_LOOKUPS
    resolver.lookup.may_answer.set()
    await resolver.sweep()
    assert len(resolver.lookup.asked) == 1000


@pytest.mark.parametrize("host", ["192.0.2.1", "::1", "fe80::1%eth0"])
def test_addresses_are_literals(host: str) -> None:
    assert is_literal(host)
    assert not is_literal(f"x{host}")


BOUNDS = NamesConfig(min_ttl=2.0, max_ttl=100.0, max_stale=50.0)


@pytest.mark.parametrize(
    ("ttl", "fresh_for"), [(0.0, 2.0), (1.0, 2.0), (30.0, 30.0), (100.0, 100.0), (86_400.0, 100.0)]
)
def test_ttl_within_bounds(ttl: float, fresh_for: float) -> None:
    """Then a look-up is due, and the stale answer is still used."""
    name = CachedName()
    name.answered(("192.0.2.1",), ttl, BOUNDS, now=10.0)
    just_before, then = 10.0 + fresh_for - 0.001, 10.0 + fresh_for
    assert (name.worth(BOUNDS, just_before), name.is_due(just_before)) == (CacheState.FRESH, False)
    assert (name.worth(BOUNDS, then), name.is_due(then)) == (CacheState.STALE, True)
    assert name.worth(BOUNDS, then + 49.9) is CacheState.STALE
    assert name.worth(BOUNDS, then + 50.0) is CacheState.UNKNOWN


# --- look-ups


def lookup(names: NameServer, timeout: float = 2.0) -> Look:
    return partial(dns_lookup, servers=(f"127.0.0.1:{names.port}",), timeout=timeout)


async def test_least_ttl_of_both_families_holds(names: NameServer) -> None:
    """IPv6 addresses come first."""
    names.address(NAME, "192.0.2.1", "2001:db8::1", ttl=42)
    assert await lookup(names)(NAME) == Addresses(("2001:db8::1", "192.0.2.1"), 42)


@pytest.mark.parametrize(("bad", "host"), [(A, "2001:db8::1"), (AAAA, "192.0.2.1")])
async def test_failure_for_one_family_leaves_the_other(names: NameServer, bad: int, host: str) -> None:
    names.address(NAME, "192.0.2.1", "2001:db8::1", ttl=42)
    names.failing_kinds = {bad}
    assert (await lookup(names)(NAME)).hosts == (host,)


async def test_failed_dns_lookup_names_the_host(names: NameServer) -> None:
    with pytest.raises(LookupFailed, match=r"^api\.test: has no addresses$"):
        await lookup(names)(NAME)
    names.code = SERVFAIL
    with pytest.raises(LookupFailed, match=r"^api\.test: "):
        await lookup(names)(NAME)
    names.is_silent = True
    with pytest.raises(LookupFailed, match=r"^api\.test: "):
        await lookup(names, 0.05)(NAME)


async def test_system_lookup_resolves_localhost() -> None:
    """By the hosts file, with the TTL from the configuration."""
    found = await system_lookup("localhost", ttl=7.0, timeout=5.0)
    assert found.ttl == 7.0
    assert set(found.hosts) <= {"127.0.0.1", "::1"}


async def test_label_too_long_is_refused() -> None:
    """A label has at most 63 letters; no name server is asked."""
    with pytest.raises(LookupFailed, match=r"^x{70}\.test: "):
        await system_lookup("x" * 70 + ".test", ttl=7.0, timeout=5.0)


# --- with the whole balancer


def by_dns(names: NameServer) -> dict[str, object]:
    return {"resolver": "dns", "servers": [f"127.0.0.1:{names.port}"], "negative_ttl": 5.0}


async def test_requests_succeed_while_name_server_is_silent(stage: Stage, names: NameServer) -> None:
    """Each request opens a new connection."""
    worker = await stage.worker(response(b"found", b"Connection: close"))
    names.address(NAME, "127.0.0.1", ttl=10)
    endpoints = [{"id": "w0", "address": f"http://{NAME}:{worker.port}"}]
    await stage.serve(endpoints=endpoints, names=by_dns(names))
    assert (await stage.ask(get())).body == b"found"
    names.is_silent = True
    stage.jump(3600)
    for _ in range(3):
        assert (await stage.ask(get())).body == b"found"
    report = (await status(stage))["names"]
    assert report["resolver"] == "dns"
    assert (report["waited"] + report["fresh"], report["stale"]) == (1, 3)
    (known,) = report["known"]
    assert (known["name"], known["addresses"], known["state"]) == (NAME, ["127.0.0.1"], "stale")


async def test_unresolved_name_is_answered_502(stage: Stage, names: NameServer) -> None:
    """The response names the error code only, status has the reason; the failed look-up is not repeated per request."""
    endpoints = [{"id": "w0", "address": f"http://{NAME}:80"}]
    await stage.serve(endpoints=endpoints, names=by_dns(names), retries=0)
    for _ in range(3):
        reply = await stage.ask(get())
        assert (reply.status, b'"name_unresolved"' in reply.body) == (502, True)
        assert NAME.encode() not in reply.body
    assert names.asked in ([(NAME, A), (NAME, AAAA)], [(NAME, AAAA), (NAME, A)])
    (endpoint,) = (await status(stage))["endpoints"]
    assert endpoint["connections"]["last_fault"] == "api.test: has no addresses"
    assert endpoint["route"]["faults"] == {"name": 3}
