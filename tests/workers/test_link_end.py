"""The worker's end of the link: computing time is not part of the distance, since writes are dated by their cause."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.workers.virtual_time import Clock
from workers.link import PATIENCE, DelayLine, WorkerTransport, worker_transport_of


class RecordingLine(DelayLine):
    """A delay line that only records what enters, and at which instant."""

    def __init__(self) -> None:
        self.left_at = 0.0
        self.entered: list[float | None] = []

    def enter(
        self, act: Any, *args: Any, size: int = 0, at: float | None = None, not_before: float = 0.0
    ) -> None:
        self.entered.append(at)


class Echo(asyncio.Protocol):
    """Computes for a while, then sends the bytes back."""

    def __init__(self, clock: Clock, takes: float) -> None:
        self.clock, self.takes = clock, takes

    def data_received(self, data: bytes) -> None:
        self.clock.now += self.takes
        self.end.write(data)

    end: WorkerTransport


class ClientTransport(asyncio.Transport):
    """The client's transport, open."""

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


def link_end(clock: Clock, takes: float) -> tuple[WorkerTransport, RecordingLine, RecordingLine]:
    clock.now = 100.0
    up, down = RecordingLine(), RecordingLine()
    echo = Echo(clock, takes)
    echo.end = WorkerTransport(ClientTransport(), echo, up, down)
    return echo.end, up, down


def test_response_is_dated_by_its_request(clock: Clock) -> None:
    """The line was late by 1 ms, and the worker computes for 2 ms: neither is part of the distance."""
    end, up, down = link_end(clock, takes=0.002)
    up.left_at = 99.999
    end.arrive(b"ping")
    assert down.entered == [99.999]


def test_long_computing_delays_the_response(clock: Clock) -> None:
    """Beyond PATIENCE the response enters the line when it is written."""
    end, up, down = link_end(clock, takes=PATIENCE * 1.01)
    up.left_at = 100.0
    end.arrive(b"ping")
    assert down.entered == [clock.now]


async def test_response_is_dated_by_the_due_end_of_service(clock: Clock) -> None:
    """The worker sets the event's time; a wait after that is no computing."""
    end, up, down = link_end(clock, takes=0.0)
    up.left_at = 100.0
    end.arrive(b"ping")
    clock.now = 100.0213
    end.set_event_time(100.02)
    end.write(b"answer")
    end.close()
    assert down.entered == [100.0, 100.02, 100.02]


def test_link_end_is_found_through_other_transports(clock: Clock) -> None:
    """Through transports that pass on extra info; without a link there is none."""
    end = link_end(clock, takes=0.0)[0]
    assert worker_transport_of(end) is end
    assert worker_transport_of(ClientTransport()) is None
    assert worker_transport_of(None) is None
