"""Sharing through a store over sockets: a fake one, and a Redis or Valkey server where one is installed."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import trustme
from pydantic import SecretStr

from balancer.config.schema.sections import SharedConfig
from balancer.control.admin.metrics import metrics_text
from balancer.sharing.exchange import Identity, ReportExchange
from balancer.sharing.store import MAX_ANSWER_BYTES, Store
from policies import registry
from policies.clock import MonotonicClock
from policies.facts import Endpoint, RequestFacts
from policies.routing.router import Router
from policies.routing.units import OtherUnits
from tests.support.admin_requests import local
from tests.support.programs import PATIENCE, Load, Program, starting, workers
from tests.support.shared_stores import FakeStore, RealStore, StallingProxy, needs_server
from tests.support.stage import Stage
from tests.support.wire import get, response

PASSWORD = "hush-hush/#"
QUOTED = "hush-hush%2F%23"


class Units:
    """Units that share through one store."""

    def __init__(self, url: str, verify: bool = True) -> None:
        self._config = SharedConfig(url=SecretStr(url), every=0.01, verify=verify)
        self.exchanges: list[ReportExchange] = []
        self.routers: list[Router] = []
        self.lines: list[str] = []

    def start(self) -> Router:
        clock, rng = MonotonicClock(), Random(1)
        router = Router([Endpoint("e0", "http://e0", "r")], registry.make("round-robin", {}, rng), clock, rng)
        number, config = len(self.routers) + 1, self._config
        exchange = ReportExchange(
            OtherUnits(router),
            Store(config).opened,
            Identity(number, number, 1),
            clock.now,
            every=config.every,
            store=config.store,
            say=self.lines.append,
        )
        exchange.start()
        self.routers.append(router)
        self.exchanges.append(exchange)
        return router

    async def logged(self) -> None:
        """Wait for a line in the log."""
        async with asyncio.timeout(10):
            while not self.lines:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def until(self, connected: bool) -> None:
        async with asyncio.timeout(20):
            while {exchange.is_connected for exchange in self.exchanges} != {connected}:
                for exchange in self.exchanges:
                    exchange.sweep(MonotonicClock().now())
                await asyncio.sleep(0.01)


@pytest.fixture(params=["fake", pytest.param("real", marks=[pytest.mark.peer, needs_server])])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FakeStore | RealStore]:
    made = FakeStore(PASSWORD) if request.param == "fake" else RealStore(tmp_path, PASSWORD)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def fake() -> AsyncIterator[FakeStore]:
    made = FakeStore(PASSWORD)
    await made.start()
    yield made
    await made.stop()


@asynccontextmanager
async def shared(url: str, verify: bool = True) -> AsyncIterator[Units]:
    """Units on a store; they are stopped at the end."""
    made = Units(url, verify)
    try:
        yield made
    finally:
        for exchange in made.exchanges:
            await exchange.stop()


async def test_units_share_and_reconnect(store: FakeStore | RealStore) -> None:
    async with shared(f"redis://:{QUOTED}@127.0.0.1:{store.port}") as units:
        one, two = units.start(), units.start()
        two.route(RequestFacts(region="r"))
        await units.until(connected=True)
        async with asyncio.timeout(10):
            while one.states[0].elsewhere != 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await store.stop()
        await units.until(connected=False)
        assert len(units.lines) == 2
        await store.start()
        await units.until(connected=True)
        assert len(units.lines) == 4
        assert not any("hush" in line for line in units.lines)


async def test_a_slow_store_can_be_connected_to(fake: FakeStore) -> None:
    """Each of the answers to login and subscription takes nearly as long as a report may."""
    fake.delay = 0.3
    async with shared(f"redis://:{QUOTED}@127.0.0.1:{fake.port}") as units:
        units.start()
        await units.until(connected=True)


async def test_a_wrong_password_is_reported_without_it(fake: FakeStore) -> None:
    async with shared(f"redis://user:wrong-{QUOTED}@127.0.0.1:{fake.port}") as units:
        units.start()
        await units.logged()
        assert "invalid username-password pair" in units.lines[0]
        assert "hush" not in units.lines[0]


async def test_a_password_that_is_missing_is_reported(fake: FakeStore) -> None:
    fake.garbage = b"-NOAUTH Authentication required.\r\n"
    async with shared(f"redis://127.0.0.1:{fake.port}") as units:
        units.start()
        await units.logged()
        assert "is lost: NOAUTH Authentication required; this unit" in units.lines[0]


@pytest.mark.parametrize("is_verified", [True, False])
async def test_certificates_are_verified_unless_that_is_off(is_verified: bool) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("store.test").configure_cert(context)
    secure = FakeStore(PASSWORD, context)
    await secure.start()
    async with shared(f"rediss://user:{QUOTED}@127.0.0.1:{secure.port}", verify=is_verified) as units:
        units.start()
        if is_verified:
            await units.logged()
            assert "certificate verify failed" in units.lines[0]
        else:
            await units.until(connected=True)
    await secure.stop()


@pytest.mark.parametrize(
    "garbage",
    [b"nonsense\r\n", b"*1\r\n:x\r\n", b"\xff\xfe\r\n", b"$9000000\r\n" + bytes(MAX_ANSWER_BYTES + 1)],
    ids=["nonsense", "no number", "no text", "too large"],
)
async def test_a_hostile_server_ends_nothing(fake: FakeStore, garbage: bytes) -> None:
    """An answer that is not of the protocol is a loss of the store."""
    fake.garbage = garbage
    async with shared(f"redis://:{QUOTED}@127.0.0.1:{fake.port}") as units:
        units.start()
        await units.logged()
        fake.garbage = b""
        await units.until(connected=True)


async def test_status_and_metrics_have_the_store(stage: Stage, fake: FakeStore) -> None:
    url = f"redis://:{QUOTED}@127.0.0.1:{fake.port}"
    server = await stage.serve(await stage.worker(response()), shared={"url": url, "every": 0.02})
    shared = server.control_plane.shared
    assert shared is not None
    await stage.eventually(lambda: shared.is_connected)
    assert (await stage.ask(get())).status == 200
    status = json.loads((await stage.ask(local(b"/-/status"))).body)["shared"]
    assert status | {"sent": 0, "delay": 0.0} == {
        "store": f"redis://127.0.0.1:{fake.port}",
        "connected": True,
        "problem": None,
        "delay": 0.0,
        "interval": 0.02,
        "others": 0,
        "in_flight_elsewhere": 0,
        "sent": 0,
        "heard": 0,
        "ignored": 0,
        "lost": 0,
    }
    text = metrics_text(stage.control_plane)[0].decode()
    assert "steelyard_shared_connected 1.0" in text
    assert 'steelyard_shared_reports_total{result="ignored"} 0.0' in text


@pytest.mark.peer
@pytest.mark.second_tier
@pytest.mark.timeout(120)
@needs_server
async def test_programs_serve_while_the_store_stalls_or_is_killed(tmp_path: Path, stage: Stage) -> None:
    """Two balancers, one of two processes, under load: no request fails, and both hear each other again."""
    store = RealStore(tmp_path)
    await store.start()
    proxy = StallingProxy(store.port)
    await proxy.start()
    worker = await stage.worker(response(b"ok"))
    url = f"redis://127.0.0.1:{proxy.port}"
    async with starting(*workers(worker)) as start:
        programs = [
            await start("--processes", str(processes), BALANCER_SHARED__URL=url) for processes in (1, 2)
        ]
        loads = [Load(program) for program in programs]
        await until_shared(programs, [2, 1])
        proxy.flows.clear()
        await until_shared(programs, [0, 0])
        proxy.flows.set()
        await until_shared(programs, [2, 1])
        await store.stop()
        await until_shared(programs, [0, 0])
        await store.start()
        await until_shared(programs, [2, 1])
        for load in loads:
            assert await load.end() == []
    await proxy.stop()
    await store.stop()


async def until_shared(programs: list[Program], others: list[int]) -> None:
    """Wait until each program hears so many processes of other units."""
    async with asyncio.timeout(PATIENCE):
        while [(await program.status())["shared"]["others"] for program in programs] != others:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
