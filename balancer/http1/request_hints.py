"""What a request says of itself: how important it is, and until when its answer is of use.

Rule of this file: pure. A time limit is believed from anybody, because it can only make its own request's wait
shorter; the rest only from whom the configuration trusts. What makes no sense is as if it were not there. The fields
are read and passed on as they came.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from balancer.http1.fields import found, lines_of

_MILLISECONDS: Final = re.compile(rb"[0-9]{1,9}")

_INSTANT: Final = re.compile(rb"(?:t=)?([0-9]{9,16}(?:\.[0-9]{1,9})?)")
"""Heroku writes Unix milliseconds; nginx' `t=${msec}` seconds with a fraction; Apache's `t=%t` microseconds."""

_UNITS: Final = ((1e14, 1e6), (1e11, 1e3))
"""(from which number on, how many of its units are a second): the three are a factor of a thousand apart."""


class RequestHints:
    """`level` 0 is the highest, None where none is said. `limit` is how long whoever asked waits, in seconds, and
    `started_at` when it, or the first proxy, began to, in Unix time."""

    def __init__(self) -> None:
        self.level: int | None = None
        self.limit: float | None = None
        self.started_at: float | None = None


class HintFields:
    """The names under which it is said, and how to read them. `levels` are by name, in lower case."""

    def __init__(
        self,
        priority: str | None = None,
        levels: Mapping[str, int] | None = None,
        limit: str | None = None,
        start: str | None = None,
    ) -> None:
        self._priority, self._limit, self._start = (_key(name) for name in (priority, limit, start))
        self._levels = {name.encode(): level for name, level in (levels or {}).items()}
        names = [re.escape(name) for name in (self._priority, self._limit, self._start) if name]
        self._lines = lines_of(b"|".join(names))

    def of(self, block: bytes) -> RequestHints | None:
        """What a head's fields say; None where they say nothing."""
        stated = None
        for name, value, _ in found(self._lines, block):
            stated = stated or RequestHints()
            if name == self._priority:
                stated.level = self._levels.get(value.lower())
            elif name == self._limit:
                stated.limit = int(value) / 1e3 if _MILLISECONDS.fullmatch(value) else None
            else:
                stated.started_at = _instant(value)
        return stated


def _key(name: str | None) -> bytes:
    return name.lower().encode() if name else b""


def _instant(value: bytes) -> float | None:
    """Unix time in seconds."""
    match = _INSTANT.fullmatch(value)
    if match is None:
        return None
    number = float(match[1])
    for least, units in _UNITS:
        if number >= least:
            return number / units
    return number
