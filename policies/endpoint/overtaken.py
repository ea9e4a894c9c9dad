"""Requests to one endpoint that wait although many later ones were answered: they hang, or take far longer than others.

A count of requests in flight that includes them shows a queue where there is none, and answers that do not come look
like silence of the whole endpoint. Known at O(1) per request: requests are numbered as they are sent, and a `mark` is
passed when requests that were sent long after it have succeeded; those before it that still wait are stuck.
"""

from __future__ import annotations

from typing import Final

WINDOWS: Final = 2
"""Later requests, as a multiple of those awaiting an answer at the mark, one of which must have succeeded. Of
exponential services that are served side by side, 5 to 14 % are overtaken by so many."""


class Overtaken:
    """`sent` requests so far; `stuck` of those that wait were overtaken."""

    __slots__ = ("_mark", "_stuck_until", "_unanswered", "_until", "sent", "stuck")

    def __init__(self) -> None:
        self.sent = self.stuck = 0
        self._mark = self._unanswered = self._until = self._stuck_until = 0

    def send(self) -> int:
        """Count one more request; return its number."""
        self.sent += 1
        return self.sent

    def answer(self, number: int) -> None:
        """Count a request as answered, or as ended."""
        if number <= self._mark:
            if number <= self._stuck_until:
                self.stuck -= 1
            else:
                self._unanswered -= 1

    def succeed(self, number: int, awaiting: int) -> None:
        """Judge by a success while `awaiting` requests wait."""
        if number <= self._until:
            return
        self.stuck += self._unanswered
        self._stuck_until, self._mark = self._mark, self.sent
        self._unanswered = awaiting - self.stuck
        self._until = self.sent + WINDOWS * max(1, self._unanswered)
