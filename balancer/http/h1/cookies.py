"""Search for a cookie in a request head (RFC 6265 § 4.2.1)."""

from __future__ import annotations

import re
from typing import Final

_find_line: Final = re.compile(rb"\n(?i:cookie)(:[^\r]*)").search


MAX_OCCURRENCES: Final = 256
"""Occurrences of a name in a head up to which it is searched for its cookie: a browser keeps 180 cookies of a site."""


class CookieSearch:
    """Search for one cookie by its name and an expression for its value, whose group 1 is what is wanted.

    Of several cookies that match, the first is found: user agents send the one with the longest path first (§ 5.4).
    Heads in which the name does not occur, or more than `MAX_OCCURRENCES` times, are not searched by an expression:
    thousands of cookies without a value would cost several times a whole request.
    """

    def __init__(self, name: bytes, value: bytes) -> None:
        self._begin = name + b"="
        pair = rb"[ \t]*%b%b" % (re.escape(self._begin), value)
        self._match_first = re.compile(b":" + pair).match
        self._find_next = re.compile(b";" + pair).search

    def search(self, head: bytes) -> re.Match[bytes] | None:
        """Return the match of the cookie in the bytes of a head, None if it has none."""
        if not 0 < head.count(self._begin) <= MAX_OCCURRENCES:
            return None
        line = _find_line(head)
        while line is not None:
            start, end = line.span(1)
            match = self._match_first(head, start, end) or self._find_next(head, start, end)
            if match is not None:
                return match
            line = _find_line(head, end)
        return None
