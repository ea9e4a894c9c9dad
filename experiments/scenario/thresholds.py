"""Thresholds, which decide the exit code: `p99 < 800 ms`, `errors < 0.1 %`, `throughput > 100 /s`, `goodput > 99 %`.

A threshold reads deadline-mapped latency, in which a failure counts as slow as the deadline, so that no system passes
by failing fast. Latency is in scenario seconds: the time scale stretches the bound along with the traffic.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from experiments.errors import BadInputError

PATTERN = re.compile(
    r"^\s*(?P<measure>p\d{1,2}(?:\.\d+)?|max|mean|errors|goodput|throughput)\s*(?P<sign><|>)\s*"
    r"(?P<bound>\d+(?:\.\d+)?)\s*(?P<unit>µs|us|ms|s|%|/s)\s*$"
)
ALLOWED = (
    "'p99 < 800 ms', 'mean < 1 s', 'max < 2 s', 'errors < 0.1 %', 'goodput > 99 %', 'throughput > 100 /s'"
)
SECONDS = {"µs": 1e-6, "us": 1e-6, "ms": 1e-3, "s": 1.0}
UNITS = {"errors": ("%",), "goodput": ("%",), "throughput": ("/s",)}
"""Units in which a measure may be stated; latencies in those of `SECONDS`."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """A bound on one measure. `bound` in seconds, per second, or as a fraction (0..1) by the kind of measure."""

    text: str
    measure: str
    sign: Literal["<", ">"]
    bound: float
    unit: str


def parse_threshold(text: str) -> Threshold:
    """Parse a threshold. Raises `BadInputError` with the allowed forms."""
    match = PATTERN.match(text)
    unit = match["unit"] if match else ""
    if match is None or unit not in UNITS.get(match["measure"], SECONDS):
        raise BadInputError(f"{text!r} is not understood; write one like {ALLOWED}")
    factor = SECONDS.get(unit, 0.01 if unit == "%" else 1.0)
    sign: Literal["<", ">"] = "<" if match["sign"] == "<" else ">"
    return Threshold(" ".join(text.split()), match["measure"], sign, float(match["bound"]) * factor, unit)
