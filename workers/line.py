"""One direction of a link: what enters leaves a fixed delay later, in the order of entry.

Rule of this file: a line is bounded. It reports when it holds more bytes than its window, and whoever feeds
it stops; it can be held, and whatever is due then waits. Together that is TCP's flow control, hop by hop.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from workers.timer import DeadlineTimer

Act = Callable[..., object]


class Line:
    """A queue of (due, act, arguments, bytes) behind one deadline, that of its head.

    `on_full` is called when more than `window` bytes are on the way, `on_room` when half of it is free again. `left_at`
    is the instant at which what leaves was due; it may leave somewhat later. `delay`, in seconds, may be changed.
    """

    __slots__ = (
        "_due_at",  # of what entered last
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
        """Call `act(*args)` one delay after `at` (None: now), or after `not_before`, behind all that entered earlier.

        `size` is what it counts in the window, in bytes.
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
        """Let nothing leave: the far side does not read."""
        self.is_held = True

    def release(self) -> None:
        """Let what is due leave again."""
        self.is_held = False
        self._arm()

    def bypass(self) -> None:
        """Have no delay from now on; what is on the way arrives at once."""
        self.delay = self._due_at = 0.0
        self._is_armed = False  # what it is armed for may be far ahead; ringing then is harmless
        self._leave_until(float("inf"))

    def clear(self) -> None:
        """Drop what is on the way."""
        self._entries.clear()
        self.size = 0

    def _arm(self) -> None:
        # Due instants never decrease along a line, so one deadline for the head is enough.
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
