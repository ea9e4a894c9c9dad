"""Rows that the unit does not do as they ask yet.

Rule of this file: it grows shorter. Whoever makes a row true strikes it off and writes the page anew (`page.py`).
"""

from __future__ import annotations

NOT_YET: dict[str, tuple[str, ...]] = {}
"""Why not -> rows, or rows in one of the two ways."""
