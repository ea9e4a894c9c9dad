"""GC pauses: no request is lost, and each is delayed by exactly the pause."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

import pytest
from aiohttp import ClientSession

from tests.workers.started import StartWorker
from tests.workers.virtual_time import EXACTLY, SERVICE
from workers.alarm import DeadlineTimer
from workers.faults import Faults, GcPause
from workers.service import Fixed
from workers.slots import Slots


class ManualTimer:
    """A timer whose entries a test fires."""

    def __init__(self) -> None:
        self.entries: list[tuple[float, Callable[[], None]]] = []

    def schedule(self, at: float, callback: Callable[[], None]) -> None:
        self.entries.append((at, callback))

    def fire(self) -> float:
        """Fire the next entry; return its instant."""
        at, callback = self.entries.pop(0)
        callback()
        return at


@pytest.fixture
def timer() -> ManualTimer:
    return ManualTimer()


@pytest.fixture
def gc_pause(timer: ManualTimer) -> GcPause:
    return GcPause(cast(DeadlineTimer, timer), Slots(1, 10))


def test_pause_delays_requests_in_service_and_in_the_queue() -> None:
    """Served until 5, paused for 2 at 1: until 7, when the first in the queue begins. Later arrivals queue behind."""
    slots = Slots(2, 10)
    slots.admit(0.0, 5.0)
    slots.admit(0.0, 3.0)
    slots.admit(0.0, 1.0)
    slots.pause(1.0, 3.0)
    assert slots.waiting(4.0) == 1
    assert slots.waiting(5.0) == 0
    assert [slots.admit(1.5, 1.0) for _ in range(2)] == [7.0, 8.0]


def test_free_slots_are_not_available_during_a_pause() -> None:
    slots = Slots(2, 10)
    slots.pause(1.0, 3.0)
    assert slots.admit(1.5, 1.0) == 4.0


def test_paused_worker_counts_as_busy() -> None:
    """One of two slots busy for 4 s, then both for a pause of 2: 8 slot-seconds at 6, none of them twice."""
    slots = Slots(2, 10)
    slots.admit(0.0, 4.0)
    slots.pause(2.0, 4.0)
    assert [slots.busy_seconds(now) for now in (2.0, 3.0, 4.0, 6.0, 9.0)] == [2.0, 4.0, 6.0, 8.0, 8.0]


def test_pauses_repeat_in_phase(timer: ManualTimer, gc_pause: GcPause) -> None:
    """Each a period after the last was due, also when other faults change."""
    gc_pause.apply(Faults(pause=0.5, every=2.0, after=1.0))
    first = timer.fire()
    gc_pause.apply(Faults(pause=0.5, every=2.0, slow=3.0))
    assert [timer.fire() - first for _ in range(2)] == pytest.approx([2.0, 4.0])
    assert gc_pause.stopped == 1.5
    assert gc_pause.until == pytest.approx(first + 4.5)


def test_no_pause_after_healing(timer: ManualTimer, gc_pause: GcPause) -> None:
    """Even one that was scheduled before."""
    gc_pause.apply(Faults(pause=0.5, every=2.0))
    gc_pause.apply(Faults())
    timer.fire()
    assert (gc_pause.stopped, timer.entries) == (0.0, [])


def test_single_pause(timer: ManualTimer, gc_pause: GcPause) -> None:
    gc_pause.apply(Faults(pause=0.5))
    timer.fire()
    assert (gc_pause.stopped, timer.entries) == (0.5, [])


async def test_nothing_is_answered_during_a_pause(start_worker: StartWorker, session: ClientSession) -> None:
    """Requests in service take the whole pause longer; new requests and checks wait for its end."""
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


async def test_changed_round_trip_applies_to_open_connections(
    start_worker: StartWorker, session: ClientSession
) -> None:
    """The next request has the new round trip, half of it each way."""
    worker = await start_worker(round_trip=0.01)
    async with session.get(f"{worker.url}/work") as response:
        await response.read()
    async with ClientSession() as other, other.put(f"{worker.url}/-/faults", json={"rtt": 0.3}) as response:
        assert response.status == 200
    begun_at = time.monotonic()
    async with session.get(f"{worker.url}/work") as response:
        await response.read()
    assert time.monotonic() - begun_at == pytest.approx(0.3 + SERVICE, abs=EXACTLY)
