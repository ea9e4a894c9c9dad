"""Retry budget: a share of the requests, and a few retries per second.

Retries must not make an overload worse. Where every request fails, each of `n` tries turns a load into `n + 1` times
that load, at the worst moment; a budget bounds this to 1 + `share`, whatever `n` is. The few per second are for
services with little traffic: a fifth of one request is no retry.

The budget is a window, as Finagle's is (Eriksen, "Your Server as a Function", 2013; its RetryBudget): what requests
have credited within the last seconds, less the retries in the same time. There is no cost per request: the total of the
requests, which is counted anyway, is noted about once a second.
"""

from __future__ import annotations

WINDOW = 10
"""Seconds of the window; it moves on by one at a time."""


class RetryBudget:
    """Allows retries for `share` of the requests of the last WINDOW seconds, and `per_second`.

    `denied` counts rejections.
    """

    def __init__(self, share: float = 0.2, per_second: float = 10.0) -> None:
        self._share = share
        self._reserve = per_second * WINDOW
        self._totals = [0] * WINDOW  # total of requests at the start of each second
        self._spent = [0] * WINDOW
        self._spent_in_all = 0
        self._at = -(1 << 62)  # the last second, counted from the clock's zero
        self.denied = 0

    def apply(self, other: RetryBudget) -> None:
        """Apply the rules of `other` from now on; retries already taken still count."""
        self._share, self._reserve = other._share, other._reserve

    def note(self, requests: int, now: float) -> None:
        """Note the total of `requests` so far. O(1): a new second replaces the oldest one."""
        number = int(now)
        first = max(self._at + 1, number - WINDOW + 1)
        for place in (second % WINDOW for second in range(first, number + 1)):
            self._spent_in_all -= self._spent[place]
            self._spent[place] = 0
            self._totals[place] = requests
        self._at = max(self._at, number)

    def take(self, requests: int, now: float) -> bool:
        """Whether one more retry is allowed; if so, charge the budget."""
        self.note(requests, now)
        if self._balance(requests) < 1.0:
            self.denied += 1
            return False
        self._spent[self._at % WINDOW] += 1
        self._spent_in_all += 1
        return True

    def _balance(self, requests: int) -> float:
        oldest = self._totals[(self._at + 1) % WINDOW]
        return self._reserve + self._share * (requests - oldest) - self._spent_in_all
