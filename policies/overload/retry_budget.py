"""How much may be sent again: a share of what is asked for, and a few per second beside.

Rule of this file: retries must not make an overload worse. Where every request fails, each of `n` tries turns a load
into `n + 1` times that load, at the worst moment; a budget bounds this to 1 + `share`, whatever `n` is. The few per
second are for services that are asked little: a fifth of one request is none.

The budget is a window, as Finagle's is (Eriksen, "Your Server as a Function", 2013; its RetryBudget): what requests
have put in within the last `window` seconds, less what was taken out in the same time. Nobody pays per request: the
total of the requests, which is counted anyway, is noted about once a second.
"""

from __future__ import annotations

SLICES = 10
"""Parts of a window; what leaves it, leaves it in such parts."""


class RetryBudget:
    """`share` of the requests of the last `window` seconds, and `per_second`. `denied` counts what it did not allow."""

    __slots__ = ("_at", "_reserve", "_share", "_slice", "_spent", "_spent_in_all", "_totals", "denied")

    def __init__(self, share: float = 0.2, per_second: float = 10.0, window: float = 10.0) -> None:
        self._share = share
        self._reserve = per_second * window
        self._slice = window / SLICES
        self._totals = [0] * SLICES  # requests that there had been when each slice began
        self._spent = [0] * SLICES
        self._spent_in_all = 0
        self._at: int | None = None  # the number of the last slice, counted from the clock's beginning
        self.denied = 0

    def follow(self, other: RetryBudget) -> None:
        """Go by the rules of `other` from now on; what was taken out stays so."""
        self._share, self._reserve = other._share, other._reserve

    def note(self, requests: int, now: float) -> None:
        """There have been so many `requests`, in total. O(1): a slice that has begun takes the oldest one's place."""
        number = int(now / self._slice)
        first = number - SLICES + 1 if self._at is None else max(self._at + 1, number - SLICES + 1)
        for place in (slice_number % SLICES for slice_number in range(first, number + 1)):
            self._spent_in_all -= self._spent[place]
            self._spent[place] = 0
            self._totals[place] = requests
        self._at = number if self._at is None else max(self._at, number)

    def take(self, requests: int, now: float) -> bool:
        """Whether one more may be sent again, and then it counts as sent."""
        self.note(requests, now)
        if self._balance(requests) < 1.0:
            self.denied += 1
            return False
        self._spent[(self._at or 0) % SLICES] += 1
        self._spent_in_all += 1
        return True

    def _balance(self, requests: int) -> float:
        oldest = self._totals[((self._at or 0) + 1) % SLICES]
        return self._reserve + self._share * (requests - oldest) - self._spent_in_all
