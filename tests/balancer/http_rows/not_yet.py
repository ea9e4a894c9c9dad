"""Rows that the unit does not do as they ask yet.

Rule of this file: it grows shorter. Whoever makes a row true strikes it off and writes the page anew (`page.py`).
"""

from __future__ import annotations

NOT_YET: dict[str, tuple[str, ...]] = {
    "a fragment is passed on": ("target-fragment",),
    "a bare CR or LF before a request is skipped": (
        "before-bare-lf",
        "before-bare-cr",
    ),
    "no limit on trailers": ("trailers-too-many",),
    "llhttp takes Proxy-Connection: close for an end that we do not see": ("proxy-connection",),
    "Max-Forwards is not looked at": (
        "max-forwards-zero",
        "max-forwards-two",
    ),
    "a head of a response is bounded only while its end has not come": (
        "answer-over-limit-at-once",
        "answer-too-many-fields",
    ),
}
"""Why not -> rows, or rows in one of the two ways."""
