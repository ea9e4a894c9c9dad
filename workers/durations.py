"""Parses durations such as `350ms`, `1.5s`, `2m`, or plain seconds. Pure: no I/O, no clock."""

from __future__ import annotations

import math
import re

SECONDS_PER_UNIT = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
ALLOWED = "a duration such as 350ms, 1.5s, 2m or plain seconds"

_DURATION = re.compile(r"\s*(?P<number>\d+\.?\d*|\.\d+)\s*(?P<unit>us|µs|ms|s|m|h)?\s*")
_COUNTS = re.compile(r"\s*(?P<low>\d+)(?:[-–](?P<high>\d+))?\s*", re.ASCII)
_SPAN = re.compile(r"(?P<low>[^-–]+)[-–](?P<high>[^-–]+)")


def parse_duration(text: str, default_unit: str = "s") -> float:
    """Parse `350ms` → 0.35 seconds. Raises ValueError with the allowed forms."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not {ALLOWED}")
    seconds = float(match["number"]) * SECONDS_PER_UNIT[match["unit"] or default_unit]
    if not math.isfinite(seconds):
        raise ValueError(f"{text!r} is not {ALLOWED}")
    return seconds


def parse_span(text: str) -> tuple[float, float]:
    """Parse `19-21ms` → (0.019, 0.021) seconds.

    A low end without a unit has the unit of the high end. Raises ValueError.
    """
    match = _SPAN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a span such as 19-21ms or 0-2s")
    low = parse_duration(match["low"], default_unit=_unit_of(match["high"]))
    high = parse_duration(match["high"])
    if low > high:
        raise ValueError(f"{text!r} ends before it begins")
    return low, high


def parse_counts(text: str) -> tuple[int, int]:
    """Parse `100` → (100, 100), `50-150` → (50, 150). Raises ValueError with the allowed forms."""
    match = _COUNTS.fullmatch(text)
    low = int(match["low"]) if match else 0
    high = int(match["high"] or low) if match else 0
    if not 1 <= low <= high:
        raise ValueError(f"{text!r} is not a number such as 100, nor a span such as 50-150")
    return low, high


def format_duration(seconds: float) -> str:
    """Format 0.35 → `350 ms`; from ten seconds on in seconds."""
    return f"{seconds:g} s" if seconds >= 10 else f"{seconds * 1e3:g} ms"


def _unit_of(text: str) -> str:
    match = _DURATION.fullmatch(text)
    return (match and match["unit"]) or "s"
