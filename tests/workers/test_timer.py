"""The deadline timer and the delay line over it, on every kind of alarm.

Time is virtual except where an alarm of the kernel is used.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from workers.alarm import DeadlineTimer, LoopAlarm, open_alarm
from workers.link import DelayLine

ALARMS = [open_alarm, LoopAlarm]


async def passed(timer: DeadlineTimer, at: float) -> None:
    """Return when this deadline was served, in order, however late."""
    served: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer.schedule(at, lambda: served.set_result(None))
    await served


@pytest.mark.real_time
@pytest.mark.parametrize("alarm", ALARMS)
async def test_callbacks_run_in_order_and_never_early(alarm: type[LoopAlarm]) -> None:
    """By deadline, equal ones in the order of scheduling."""
    timer = DeadlineTimer(asyncio.get_running_loop(), alarm)
    start, seen = time.monotonic(), []
    for name, after in [("c", 0.02), ("a", 0.01), ("d", 0.02), ("b", 0.01), ("past", -1.0)]:
        at = start + after
        timer.schedule(at, lambda name=name, at=at: seen.append((name, time.monotonic() >= at)))  # type: ignore[misc]
    await passed(timer, start + 0.03)
    assert seen == [(name, True) for name in ("past", "a", "b", "c", "d")]
    assert len(timer) == 0
    timer.close()


@pytest.mark.real_time
@pytest.mark.parametrize("alarm", ALARMS)
async def test_earlier_deadline_overtakes_a_later_one(alarm: type[LoopAlarm]) -> None:
    """Also one scheduled in a callback."""
    timer = DeadlineTimer(asyncio.get_running_loop(), alarm)
    start, seen = time.monotonic(), []
    timer.schedule(start + 0.03, lambda: seen.append("late"))
    timer.schedule(start + 0.01, lambda: timer.schedule(start + 0.02, lambda: seen.append("soon")))
    await passed(timer, start + 0.04)
    assert seen == ["soon", "late"]
    timer.close()


async def test_failing_callback_does_not_stop_the_others() -> None:
    """The exception goes to the loop's handler."""
    loop = asyncio.get_running_loop()
    errors: list[object] = []
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
    timer = DeadlineTimer(loop)
    error = RuntimeError("as planned")

    def fail() -> None:
        raise error

    timer.schedule(0.0, fail)
    await timer.wait_until(time.monotonic() + 0.005)
    assert errors == [error]
    timer.close()


async def test_deadline_of_a_cancelled_wait_passes_silently() -> None:
    timer = DeadlineTimer(asyncio.get_running_loop())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(timer.wait_until(time.monotonic() + 0.02), 0.005)
    await timer.wait_until(time.monotonic() + 0.03)
    assert len(timer) == 0
    timer.close()


def timerfds() -> dict[str, int]:
    """Nanoseconds left on each timerfd of this process, by its number; 0 is a disarmed one."""
    found = {}
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            if fd.readlink().name == "anon_inode:[timerfd]":
                text = Path(f"/proc/self/fdinfo/{fd.name}").read_text(encoding="ascii")
                seconds, rest = re.findall(r"it_value: \((\d+), (\d+)\)", text)[0]
                found[fd.name] = int(seconds) * 10**9 + int(rest)
    return found


@pytest.mark.real_time
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: timerfd")
async def test_timerfd_is_set_to_the_nanosecond() -> None:
    """The kernel gets the deadline itself, where the loop's timers would round it to a millisecond."""
    others = timerfds()
    timer = DeadlineTimer(asyncio.get_running_loop())
    at = (int(time.monotonic() * 1000) + 100.5) / 1000
    served = asyncio.ensure_future(passed(timer, at))
    await asyncio.sleep(0)
    before = time.monotonic_ns()
    (left,) = (nanoseconds for fd, nanoseconds in timerfds().items() if fd not in others)
    after = time.monotonic_ns()
    assert before <= int(at * 1e9) - left <= after
    await served
    assert time.monotonic() >= at
    assert [nanoseconds for fd, nanoseconds in timerfds().items() if fd not in others] == [0]
    timer.close()


async def test_line_keeps_order_and_reports_its_window() -> None:
    """Beyond its window a line calls `full` once; with half of the window free, `room`."""
    timer = DeadlineTimer(asyncio.get_running_loop())
    seen: list[str] = []
    line = DelayLine(timer, 0.01, 100, lambda: seen.append("full"), lambda: seen.append("room"))
    for name in "abc":
        line.enter(seen.append, name, size=60)
    assert (seen, line.size) == (["full"], 180)
    await timer.wait_until(time.monotonic() + 0.02)
    assert seen == ["full", "a", "b", "c", "room"]
    timer.close()


async def test_held_line_lets_nothing_leave_until_released() -> None:
    """Items due meanwhile leave in order afterwards."""
    timer = DeadlineTimer(asyncio.get_running_loop())
    seen: list[str] = []
    line = DelayLine(timer, 0.001, 100, lambda: None, lambda: None)
    line.hold()
    for name in "ab":
        line.enter(seen.append, name)
    await timer.wait_until(time.monotonic() + 0.005)
    assert seen == []
    line.release()
    await timer.wait_until(time.monotonic() + 0.005)
    assert seen == ["a", "b"]
    timer.close()


async def test_dated_entries_keep_their_order() -> None:
    """A date in the past is due sooner, but never before earlier entries."""
    timer = DeadlineTimer(asyncio.get_running_loop())
    seen: list[tuple[str, float]] = []
    line = DelayLine(timer, 0.02, 1 << 20, print, print)
    start = time.monotonic()
    line.enter(lambda: seen.append(("first", line.left_at)), at=start - 0.005)
    line.enter(lambda: seen.append(("second", line.left_at)), at=start - 0.015)
    line.enter(lambda: seen.append(("third", line.left_at)), at=start, not_before=start + 0.005)
    await timer.wait_until(start + 0.03)
    assert [name for name, _ in seen] == ["first", "second", "third"]
    assert [at for _, at in seen] == pytest.approx([start + 0.015, start + 0.015, start + 0.025])
    timer.close()
