"""`python -m benchmarks processes`: throughput gained by a second balancer process, and latency lost by
least-in-flight.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from benchmarks.harness.options import CHECK, JSON, QUICK, SEED
from benchmarks.processes import runs as plans
from benchmarks.processes.measurements import COLUMNS, LATENCY, MEASUREMENTS, ProcessesRun, absence
from benchmarks.processes.runs import ProcessesPlan, run_plan
from benchmarks.processes.verdicts import tables, verdicts
from experiments.errors import BadInputError
from experiments.platform.cpu_time import is_known_here
from experiments.platform.session import Session
from experiments.platform.terminal import clock

EPILOG = """\b
Examples:
  python -m benchmarks processes                  about ten minutes
  python -m benchmarks processes --quick          half a minute: an impression
  python -m benchmarks processes --check          exit code 1 when a bound is missed
"""


@click.command(epilog=EPILOG)
@SEED
@QUICK
@JSON
@CHECK
def processes(seed: int, quick: bool, file: Path | None, check: bool) -> int:
    """Measure two balancer processes against one: throughput, and latency with the counters that they share."""
    if not is_known_here():
        raise BadInputError("processes reads processor time as Linux accounts for it: Linux only")
    session = Session(file, check)
    plan = replace(plans.QUICK if quick else ProcessesPlan(), seed=seed)
    runs: list[ProcessesRun] = []

    def run_ended(run: ProcessesRun) -> None:
        runs.append(run)
        shown = ("p50", "p99") if run.measurement == LATENCY.name else ("rate", "ceiling")
        figures = [f"{COLUMNS[one][0]} {run.figures[one]:{COLUMNS[one][1]}}" for one in shown if run.figures]
        name = f"{run.measurement} {run.block + 1}, {run.setup}"
        session.run_ended(name, ", ".join(figures), run.fault)

    for one in MEASUREMENTS.values():
        if reason := absence(one):
            session.say(f"absent: {one.name} ({reason})")
    session.introduce(f"{plan.total} runs, about {clock(plan.seconds)}.")
    session.measure(lambda folder: run_plan(plan, folder, run_ended), plan.total)
    return session.conclude(
        verdicts(runs), tables(runs), plan=plan, measurements=list(MEASUREMENTS.values()), runs=runs
    )
