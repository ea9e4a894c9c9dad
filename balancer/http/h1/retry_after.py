"""Retry-After of a response (RFC 9110 § 10.2.3): seconds, or a date."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import inf
from typing import Final

from balancer.http.h1.fields import first_value_of

_RETRY_AFTER: Final = first_value_of(b"retry-after")
MOST_DIGITS: Final = 9


def retry_after(block: bytes, today: datetime | None = None) -> float | None:
    """Return the seconds that a block of fields asks to wait, None where it states none that can be read."""
    found = _RETRY_AFTER.search(block)
    if found is None:
        return None
    value = found[1].strip()
    if value.isdigit():
        return float(value) if len(value) <= MOST_DIGITS else inf
    try:
        date = parsedate_to_datetime(value.decode("latin-1"))
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if date.tzinfo is None:
        return None
    return max(0.0, (date - (today or datetime.now(UTC))).total_seconds())
