"""Request hints: priority, time limit and start time stated in request fields.

Pure. A time limit is accepted from any client, because it can only shorten its own request's wait; the configuration
decides whose other hints are trusted. A malformed value is ignored. The fields are passed on unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from balancer.http.h1.fields import found, lines_of

_MILLISECONDS: Final = re.compile(rb"[0-9]{1,9}")

_INSTANT: Final = re.compile(rb"(?:t=)?([0-9]{9,16}(?:\.[0-9]{1,9})?)")
"""Instant formats: Heroku writes Unix milliseconds; nginx' `t=${msec}` seconds with a fraction; Apache's `t=%t`
microseconds."""

_UNITS: Final = ((1e14, 1e6), (1e11, 1e3))
"""(lower bound, units per second): the three units are a factor of a thousand apart."""


class RequestHints:
    """Hints of one request; None where absent.

    `level` is the priority, 0 the highest; `limit` is how long the client waits, in seconds; `started_at` is when the
    client or the first proxy started to wait, in Unix time.
    """

    def __init__(self) -> None:
        self.level: int | None = None
        self.limit: float | None = None
        self.started_at: float | None = None


class HintFields:
    """Field names of the hints. `levels` maps lower-cased names to priority levels."""

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
        """Return the hints in a head's fields, None if there are none."""
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
    """Return the Unix time in seconds, None if `value` is malformed."""
    match = _INSTANT.fullmatch(value)
    if match is None:
        return None
    number = float(match[1])
    for least, units in _UNITS:
        if number >= least:
            return number / units
    return number
