"""`python -m benchmarks rolling`: workers restarted, balancer reloaded and replaced, under load.

Only parses options and prints; each stage is reported as soon as it has ended.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from benchmarks.harness.descriptors import allow_descriptors
from benchmarks.harness.options import cores_for, generator_core
from benchmarks.harness.serving import folder_in
from benchmarks.harness.session import exit_code, run_in_folder
from benchmarks.harness.verdicts import Verdict, print_verdicts
from benchmarks.rolling.stages import QUICK, STAGES, Stage, StageTiming, seconds_of, staged
from experiments.build import describe_build
from experiments.terminal import (
    console_here,
    require_writable,
    write_json,
)

EPILOG = """\b
Examples:
  python -m benchmarks rolling                   about two and a half minutes
  python -m benchmarks rolling --quick           half a minute
  python -m benchmarks rolling --check           exit code 1 when a request failed
"""


@click.command(epilog=EPILOG)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Of the requests.")
@click.option("--quick", is_flag=True, help="Few restarts and reloads: an impression, and for tests.")
@click.option("--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write it there.")
@click.option("--check", is_flag=True, help="Exit code 1 when a request failed.")
def rolling(seed: int, quick: bool, file: Path | None, check: bool) -> int:
    """Restart every worker, reload and replace the balancer under load: the bound is 0 failed requests."""
    cores = cores_for("one")[0], generator_core()
    require_writable("--json", file)
    console, timing = console_here(), QUICK if quick else StageTiming()
    found: list[Stage] = []
    was_stopped = run_session(timing, seed, cores, console, found)
    if file is not None:
        write_json("--json", file, [asdict(stage) | {"is_met": stage.is_met} for stage in found])
    met = [stage.is_met for stage in found]
    return exit_code(console, was_stopped, check, met, "Nothing was left running.")


def run_session(
    timing: StageTiming, seed: int, cores: tuple[int, int], console: Console, found: list[Stage]
) -> bool:
    """Run all stages; returns whether it was interrupted."""
    span = sum(seconds_of(name, timing) for name in STAGES)
    console.print(
        Text(
            f"{timing.rate:g} requests per second, three stages, about {span:g} s. Ours: {describe_build()}.\n"
        )
    )

    async def run_stages(folder: Path) -> None:
        allow_descriptors()
        for number, name in enumerate(STAGES):
            stage = await staged(name, timing, seed, cores, folder_in(folder, f"stage-{number}"))
            found.append(stage)
            print_verdicts(console, [Verdict(stage.is_met, in_words(stage))])

    return run_in_folder(run_stages, console, "under load")


def in_words(stage: Stage) -> str:
    """One stage as a line of text."""
    if stage.fault:
        return f"{stage.name}: {stage.fault}"
    kinds = ", ".join(f"{count} × {kind}" for kind, count in stage.failures.items())
    failed = f"{stage.failed} of {stage.requests} requests failed" + (f" ({kinds})" if kinds else "")
    wrong = f", {stage.wrong} executed twice, crossed or corrupted" if stage.wrong else ""
    why = f"; {stage.absence}" if stage.absence else ""
    return f"{stage.name}: {failed}{wrong} (bound 0); {stage.steps}{why}"
