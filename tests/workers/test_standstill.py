"""A worker that stands still: nothing is lost, everything is later, and by exactly as much as was said."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from aiohttp import ClientSession

from tests.workers.conftest import SERVICE
from tests.workers.virtual_time import EXACTLY
from workers.faults import Faults
from workers.server import Worker
from workers.service import Fixed, Slots
from workers.standstill import GcPause
from workers.timer import DeadlineTimer

StartWorker = Callable[..., Awaitable[Worker]]


class Schedule:
    """A timer on which nothing happens by itself."""

    def __init__(self) -> None:
        self.entries: list[tuple[float, Callable[[], None]]] = []

    def schedule(self, at: float, callback: Callable[[], None]) -> None:
        self.entries.append((at, callback))

    def ring(self) -> float:
        """Let the next one happen; its instant."""
        at, callback = self.entries.pop(0)
        callback()
        return at


@pytest.fixture
def schedule() -> Schedule:
    return Schedule()


@pytest.fixture
def slots() -> Slots:
    return Slots(1, 10)


@pytest.fixture
def standstill(schedule: Schedule, slots: Slots) -> GcPause:
    return GcPause(cast(DeadlineTimer, schedule), slots)


def test_a_stop_moves_what_is_unfinished_and_what_waits() -> None:
    """Served until 5, stopped for 2 at 1: until 7, and who waited begins at 7. Who comes meanwhile waits behind."""
    slots = Slots(2, 10)
    slots.admit(0.0, 5.0)
    slots.admit(0.0, 3.0)
    slots.admit(0.0, 1.0)
    slots.stop(1.0, 2.0)
    assert slots.waiting(4.0) == 1
    assert slots.waiting(5.0) == 0
    assert slots.admit(1.5, 1.0) == (6.0, 7.0)
    assert slots.admit(1.5, 1.0) == (7.0, 8.0)
    assert slots.stopped == 2.0


def test_free_slots_are_not_free_while_it_stands_still() -> None:
    slots = Slots(2, 10)
    slots.stop(1.0, 2.0)
    assert slots.admit(1.5, 1.0) == (3.0, 4.0)


def test_a_worker_that_stands_still_is_busy() -> None:
    """One of two slots busy for 4 s, then both for a stop of 2: 8 slot-seconds at 6, none of them twice."""
    slots = Slots(2, 10)
    slots.admit(0.0, 4.0)
    slots.stop(2.0, 2.0)
    assert [slots.busy_seconds(now) for now in (2.0, 4.0, 6.0, 9.0)] == [2.0, 6.0, 8.0, 8.0]


def test_pauses_come_again_in_their_phase(schedule: Schedule, slots: Slots, standstill: GcPause) -> None:
    """Each a period after the one before was due, whatever other faults come and go."""
    standstill.apply(Faults(pause=0.5, every=2.0, after=1.0))
    first = schedule.ring()
    standstill.apply(Faults(pause=0.5, every=2.0, slow=3.0))
    assert [schedule.ring() - first for _ in range(2)] == pytest.approx([2.0, 4.0])
    assert slots.stopped == 1.5
    assert standstill.until == pytest.approx(first + 4.5)


def test_healed_it_never_stops_again(schedule: Schedule, slots: Slots, standstill: GcPause) -> None:
    """Nor by what was scheduled before another set of faults came."""
    standstill.apply(Faults(pause=0.5, every=2.0))
    standstill.apply(Faults())
    schedule.ring()
    assert (slots.stopped, schedule.entries) == (0.0, [])


def test_one_pause_is_one(schedule: Schedule, slots: Slots, standstill: GcPause) -> None:
    standstill.apply(Faults(pause=0.5))
    schedule.ring()
    assert (slots.stopped, schedule.entries) == (0.5, [])


async def test_nothing_is_answered_before_it_moves_again(
    start_worker: StartWorker, session: ClientSession
) -> None:
    """Neither what was being served, which takes the whole stop longer, nor what comes meanwhile, nor the check."""
    worker = await start_worker(service=Fixed(0.1), slots=10)

    async def got(path: str) -> float:
        async with session.get(f"{worker.url}{path}") as response:
            assert response.status == 200
            return time.monotonic()

    begun_at = time.monotonic()
    served = asyncio.create_task(got("/work"))
    await asyncio.sleep(0)
    stopped_at = time.monotonic()
    async with session.put(f"{worker.url}/-/faults", json={"pause": 0.3}) as response:
        assert response.status == 200
    came_at, checked_at = await asyncio.gather(got("/work"), got("/healthz"))
    assert await served - begun_at == pytest.approx(0.4, abs=EXACTLY)
    assert came_at - stopped_at == pytest.approx(0.4, abs=EXACTLY)
    assert checked_at - stopped_at == pytest.approx(0.3, abs=EXACTLY)


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ({"pause": 1, "every": 1}, "every: must be longer than the pause"),
        ({"every": 1}, "pause: every and after say nothing without it"),
        ({"rtt": 0.1}, "this worker was started without --rtt"),
    ],
)
async def test_what_cannot_be_is_refused(
    start_worker: StartWorker, session: ClientSession, faults: dict[str, Any], message: str
) -> None:
    worker = await start_worker()
    async with session.put(f"{worker.url}/-/faults", json=faults) as response:
        assert response.status == 422
        assert message in (await response.json())["detail"][0]["message"]
    assert worker.switchboard.current == Faults()


async def test_a_worker_moves_further_away_on_connections_that_exist(
    start_worker: StartWorker, session: ClientSession
) -> None:
    """The next request pays the new round trip, half of it each way."""
    worker = await start_worker(round_trip=0.01)
    async with session.get(f"{worker.url}/work") as response:
        await response.read()
    async with ClientSession() as other, other.put(f"{worker.url}/-/faults", json={"rtt": 0.3}) as response:
        assert response.status == 200
    begun_at = time.monotonic()
    async with session.get(f"{worker.url}/work") as response:
        await response.read()
    assert time.monotonic() - begun_at == pytest.approx(0.3 + SERVICE, abs=EXACTLY)
