"""Delay line: one direction of a link, which delivers events in order after a fixed delay.

A line is bounded. It reports when it holds more bytes than its window, so that its sender pauses; it can be held, and
what is due then waits. Together that is TCP's flow control, hop by hop.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from workers.timer import DeadlineTimer

Act = Callable[..., object]


class DelayLine:
    """A queue of (due, act, arguments, bytes) with one timer, for its head.

    `on_full` is called when more than `window` bytes are on the way, `on_room` when half of it is free again. `left_at`
    is the due time of the last event delivered; it may be delivered somewhat later. `delay`, in seconds, may be
    changed.
    """

    __slots__ = (
        "_due_at",  # of the last entry
        "_entries",
        "_is_armed",
        "_is_full",
        "_on_full",
        "_on_room",
        "_timer",
        "_window",
        "delay",
        "is_held",
        "left_at",
        "size",
    )

    def __init__(self, timer: DeadlineTimer, delay: float, window: int, on_full: Act, on_room: Act) -> None:
        self._timer = timer
        self.delay = delay
        self._window = window
        self._on_full = on_full
        self._on_room = on_room
        self._entries: deque[tuple[float, Act, tuple[Any, ...], int]] = deque()
        self.size = 0
        self.left_at = 0.0
        self._due_at = 0.0
        self._is_full = self.is_held = self._is_armed = False

    def enter(
        self, act: Act, *args: Any, size: int = 0, at: float | None = None, not_before: float = 0.0
    ) -> None:
        """Call `act(*args)` one delay after `at` (None: now), or after `not_before`, behind all earlier entries.

        `size` is its size in the window, in bytes.
        """
        entered_at = time.monotonic() if at is None else at
        self._due_at = max(self._due_at, max(entered_at, not_before) + self.delay)
        self._entries.append((self._due_at, act, args, size))
        self.size += size
        if self.size > self._window and not self._is_full:
            self._is_full = True
            self._on_full()
        self._arm()

    def hold(self) -> None:
        """Stop delivery, because the receiver does not read."""
        self.is_held = True

    def release(self) -> None:
        """Resume delivery after `hold`, in order."""
        self.is_held = False
        self._arm()

    def bypass(self) -> None:
        """Set the delay to 0 and deliver all entries at once."""
        self.delay = self._due_at = 0.0
        self._is_armed = False  # the timer may be set far ahead; ringing then is harmless
        self._leave_until(float("inf"))

    def clear(self) -> None:
        """Drop all entries without delivering them."""
        self._entries.clear()
        self.size = 0

    def _arm(self) -> None:
        # Due times never decrease along a line, so one timer for the head is enough.
        if self._entries and not self._is_armed and not self.is_held:
            self._is_armed = True
            self._timer.schedule(self._entries[0][0], self._fall_due)

    def _fall_due(self) -> None:
        self._is_armed = False
        self._leave_until(time.monotonic())
        self._arm()

    def _leave_until(self, now: float) -> None:
        entries = self._entries
        while entries and not self.is_held and entries[0][0] <= now:
            self.left_at, act, args, size = entries.popleft()
            self.size -= size
            act(*args)
        if self._is_full and self.size <= self._window // 2:
            self._is_full = False
            self._on_room()
