"""Tables and bounds of the processes benchmark. Pure functions of runs.

Ratios are computed within a block; the 95 % interval of their geometric mean is judged. A run with a fault is in no
ratio, and makes its bound missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from rich.table import Table

from benchmarks.harness.verdicts import block_ratios, bracketed, over_blocks, side_of
from benchmarks.processes.measurements import COLUMNS, MEASUREMENTS, Measurement, ProcessesRun
from experiments.platform.session import BoundVerdict
from experiments.platform.terminal import plain_table
from experiments.stats.comparison import Interval


def valid(runs: Sequence[ProcessesRun], measurement: Measurement, setup: str) -> list[ProcessesRun]:
    return [run for run in runs if (run.measurement, run.setup, run.fault) == (measurement.name, setup, "")]


def ratio_of(runs: Sequence[ProcessesRun], measurement: Measurement, setup: str) -> Interval | None:
    """Mean over blocks of the judged figure as a multiple of the first setup's; None without pairs."""
    own, reference = (
        {run.block: run.figures[measurement.judged] for run in valid(runs, measurement, name)}
        for name in (setup, measurement.setups[0].name)
    )
    return over_blocks(block_ratios(own, reference))


def verdicts(runs: Sequence[ProcessesRun]) -> list[BoundVerdict]:
    """Verdicts on what was measured."""
    return [verdict(runs, MEASUREMENTS[name]) for name in dict.fromkeys(run.measurement for run in runs)]


def verdict(runs: Sequence[ProcessesRun], measurement: Measurement) -> BoundVerdict:
    """Verdict on one measurement; any fault makes the bound missed."""
    ratio = ratio_of(runs, measurement, measurement.setups[-1].name)
    faults = [run.fault for run in runs if run.measurement == measurement.name and run.fault]
    if faults:
        found = f"{bracketed(ratio)}; INVALID: {faults[0]}"
        return BoundVerdict(measurement.name, measurement.bound, False, found)
    is_met = side_of(ratio, measurement.limit, measurement.is_gain)
    return BoundVerdict(measurement.name, measurement.bound, is_met, bracketed(ratio))


def tables(runs: Sequence[ProcessesRun]) -> list[Table]:
    """A table of each measurement: medians over blocks, and the ratio to the first setup."""
    return [table_of(runs, MEASUREMENTS[name]) for name in dict.fromkeys(run.measurement for run in runs)]


def table_of(runs: Sequence[ProcessesRun], measurement: Measurement) -> Table:
    columns = [COLUMNS[figure] for figure in measurement.figures]
    heads = (measurement.name, *(head for head, _ in columns), f"{measurement.judged} ratio")
    table = plain_table(heads, (), title=measurement.words)
    for setup in measurement.setups:
        good = valid(runs, measurement, setup.name)
        if not good:
            table.add_row(setup.name, "INVALID")
            continue
        medians = [median(run.figures[figure] for run in good) for figure in measurement.figures]
        cells = [f"{value:{form}}" for value, (_, form) in zip(medians, columns, strict=True)]
        table.add_row(setup.name, *cells, bracketed(ratio_of(runs, measurement, setup.name)))
    return table
