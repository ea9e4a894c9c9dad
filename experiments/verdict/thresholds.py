"""Judge thresholds on the runs of an entry: the value of the measure, and by how much the bound is met or missed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.run_data import Run
from experiments.scenario.thresholds import SECONDS, Threshold
from experiments.stats.measures import deadline_mapped, goodput, percentile, throughput


@dataclass(frozen=True, slots=True)
class Judgement:
    """Result of a threshold for one entry; `message` states by how much it was met or missed."""

    label: str
    threshold: str
    passed: bool
    message: str


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
        requests = sum(run.samples.requests for run in runs)
        return 1.0 - sum(run.samples.successes for run in runs) / requests
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
