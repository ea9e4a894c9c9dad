"""Rate limits that units share through a store: what one has admitted counts at the others, batch by batch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from balancer.config.loading import Settings
from balancer.config.schema.rate_limits import RateLimitConfig
from balancer.config.schema.sections import SharedConfig
from balancer.control.admin.status import shared_status
from balancer.errors import StoreLost
from balancer.rate_limits.configured import RateLimits
from balancer.rate_limits.limiter import CREDIBLE_S
from balancer.sharing import exchange, token_exchange
from balancer.sharing.token_exchange import BUCKET, HEAD, VERSION, TokenExchange, token_exchange_of
from tests.support.shared_stores import FakeStore, RealStore, needs_server
from tests.support.stage import ManualClock
from tests.support.wire import PATIENCE

CONFIG = RateLimitConfig(name="a", requests=10, period=1000, burst=20, by="client", shared=True)


class Unit:
    """The limits of one process of a unit, and its exchange."""

    def __init__(self, url: str, *, applies: bool = True, config: RateLimitConfig = CONFIG) -> None:
        self.clock = ManualClock()
        self.lines: list[str] = []
        self.limits = RateLimits(self.clock.now, lambda _: False)
        made = token_exchange_of(
            SharedConfig(url=SecretStr(url)),
            self.limits,
            self.clock.now,
            self.lines.append,
            None,
            applies=applies,
        )
        assert made is not None
        self.exchange: TokenExchange = made
        self.limits.apply([config])
        self.limit = self.limits.by_name["a"]

    def take(self, source: bytes, number: int) -> int:
        """Ask for tokens; return how many there were."""
        got = 0
        for _ in range(number):
            if self.limit.wait(source, self.clock.at) == 0.0:
                self.limit.take(self.clock.at)
                got += 1
        return got

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():  # noqa: ASYNC110 - the exchange has no event for the condition
                await asyncio.sleep(0.005)

    async def connect(self) -> None:
        self.exchange.sweep()
        await self.until(lambda: self.limits.taken.is_told)


@pytest.fixture(params=["fake", pytest.param("real", marks=[pytest.mark.peer, needs_server])])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FakeStore | RealStore]:
    made = FakeStore() if request.param == "fake" else RealStore(tmp_path)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def units(store: FakeStore | RealStore) -> AsyncIterator[list[Unit]]:
    made = [Unit(f"redis://127.0.0.1:{store.port}") for _ in range(3)]
    for one in made:
        await one.connect()
    yield made
    for one in made:
        await one.exchange.stop()


async def test_tokens_taken_in_one_unit_are_missing_in_all(units: list[Unit]) -> None:
    one, two, three = units
    assert one.take(b"x", 15) == 15
    await two.until(lambda: two.limit.elsewhere == three.limit.elsewhere == 15)
    assert two.take(b"x", 15) == 5
    assert three.take(b"y", 15) == 15
    await one.until(lambda: one.limit.elsewhere == 20)
    assert [unit.take(b"x", 1) for unit in units] == [0, 0, 0]
    assert one.take(b"y", 15) == 5
    assert [unit.limit.elsewhere for unit in (two, three)] == [30, 20]


async def test_what_was_admitted_at_once_is_missing_afterwards(units: list[Unit]) -> None:
    """Each unit admits a burst before it hears of the others; then all wait until that has been refilled."""
    one = units[0]
    assert [unit.take(b"x", 30) for unit in units] == [20, 20, 20]
    await one.until(lambda: {unit.limit.elsewhere for unit in units} == {40})
    for unit in units:  # 60 of 20 were taken: 40 are refilled in 4,000 s
        unit.clock.at += 3999.0
    assert [unit.take(b"x", 1) for unit in units] == [0, 0, 0]
    for unit in units:
        unit.clock.at += 101.0
    assert [unit.take(b"x", 2) for unit in units] == [1, 1, 1]


async def test_limits_apply_alone_while_the_store_is_lost(
    store: FakeStore | RealStore, units: list[Unit]
) -> None:
    one, two, _ = units
    await store.stop()
    await one.until(lambda: one.lines and two.lines)
    assert "rate limits: the store is lost" in one.lines[0]
    assert "applies them alone" in one.lines[0]
    assert one.take(b"x", 30) == two.take(b"x", 30) == 20
    assert not one.limits.taken.by_key
    await store.start()
    await one.until(lambda: one.exchange.problem is None and two.exchange.problem is None)
    assert one.lines[1:] == ["rate limits: the store answers again"]
    assert one.take(b"z", 3) == 3
    await two.until(lambda: two.limit.elsewhere == 3)


async def test_only_one_process_of_a_unit_applies(store: FakeStore | RealStore) -> None:
    """Its siblings share its buckets."""
    url = f"redis://127.0.0.1:{store.port}"
    one, sibling, two = Unit(url), Unit(url, applies=False), Unit(url)
    for unit in (one, sibling, two):
        await unit.connect()
    one.take(b"x", 5)
    await two.until(lambda: two.limit.elsewhere == 5)
    sibling.take(b"x", 1)
    await two.until(lambda: two.limit.elsewhere == 6)
    assert sibling.limit.elsewhere == 0
    for unit in (one, sibling, two):
        await unit.exchange.stop()


async def test_many_buckets_take_several_batches(units: list[Unit], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_exchange, "MOST_BUCKETS", 3)
    one, two, _ = units
    for source in range(10):
        one.take(b"%d" % source, source + 1)
    await two.until(lambda: two.limit.elsewhere == 55)
    assert [two.take(b"%d" % source, 20) for source in range(10)] == [19 - source for source in range(10)]


def batch(*buckets: tuple[int, int], version: int = VERSION, unit: int = 7, mark: bytes = b"abc") -> bytes:
    return HEAD.pack(version, mark, len(buckets), unit) + b"".join(BUCKET.pack(*bucket) for bucket in buckets)


def unconnected() -> tuple[Unit, int]:
    """A unit, and the key of its bucket of "x"."""
    unit = Unit("redis://127.0.0.1:1")
    unit.limits.taken.is_told = True
    unit.take(b"x", 1)
    [key] = unit.limits.taken.by_key
    return unit, key


MOST = 20 + int(CREDIBLE_S * 10 / 1000)


@pytest.mark.parametrize(
    "data",
    [
        None, b"", b"x" * 100, batch()[:-1],
        *(batch((0, 1), version=VERSION + 1), batch((0, 1)) + b"x", batch((0, MOST + 1)), batch((0, 0))),
        *(batch((1 << 50, 1)), batch((-1 - (1 << 62), 1))),
    ],
)  # fmt: skip
def test_what_is_not_valid_is_ignored(data: Any) -> None:
    """Zero stands for the key of a bucket."""
    unit, key = unconnected()
    if isinstance(data, bytes):
        data = data.replace(BUCKET.pack(0, 0)[:8], BUCKET.pack(key, 0)[:8])
    unit.exchange._take(data)
    assert (unit.limit.elsewhere, unit.take(b"x", 30)) == (0, 19)


def test_what_is_valid_counts() -> None:
    unit, key = unconnected()
    unit.exchange._take(batch((key, 4)))
    assert (unit.limit.elsewhere, unit.take(b"x", 30)) == (4, 15)


def test_a_flood_closes_the_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "MOST_PER_SECOND", 3)
    unit, _ = unconnected()
    for _ in range(3):
        unit.exchange._take(batch())
    with pytest.raises(StoreLost, match="more than 3 messages"):
        unit.exchange._take(batch())
    unit.clock.at += 2.0
    unit.exchange._take(batch())


def test_keys_are_those_of_all_units_of_a_store_and_of_no_other() -> None:
    keys: list[int] = []
    for url in ("redis://:secret@a", "redis://:secret@a", "redis://:other@a"):
        unit = Unit(url)
        unit.limits.taken.is_told = True
        unit.take(b"x", 1)
        keys += unit.limits.taken.by_key
    assert keys[0] == keys[1] != keys[2]


async def test_nothing_is_kept_for_others_once_the_exchange_has_stopped(units: list[Unit]) -> None:
    one = units[0]
    await one.exchange.stop()
    assert one.take(b"x", 5) == 5
    assert not one.limits.taken.by_key


def test_a_limit_that_is_not_shared_tells_nothing() -> None:
    unit = Unit("redis://a", config=CONFIG.model_copy(update={"shared": False}))
    unit.limits.taken.is_told = True
    assert unit.take(b"x", 30) == 20
    assert not unit.limits.taken.by_key
    unit.exchange.sweep()  # outside a loop: nothing may be started


def test_sharing_needs_a_store() -> None:
    keys = {"endpoints": [{"id": "a", "address": "http://a"}], "rate_limits": [CONFIG.model_dump()]}
    with pytest.raises(ValidationError, match=r"rate_limits\.0\.shared: needs shared\.url"):
        Settings.model_validate(keys)


async def test_store_that_sends_nothing_is_lost() -> None:
    """It takes batches, and what other units tell would not come."""
    store = FakeStore()
    await store.start()
    unit = Unit(f"redis://127.0.0.1:{store.port}")
    await unit.connect()
    store._listeners.clear()
    unit.take(b"x", 1)
    await unit.until(lambda: not unit.limits.taken.by_key)
    assert not unit.lines
    unit.clock.at += 1.1
    await unit.until(lambda: unit.lines)
    assert "the store is lost: no answer within 1 s" in unit.lines[0]
    await unit.exchange.stop()
    await store.stop()


async def test_store_answers_again_when_it_has_sent_a_batch_back() -> None:
    """Not at every connection to one that refuses them. Until then the status has the problem, also without traffic."""
    store = FakeStore()
    await store.start()
    store.garbage = b"-NOPERM no permissions to access one of the channels\r\n"
    unit = Unit(f"redis://127.0.0.1:{store.port}")
    reports = SimpleNamespace(status=lambda: {"connected": True, "problem": None})
    plane: Any = SimpleNamespace(shared=reports, shared_limits=unit.exchange)
    await unit.connect()
    assert shared_status(plane) == {"connected": True, "problem": None}
    unit.take(b"x", 1)
    await unit.until(lambda: unit.lines)
    for _ in range(2):
        await unit.until(lambda: unit.limits.taken.is_told)
        await unit.until(lambda: not unit.limits.taken.is_told)
    assert len(unit.lines) == 1
    unit.exchange.hear(batch(unit=unit.exchange._unit), 0.0)  # of a sibling
    assert shared_status(plane) == {
        "connected": False,
        "problem": "rate limits: NOPERM no permissions to access one of the channels",
    }
    store.garbage = b""
    await unit.until(lambda: unit.exchange.problem is None)
    assert unit.lines[1:] == ["rate limits: the store answers again"]
    await unit.exchange.stop()
    await store.stop()
