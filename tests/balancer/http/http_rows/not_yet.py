"""Rows that the balancer does not satisfy yet; one that passes is removed, and `page.py` regenerates the page."""

from __future__ import annotations

NOT_YET: dict[str, tuple[str, ...]] = {}
"""Reason -> names of rows, of both or one of the two ways of sending."""
