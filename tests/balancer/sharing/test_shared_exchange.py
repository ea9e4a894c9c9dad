"""Exchange of reports with other units, in virtual time: loss, slowness and return of the store, and hostile data."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.errors import StoreLost
from balancer.sharing.exchange import (
    LONGEST_INTERVAL,
    LONGEST_PAUSE,
    MAX_REPORT_DELAY_S,
    MOST_PER_SECOND,
    SAVED_REPORTS,
    SILENCE,
    Identity,
    ReportChannel,
    ReportExchange,
)
from balancer.sharing.message import BadMessage, Message, decode, encode
from policies import registry
from policies.facts import Endpoint, Outcome, OutcomeKind, RequestFacts
from policies.routing.router import Router
from policies.routing.units import EXPIRY, LATENCIES_EVERY, OtherUnits, UnitReport, key_of
from policies.stats.shared_latency import SharedLatency
from tests.support.virtual import VirtualLoop

FACTS = RequestFacts(region="r")
ENDPOINT = Endpoint("e0", "http://e0", "r", 1.0, None)
KEY = key_of(ENDPOINT)
SWEEP = 0.25
OWN_WITHIN = 1.0
"""Seconds within which a unit uses its own knowledge alone."""


class Store:
    """A store in memory: publishes to all listeners after `delay` and answers then, unless it is down or stalled. A
    report is lost on its way while `loses`."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._channels: list[StoreChannel] = []
        self.delay = 0.001
        self.is_down = self.is_stalled = self.loses = False
        self.connects = 0
        self.published: list[bytes] = []

    def publish(self, data: bytes) -> None:
        self.published.append(data)
        if not self.is_stalled and not self.loses:
            for channel in self._channels:
                self._loop.call_later(self.delay, channel.take, data)

    def kill(self) -> None:
        self.is_down = True
        for channel in self._channels:
            channel.lose("gone")

    @asynccontextmanager
    async def opened(self, hear: Callable[[object], None]) -> AsyncIterator[ReportChannel]:
        self.connects += 1
        if self.is_down:
            raise StoreLost("refused")
        channel = StoreChannel(self, hear)
        self._channels.append(channel)
        try:
            yield channel
        finally:
            self._channels.remove(channel)


class StoreChannel:
    def __init__(self, store: Store, hear: Callable[[object], None]) -> None:
        self._store = store
        self._hear = hear
        self._reason = ""
        self._is_lost = asyncio.Event()

    def take(self, data: bytes) -> None:
        if not self._reason:
            try:
                self._hear(data)
            except StoreLost as error:
                self.lose(str(error))

    def lose(self, reason: str) -> None:
        self._reason = reason
        self._is_lost.set()

    async def publish(self, data: bytes) -> None:
        if self._store.is_down:
            raise StoreLost("gone")
        self._store.publish(data)
        if self._store.is_stalled:
            await asyncio.Event().wait()
        await asyncio.sleep(self._store.delay)

    async def ended(self) -> None:
        await self._is_lost.wait()
        raise StoreLost(self._reason)


class Unit:
    """A router that shares through the store; `lines` is its log."""

    def __init__(self, loop: VirtualLoop, store: Store, number: int, unit: int = 0, place: int = 1) -> None:
        rng = Random(number)
        self.loop = loop
        self.lines: list[str] = []
        self.router = Router([ENDPOINT], registry.make("round-robin", {}, rng), loop, rng)
        self.state = self.router.states[0]
        self.exchange = ReportExchange(
            OtherUnits(self.router),
            store.opened,
            Identity(unit or number, number, place),
            loop.now,
            every=0.04,
            store="redis://store:6379",
            say=self.lines.append,
        )
        self.exchange.start()
        self._sweep()

    def _sweep(self) -> None:
        self.exchange.sweep(self.loop.now())
        self.loop.call_later(SWEEP, self._sweep)

    def serve(self, seconds: float) -> None:
        """Settle a request that has taken so long."""
        now = self.loop.now()
        outcome = Outcome(OutcomeKind.OK, 200, now - seconds, now, now)
        self.router.settle(self.router.route(FACTS), outcome)


