"""Thresholds, which decide the exit code: `p99 < 800 ms`, `errors < 0.1 %`, `throughput > 100 /s`, `goodput > 99 %`.

A threshold reads deadline-mapped latency, in which a failure counts as slow as the deadline, so that no system passes
by failing fast. Latency is in scenario seconds: the time scale stretches the bound along with the traffic.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from experiments.errors import BadInputError
from experiments.stats.measures import deadline_mapped, goodput, percentile, throughput
from experiments.stats.samples import Run

PATTERN = re.compile(
    r"^\s*(?P<measure>p\d{1,2}(?:\.\d+)?|max|mean|errors|goodput|throughput)\s*(?P<sign><|>)\s*"
    r"(?P<bound>\d+(?:\.\d+)?)\s*(?P<unit>µs|us|ms|s|%|/s)\s*$"
)
ALLOWED = (
    "'p99 < 800 ms', 'mean < 1 s', 'max < 2 s', 'errors < 0.1 %', 'goodput > 99 %', 'throughput > 100 /s'"
)
SECONDS = {"µs": 1e-6, "us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, slots=True)
class Threshold:
    """A bound on one measure. `bound` in seconds, per second, or as a fraction (0..1) by the kind of measure."""

    text: str
    measure: str
    sign: Literal["<", ">"]
    bound: float
    unit: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """Result of a threshold for one entry; `message` states by how much it was met or missed."""

    label: str
    threshold: str
    passed: bool
    message: str


def parse_threshold(text: str) -> Threshold:
    """Parse a threshold. Raises `BadInputError` with the allowed forms."""
    match = PATTERN.match(text)
    unit = match["unit"] if match else ""
    if match is None or unit not in units_of(match["measure"]):
        raise BadInputError(f"thresholds: {text!r} is not understood; write one like {ALLOWED}")
    factor = SECONDS.get(unit, 0.01 if unit == "%" else 1.0)
    sign: Literal["<", ">"] = "<" if match["sign"] == "<" else ">"
    return Threshold(" ".join(text.split()), match["measure"], sign, float(match["bound"]) * factor, unit)


def units_of(measure: str) -> tuple[str, ...]:
    """Units in which a measure may be stated."""
    if measure in ("errors", "goodput"):
        return ("%",)
    return ("/s",) if measure == "throughput" else tuple(SECONDS)


def judge(threshold: Threshold, label: str, runs: Sequence[Run], slo: float, time_scale: float) -> Judgement:
    """Judge a threshold on the pooled runs of one entry; `slo` in scenario seconds."""
    value = measured(threshold.measure, runs, slo * time_scale)
    stretch = {"p": time_scale, "m": time_scale, "t": 1 / time_scale}.get(threshold.measure[0], 1.0)
    bound = threshold.bound * stretch
    passed = value < bound if threshold.sign == "<" else value > bound
    return Judgement(label, threshold.text, passed, explain(threshold, value, bound, passed))


def measured(measure: str, runs: Sequence[Run], slo: float) -> float:
    """Value of a measure over pooled runs, in seconds, per second, or as a fraction."""
    if measure == "throughput":
        return throughput(runs)
    if measure == "goodput":
        return goodput(runs, slo)
    if measure == "errors":
        return 1.0 - float(np.mean(np.concatenate([run.samples.ok for run in runs])))
    latency = np.concatenate([deadline_mapped(run) for run in runs])
    if measure == "mean":
        return float(latency.mean())
    return percentile(latency, 100.0 if measure == "max" else float(measure[1:]))


def explain(threshold: Threshold, value: float, bound: float, passed: bool) -> str:
    """Explanation such as `p99 is 912 ms, missed by 112 ms`."""
    shown, gap = in_unit(value, threshold.unit), in_unit(abs(value - bound), threshold.unit)
    return f"{threshold.measure} is {shown}, {'met' if passed else 'missed'} by {gap}"


def in_unit(value: float, unit: str) -> str:
    """Format `value` in the threshold's unit with at least three significant digits."""
    factor = SECONDS.get(unit, 0.01 if unit == "%" else 1.0)
    scaled = round(value / factor, 6)
    digits = 0 if abs(scaled) >= 100 else 1 if abs(scaled) >= 10 else 2
    return f"{scaled:.{digits}f}{'' if unit == '/s' else ' '}{unit}"
