"""Cold start after idleness, as on free hosting platforms. Pure: no I/O, no clock."""

from __future__ import annotations

import math


class ColdStart:
    """Model of a process that sleeps after `sleep_after` idle seconds and takes `wake_time` seconds to wake.

    Requests that arrive while it wakes all wait for the same time. `sleep_after=inf` never sleeps.
    """

    def __init__(self, sleep_after: float, wake_time: float, now: float, starts_asleep: bool = False) -> None:
        self.sleep_after = sleep_after
        self.wake_time = wake_time
        self._awake_at = now
        self._active_at = -math.inf if starts_asleep else now

    def is_asleep(self, now: float) -> bool:
        """Whether a request that arrives at `now` would have to wake the worker."""
        return self._active_at == -math.inf or now - self._active_at > self.sleep_after

    def awake_at(self, now: float) -> float:
        """Note a request at `now`; return the time from which it can be served."""
        if self.is_asleep(now):
            self._awake_at = now + self.wake_time
        self.note_activity(max(now, self._awake_at))
        return self._awake_at

    def note_activity(self, now: float) -> None:
        """Note activity, such as the end of a request."""
        self._active_at = max(self._active_at, now)
