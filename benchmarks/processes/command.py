"""`python -m benchmarks processes`: throughput gained by a second balancer process, and latency lost by
least-in-flight.

Only parses options, builds the plan and prints.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from benchmarks.harness.session import exit_code, run_in_folder
from benchmarks.harness.verdicts import Verdict, print_verdicts
from benchmarks.processes.latency import SETUPS, LatencyRun
from benchmarks.processes.runs import QUICK, Plan, run_plan
from benchmarks.processes.throughput import PARTS, ThroughputRun, absence
from benchmarks.processes.verdicts import latency_table, throughput_table, verdicts
from experiments.build import describe_build
from experiments.cpu_time import is_known_here
from experiments.errors import BadInputError
from experiments.terminal import (
    clock,
    console_here,
    require_writable,
    write_json,
)

EPILOG = """\b
Examples:
  python -m benchmarks processes                  about ten minutes
  python -m benchmarks processes --quick          half a minute: an impression
  python -m benchmarks processes --check          exit code 1 when a bound is missed
"""


@click.command(epilog=EPILOG)
@click.option(
    "--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Of order, arrivals and demand."
)
@click.option("--quick", is_flag=True, help="One short run of each: an impression, and for tests.")
@click.option("--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write all runs there.")
@click.option("--check", is_flag=True, help="Exit code 1 when a bound is missed.")
def processes(seed: int, quick: bool, file: Path | None, check: bool) -> int:
    """Measure two balancer processes against one: throughput, and latency with the counters that they share."""
    if not is_known_here():
        raise BadInputError("processes reads processor time as Linux accounts for it: Linux only")
    require_writable("--json", file)
    plan = QUICK if quick else Plan(seed=seed)
    console = console_here()
    session = Session(plan, console)
    was_stopped = session.run_session()
    found = session.present()
    if file is not None:
        session.write(file, found)
    met = [verdict.is_met for verdict in found]
    return exit_code(console, was_stopped, check, met, "Nothing was left running.")


class Session:
    """One session of the benchmark: runs the plan, collects the runs and prints tables and bounds."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self.bursts: list[ThroughputRun] = []
        self.stretches: list[LatencyRun] = []
        self._plan, self._console = plan, console

    def run_session(self) -> bool:
        """Measure; returns whether it was interrupted. Raises `ExperimentError`."""
        said = f"{self._plan.total} runs, about {clock(self._plan.seconds)}. Ours: {describe_build()}.\n"
        self._console.print(Text(said))
        for part in PARTS:
            if why := absence(part):
                self._console.print(Text(f"absent: {part} ({why})"))
        plan = self._plan
        return run_in_folder(
            lambda folder: run_plan(plan, folder, self._run_ended), self._console, "measuring"
        )

    def _run_ended(self, run: ThroughputRun | LatencyRun) -> None:
        if isinstance(run, ThroughputRun):
            self.bursts.append(run)
            what = f"{run.part}, {run.processes}: {run.rate:.0f}/s, {run.ceiling:.0f}/s with a core each"
        else:
            self.stretches.append(run)
            what = f"{run.setup}: p50 {run.p50:.1f} ms, p99 {run.p99:.1f} ms"
        done = len(self.bursts) + len(self.stretches)
        line = f"[{done}/{self._plan.total}] block {run.block + 1}, {run.fault or what}"
        self._console.print(Text(line, style="red" if run.fault else "dim"))

    def present(self) -> list[Verdict]:
        """Print tables and bounds; returns the bounds."""
        if self.bursts:
            self._console.print(throughput_table(self.bursts))
        if self.stretches:
            self._console.print(latency_table(self.stretches))
        found = verdicts(self.bursts, self.stretches)
        print_verdicts(self._console, found)
        return found

    def write(self, file: Path, found: list[Verdict]) -> None:
        """Write plan, runs and bounds as JSON. Raises `BadInputError` if the file cannot be written."""
        content = {
            "plan": asdict(self._plan),
            "setups": [asdict(setup) | {"rate": setup.rate} for setup in SETUPS],
            "bursts": [asdict(run) for run in self.bursts],
            "stretches": [asdict(run) for run in self.stretches],
            "bounds": [{"is_met": one.is_met, "words": str(one)} for one in found],
        }
        write_json("--json", file, content)