class Units:
    """Several units and their store."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.store = Store(loop)
        self.all: list[Unit] = []

    def start(self, number: int = 2) -> list[Unit]:
        self.all = [Unit(self.loop, self.store, n + 1) for n in range(number)]
        self.loop.advance(1.0)
        return self.all


@pytest.fixture
def units() -> Iterator[Units]:
    with VirtualLoop(lambda *_: asyncio.Future(), at=1000.0) as loop:
        started = Units(loop)
        yield started
        stops = [loop.create_task(unit.exchange.stop()) for unit in started.all]
        loop.turn()
        assert all(stop.done() for stop in stops)


def test_units_hear_each_other(units: Units) -> None:
    one, two, three = units.start(3)
    two.router.route(FACTS)
    three.router.route(FACTS)
    three.serve(0.5)
    units.loop.advance(1.0)
    assert (one.state.in_flight, one.state.in_flight_here) == (2, 0)
    assert one.state.latency.mean == pytest.approx(0.5)
    status = one.exchange.status()
    assert (status["connected"], status["others"], status["in_flight_elsewhere"]) == (True, 2, 2)
    assert status["delay"] == pytest.approx(0.001)
    assert status["heard"] == pytest.approx(2 * status["sent"], abs=4)
    assert one.lines == []


@pytest.mark.parametrize("phase", [0.0, 0.07, 0.14, 0.21])
@pytest.mark.parametrize("before", [0.001, 0.3])
@pytest.mark.parametrize(
    ("fault", "delay"), [("killed", 0.0), ("stalled", 0.0), ("slow", 0.4), ("slow", 0.6), ("slow", 5.0)]
)
def test_own_knowledge_is_used_within_a_second(
    units: Units, fault: str, delay: float, before: float, phase: float
) -> None:
    """And nothing else until the store answers in time again: reports that come late are not used. The loss is logged
    once, and the return too."""
    one, two = units.start()
    two.serve(0.5)
    two.router.route(FACTS)
    store = units.store
    store.delay = before
    units.loop.advance(1.0 + phase)
    assert one.state.elsewhere == 1
    if fault == "killed":
        store.kill()
    store.is_stalled, store.delay = fault == "stalled", delay or 0.001
    units.loop.advance(OWN_WITHIN)
    for _ in range(400):
        assert (one.state.in_flight, one.state.elsewhere, one.state.latency.successes) == (0, 0, 0.0)
        assert not one.exchange.is_connected
        units.loop.advance(0.05)
    assert (len(one.lines), one.exchange.counts.lost) == (1, 1)
    assert one.lines[0].startswith("shared: redis://store:6379 is lost: ")
    store.is_down, store.is_stalled, store.delay = False, False, 0.001
    units.loop.advance(SILENCE + SWEEP + LONGEST_PAUSE + SWEEP)
    assert one.exchange.is_connected
    assert one.state.elsewhere == 1
    assert len(one.lines) == 2
    assert "answers again, after 2" in one.lines[1]


@pytest.mark.parametrize("delay", [0.001, 0.1, 0.2, 0.3])
def test_a_store_that_is_no_slower_than_allowed_is_never_lost(units: Units, delay: float) -> None:
    """Whether requests in flight change or not, and from the moment on at which it becomes slow."""
    one, two = units.start()
    two.router.route(FACTS)
    units.loop.advance(1.0)
    units.store.delay = delay
    for n in range(600):
        units.loop.advance(0.1)
        if n > 300:
            two.router.route(FACTS)
        assert one.state.elsewhere > 0
        assert one.exchange.is_connected
    assert (one.exchange.counts.lost, one.exchange.counts.ignored, one.lines) == (0, 0, [])


@pytest.mark.parametrize("delay", [0.001, 0.1, 0.15])
def test_one_report_that_is_missed_is_no_loss(units: Units, delay: float) -> None:
    one, two = units.start()
    two.router.route(FACTS)
    units.store.delay = delay
    units.loop.advance(1.0)
    for _ in range(20):
        units.store.loses, sent = True, one.exchange.counts.sent + two.exchange.counts.sent
        while one.exchange.counts.sent + two.exchange.counts.sent < sent + 2:
            units.loop.advance(0.01)
        units.store.loses = False
        for _ in range(100):
            units.loop.advance(0.01)
            assert one.state.elsewhere == 1
    assert (one.exchange.counts.lost, one.lines) == (0, [])


def test_reports_of_others_are_not_used_after_a_loss(units: Units) -> None:
    """Even if they still come in time, as where only the way of the own ones is slow."""
    [one] = units.start(1)
    units.store.is_stalled = True
    loop = units.loop
    for n in range(150):
        sent_at = loop.now() - 990.0
        one.exchange.hear(encode(Message(9, 9, 1, 0.04, sent_at, UnitReport({KEY: 1}))), loop.now())
        assert one.state.elsewhere == one.exchange.others == one.exchange.is_connected
        assert n < 100 or not one.exchange.is_connected
        loop.advance(OWN_WITHIN / 100)


def test_attempts_to_connect_become_rare(units: Units) -> None:
    units.store.is_down = True
    one, _ = units.start()
    units.loop.advance(100.0)
    assert units.store.connects < 2 * (10 + 100 / (LONGEST_PAUSE / 2))
    assert len(one.lines) == 1
    assert one.exchange.status()["problem"] == "refused"


def test_a_unit_that_vanishes_is_forgotten(units: Units) -> None:
    one, two = units.start()
    two.router.route(FACTS)
    units.loop.advance(0.2)
    assert one.state.elsewhere == 1
    units.loop.create_task(two.exchange.stop())
    units.loop.advance(OWN_WITHIN)
    assert (one.state.elsewhere, one.exchange.others, one.exchange.is_connected) == (0, 0, True)


def test_sibling_processes_do_not_hear_each_other(units: Units) -> None:
    """They share through memory; a count must not be added twice."""
    units.all = [Unit(units.loop, units.store, number, unit=7) for number in (1, 2)]
    units.all[0].router.route(FACTS)
    units.loop.advance(1.0)
    assert units.all[1].state.in_flight == 0
    assert units.all[1].exchange.is_connected


def test_latencies_of_another_region_are_not_pooled(units: Units) -> None:
    """They were measured over another path; requests in flight count all the same."""
    units.all = [Unit(units.loop, units.store, number, place=number) for number in (1, 2)]
    one, two = units.all
    two.serve(0.5)
    two.router.route(FACTS)
    units.loop.advance(1.0)
    assert (one.state.elsewhere, one.state.latency.successes) == (1, 0.0)


def test_a_change_is_published_at_once_and_nothing_else_is(units: Units) -> None:
    """Apart from the latencies, four times a second."""
    one, two = units.start()
    before = two.exchange.counts.sent
    units.loop.advance(10.0)
    assert 30 < two.exchange.counts.sent - before <= 10.0 / LATENCIES_EVERY
    endpoint = two.router.route(FACTS)
    units.loop.advance(0.042)
    assert one.state.elsewhere == 1
    now = units.loop.now()
    two.router.settle(endpoint, Outcome(OutcomeKind.OK, 200, now - 0.04, now, now))
    units.loop.advance(0.042)
    assert one.state.elsewhere == 0


def test_reports_are_limited_to_their_share_of_a_processor(units: Units) -> None:
    one, two = units.start()
    for sender in range(50):
        one.exchange.hear(
            encode(Message(sender + 10, sender + 10, 1, 0.04, 0.0, UnitReport({}))), units.loop.now()
        )
    interval, before = one.exchange.interval, one.exchange.counts.sent
    assert interval > 0.1
    for _ in range(12):
        one.router.route(FACTS)
        units.loop.advance(0.05)
    assert one.exchange.counts.sent - before <= 0.6 / interval + SAVED_REPORTS
    assert one.exchange.counts.sent - before > 0.6 / interval
    assert two.state.elsewhere > 4


def test_many_units_report_less_often(units: Units) -> None:
    """What all of them cost together is bounded."""
    [one, *_] = units.start(2)
    assert one.exchange.interval == 0.04
    for sender in range(200):
        one.exchange.hear(
            encode(Message(sender + 10, sender + 10, 1, 0.04, 0.0, UnitReport({}))), units.loop.now()
        )
    assert one.exchange.interval == LONGEST_INTERVAL


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        "text",
        None,
        b"x" * 10_000,
        encode(Message(9, 9, 1, 0.04, 0.0, UnitReport({KEY: 5})))[:-1],
        b"\x02" + encode(Message(9, 9, 1, 0.04, 0.0, UnitReport({KEY: 5})))[1:],
        encode(Message(9, 9, 1, float("nan"), 0.0, UnitReport({KEY: 5}))),
        encode(Message(9, 9, 1, 0.04, float("inf"), UnitReport({KEY: 5}))),
        encode(Message(9, 9, 1, 0.04, 0.0, UnitReport({}, {KEY: SharedLatency(1.0, -1.0)}))),
    ],
)
def test_bad_messages_are_ignored(units: Units, data: object) -> None:
    """With one line in the log, however many there are."""
    one, _ = units.start()
    for _ in range(3):
        one.exchange.hear(data, units.loop.now())
    assert (one.exchange.counts.ignored, one.state.in_flight, one.exchange.others) == (3, 0, 1)
    assert len(one.lines) == 1
    assert "is ignored" in one.lines[0]


def test_late_messages_are_ignored(units: Units) -> None:
    """The sender's clock is not ours: its least difference tells which messages were held up on the way, also after the
    sender was forgotten."""
    [one] = units.start(1)
    for late, count in ((0.0, 1), (0.0, 2), (MAX_REPORT_DELAY_S, 9)):
        sent_at = units.loop.now() - 990.0 - late
        one.exchange.hear(encode(Message(9, 9, 1, 0.04, sent_at, UnitReport({KEY: count}))), units.loop.now())
        units.loop.advance(0.1)
    assert (one.state.elsewhere, one.exchange.counts.ignored) == (2, 1)
    units.loop.advance(1.0)
    assert (one.state.elsewhere, one.exchange.others, one.exchange.is_connected) == (0, 0, True)
    sent_at = units.loop.now() - 990.0 - 3.0
    one.exchange.hear(encode(Message(9, 9, 1, 0.04, sent_at, UnitReport({KEY: 9}))), units.loop.now())
    assert (one.state.elsewhere, one.exchange.counts.ignored) == (0, 2)


@pytest.mark.parametrize("delay", [0.001, 0.2])
def test_a_report_expires_by_the_time_at_which_it_was_made(units: Units, delay: float) -> None:
    """Not by that at which it was heard: all reports take as long as the own ones at least."""
    units.store.delay = delay
    [one] = units.start(1)
    loop = units.loop
    one.exchange.hear(encode(Message(9, 9, 1, 0.04, 5.0, UnitReport({KEY: 1}))), loop.now())
    loop.advance(EXPIRY - delay - 0.01)
    one.exchange.sweep(loop.now())
    assert one.state.elsewhere == 1
    loop.advance(0.02)
    one.exchange.sweep(loop.now())
    assert (one.state.elsewhere, one.exchange.is_connected) == (0, True)


def test_nothing_is_reported_or_heard_before_an_own_report_is_back(units: Units) -> None:
    """Until then reports may be late, here and at others, which cannot know that."""
    units.store.delay = MAX_REPORT_DELAY_S + 0.05
    one, two = units.start()
    two.serve(0.5)
    two.router.route(FACTS)
    units.loop.advance(20.0)
    reports = [decode(data, 0.0).report for data in units.store.published]
    assert len(reports) > 10
    assert not any(report.in_flight or report.latencies for report in reports)
    assert one.exchange.counts.ignored > 0
    assert (one.exchange.others, one.exchange.problem) == (0, "no answer within 0.35 s for 0.7 s")
    one.exchange.hear(encode(Message(9, 9, 1, 0.04, 5.0, UnitReport({KEY: 1}))), units.loop.now())
    assert one.state.elsewhere == 0


def test_a_flood_ends_the_connection(units: Units) -> None:
    """Requests must not wait for a store that any of its users can fill."""
    one, _ = units.start()
    connects = units.store.connects
    for _ in range(MOST_PER_SECOND + 100):
        units.store.publish(b"junk")
    units.loop.advance(0.05)
    assert "more than 2000 messages a second" in one.lines[-1]
    units.loop.advance(2.0)
    assert units.store.connects > connects
    assert one.exchange.is_connected


def test_messages_survive_the_way() -> None:
    own = SharedLatency(4.0, 2.0, 8.0, 1.0, 0.25, 0.125, 97.0)
    sent = Message(-1, 2, 3, 0.5, 100.0, UnitReport({KEY: 7}, {KEY: own}))
    assert decode(encode(sent), 500.0) == sent._replace(
        report=UnitReport({KEY: 7}, {KEY: own._replace(at=497.0)})
    )
    assert decode(encode(sent._replace(report=UnitReport({}))), 500.0).report == UnitReport({}, None)


@given(st.binary(max_size=300))
def test_random_bytes_raise_nothing_else(data: bytes) -> None:
    try:
        found = decode(b"\x01\x01" + data, 0.0)
    except BadMessage:
        return
    assert len(encode(found)) == len(data) + 2


@given(st.integers(0, 149), st.integers(0, 255))
def test_damaged_messages_are_refused_or_bounded(at: int, value: int) -> None:
    """Whatever a damaged message says, its values are possible ones."""
    own = SharedLatency(4.0, 2.0, 8.0, 1.0, 0.25, 0.125, 97.0)
    data = bytearray(encode(Message(1, 2, 3, 0.04, 100.0, UnitReport({1: 7, 2: 8}, {1: own}))))
    data[at % len(data)] = value
    try:
        found = decode(bytes(data), 100.0)
    except BadMessage:
        return
    assert all(0 <= count <= 100_000 for count in found.report.in_flight.values())
    for latency in (found.report.latencies or {}).values():
        assert latency.latency <= 3600.0 * latency.successes
        assert latency.at <= 100.0
