"""Requests to one endpoint that wait although many later ones were answered: they hang, or take far longer than others.

A count of requests in flight that includes them shows a queue where there is none, and answers that do not come look
like silence of the whole endpoint. Known at O(1) per request: requests are numbered as they are sent, and a `mark` is
passed when requests that were sent long after it have succeeded; those before it that still wait are stuck.

It may begin at any time: the requests that wait then count as sent before its first mark.
"""

from __future__ import annotations

from typing import Final

WINDOWS: Final = 2
"""Later requests, as a multiple of those awaiting an answer at the mark, one of which must have succeeded. Of
exponential services that are served side by side, 5 to 14 % are overtaken by so many."""

RECENT_S: Final = 10.0
"""Seconds for which the longest latency of a success counts at least."""

REPEATS: Final = 10.0
"""The same, as a multiple of that latency."""


class Overtaken:
    """`stuck` requests wait and were overtaken; `longest`: most seconds of a recent success.

    It begins after `sent` requests, of which `awaiting` wait.
    """

    def __init__(self, sent: int, awaiting: int) -> None:
        self.stuck = self._stuck_until = 0
        self._mark, self._unanswered = sent, awaiting
        self._until = sent + WINDOWS * awaiting
        self.longest = self._late = self._began = 0.0

    def answer(self, number: int) -> None:
        """Count a request as answered, or as ended."""
        if number > self._mark:
            return
        if number > self._stuck_until:
            self._unanswered -= 1
        else:
            self.stuck -= 1

    def succeed(self, number: int, sent: int, awaiting: int, latency: float, now: float) -> None:
        """Judge by a success after `latency` seconds, when `sent` requests were sent and `awaiting` wait."""
        if now - self._began > RECENT_S and now - self._began > REPEATS * self.longest:
            self._began, self.longest, self._late = now, self._late, 0.0
        if latency > self._late:
            self._late = latency
            if latency > self.longest:
                self.longest = latency
        if number <= self._until:
            return
        self.stuck += self._unanswered
        self._stuck_until, self._mark = self._mark, sent
        self._unanswered = awaiting - self.stuck
        self._until = sent + WINDOWS * max(1, self._unanswered)
