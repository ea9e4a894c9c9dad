"""Requests to one endpoint that wait although many later ones were answered: they hang, or take far longer than others.

A count of requests in flight that includes them shows a queue where there is none, and answers that do not come look
like silence of the whole endpoint. Known at O(1) per request: requests are numbered as they are sent, and a `mark` is
passed when requests that were sent long after it have succeeded; those before it that still wait are stuck. Those that
stay so for several times the longest wait of any recent success hang, which is known before their timeout.
"""

from __future__ import annotations

from typing import Final

WINDOWS: Final = 2
"""Later requests, as a multiple of those awaiting an answer at the mark, one of which must have succeeded. Of
exponential services that are served side by side, 5 to 14 % are overtaken by so many."""

PATIENCE: Final = 3.0
"""Wait, as a multiple of the longest of a recent success, after which a stuck request hangs. With 1, services that vary
much (lognormal, 1.5) seem to hang at times."""

RECENT_S: Final = 10.0
"""Seconds for which the longest latency of a success counts at least."""

REPEATS: Final = 10.0
"""The same, as a multiple of that latency: where one request in many waits for a minute (long polling), the next ones
do not seem to hang."""


class Overtaken:
    """`sent` requests so far; `stuck` of those that wait were overtaken, and `hanging` of these hang. `longest` is the
    greatest latency in seconds of a recent success."""

    __slots__ = (
        "_began",
        "_candidates",
        "_hanging_mark",
        "_hanging_until",
        "_late",
        "_mark",
        "_marked_at",
        "_stuck_until",
        "_unanswered",
        "_until",
        "hanging",
        "longest",
        "sent",
        "stuck",
    )

    def __init__(self) -> None:
        self.sent = self.stuck = self.hanging = 0
        self._mark = self._unanswered = self._until = self._stuck_until = 0
        self._candidates = self._hanging_mark = self._hanging_until = 0
        self.longest = self._late = self._began = self._marked_at = 0.0

    def send(self) -> int:
        """Count one more request; return its number."""
        self.sent += 1
        return self.sent

    def answer(self, number: int) -> None:
        """Count a request as answered, or as ended."""
        if number > self._mark:
            return
        if number > self._stuck_until:
            self._unanswered -= 1
            return
        self.stuck -= 1
        if number <= self._hanging_until:
            self.hanging -= 1
        elif number <= self._hanging_mark:
            self._candidates -= 1

    def succeed(self, number: int, awaiting: int, latency: float, now: float) -> None:
        """Judge by a success after `latency` seconds while `awaiting` requests wait."""
        if now - self._began > RECENT_S and now - self._began > REPEATS * self.longest:
            self._began, self.longest, self._late = now, self._late, 0.0
        if latency > self._late:
            self._late = latency
            if latency > self.longest:
                self.longest = latency
        if number <= self._until:
            return
        self.stuck += self._unanswered
        self._stuck_until, self._mark = self._mark, self.sent
        self._unanswered = awaiting - self.stuck
        self._until = self.sent + WINDOWS * max(1, self._unanswered)
        if self.stuck and now - self._marked_at > PATIENCE * self.longest:
            self._judge_stuck(now)

    def _judge_stuck(self, now: float) -> None:
        """Count those as hanging that were stuck at the last such mark, and set it anew."""
        self.hanging += self._candidates
        self._hanging_until, self._hanging_mark = self._hanging_mark, self._stuck_until
        self._candidates = self.stuck - self.hanging
        self._marked_at = now
