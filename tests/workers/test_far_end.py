"""What the worker computes is not felt as distance: its reactions are dated by what they react to."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.workers.virtual_time import Clock
from workers.far_end import PATIENCE, WorkerTransport, far_end_of
from workers.line import DelayLine


class Way(DelayLine):
    """A line that only notes what enters, and at which instant."""

    def __init__(self) -> None:
        self.left_at = 0.0
        self.entered: list[float | None] = []

    def enter(
        self, act: Any, *args: Any, size: int = 0, at: float | None = None, not_before: float = 0.0
    ) -> None:
        self.entered.append(at)


class Echo(asyncio.Protocol):
    """Computes for a while, then sends back what came."""

    def __init__(self, clock: Clock, takes: float) -> None:
        self.clock, self.takes = clock, takes

    def data_received(self, data: bytes) -> None:
        self.clock.now += self.takes
        self.end.write(data)

    end: WorkerTransport


class Near(asyncio.Transport):
    """The client's transport, open."""

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


def far_end(clock: Clock, takes: float) -> tuple[WorkerTransport, Way, Way]:
    clock.now = 100.0
    up, down = Way(), Way()
    echo = Echo(clock, takes)
    echo.end = WorkerTransport(Near(), echo, up, down)
    return echo.end, up, down


def test_an_answer_is_dated_by_what_it_answers(clock: Clock) -> None:
    """The line was late by 1 ms, and the worker computes for 2: neither is on the way."""
    end, up, down = far_end(clock, takes=0.002)
    up.left_at = 99.999
    end.arrive(b"ping")
    assert down.entered == [99.999]


def test_who_is_held_up_for_long_is_felt(clock: Clock) -> None:
    """Beyond PATIENCE the answer enters the line when it is written."""
    end, up, down = far_end(clock, takes=PATIENCE * 1.01)
    up.left_at = 100.0
    end.arrive(b"ping")
    assert down.entered == [clock.now]


async def test_a_service_ends_when_it_was_due_to_end(clock: Clock) -> None:
    """The worker says what it reacts to; a wait after that is no computing."""
    end, up, down = far_end(clock, takes=0.0)
    up.left_at = 100.0
    end.arrive(b"ping")
    clock.now = 100.0213
    end.set_event_time(100.02)
    end.write(b"answer")
    end.close()
    clock.now = 101.0
    end.write_eof()
    assert down.entered == [100.0, 100.02, 100.02, 101.0]


def test_whoever_stands_on_it_finds_it(clock: Clock) -> None:
    """Through any transport that passes the question on; without a link there is none."""
    end = far_end(clock, takes=0.0)[0]
    assert far_end_of(end) is end
    assert far_end_of(Near()) is None
    assert far_end_of(None) is None
