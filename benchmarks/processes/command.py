"""`python -m benchmarks processes`: throughput gained by a second balancer process, and latency lost by
least-in-flight.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import click

from benchmarks.harness.options import CHECK, JSON, QUICK, SEED
from benchmarks.processes import runs as plans
from benchmarks.processes.runs import ProcessesPlan, run_plan
from benchmarks.processes.throughput import PARTS, SETUPS, LatencyRun, ThroughputRun, absence
from benchmarks.processes.verdicts import latency_table, throughput_table, verdicts
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
    bursts: list[ThroughputRun] = []
    stretches: list[LatencyRun] = []

    def run_ended(run: ThroughputRun | LatencyRun) -> None:
        if isinstance(run, ThroughputRun):
            bursts.append(run)
            name, figures = (
                f"{run.part}, {run.processes}",
                f"{run.rate:.0f}/s, {run.ceiling:.0f}/s with a core each",
            )
        else:
            stretches.append(run)
            name, figures = run.setup, f"p50 {run.p50:.1f} ms, p99 {run.p99:.1f} ms"
        session.run_ended(f"block {run.block + 1}, {name}", figures, run.fault)

    for part in PARTS:
        if reason := absence(part):
            session.say(f"absent: {part} ({reason})")
    session.introduce(f"{plan.total} runs, about {clock(plan.seconds)}.")
    session.measure(lambda folder: run_plan(plan, folder, run_ended), plan.total)
    tables = [throughput_table(bursts)] if bursts else []
    tables += [latency_table(stretches)] if stretches else []
    return session.conclude(
        verdicts(bursts, stretches),
        tables,
        plan=plan,
        setups=[asdict(setup) | {"rate": setup.rate} for setup in SETUPS],
        bursts=bursts,
        stretches=stretches,
    )
