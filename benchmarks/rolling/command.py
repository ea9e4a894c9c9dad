"""`python -m benchmarks rolling`: workers restarted, balancer reloaded and replaced, under load.

Only parses options and prints; each stage is reported as soon as it has ended.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.status import Status
from rich.text import Text

from benchmarks.harness.descriptors import allow_descriptors
from benchmarks.harness.options import cores_for, generator_core
from benchmarks.harness.serving import folder_in
from benchmarks.rolling.stages import QUICK, STAGES, Stage, StageTiming, seconds_of, staged
from experiments.build import describe_build
from experiments.terminal import (
    BOUND_MISSED,
    STANDING,
    STOPPED,
    console_here,
    interruptible,
    print_stopped,
    print_verdict,
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
    if was_stopped:
        print_stopped(console, "Nothing was left running.")
        return STOPPED
    return BOUND_MISSED if check and any(stage.is_met is False for stage in found) else 0


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

    async def do_all() -> None:
        for number, name in enumerate(STAGES):
            found.append(await staged(name, timing, seed, cores, folder_in(Path(folder), f"stage-{number}")))
            last = found[-1]
            print_verdict(console, last.is_met, f"{STANDING[last.is_met]}: {in_words(last)}")

    status = Status("under load", console=console, refresh_per_second=2)
    with tempfile.TemporaryDirectory(prefix="steelyard-") as folder, status:
        allow_descriptors()
        try:
            asyncio.run(interruptible(do_all()))
        except (asyncio.CancelledError, KeyboardInterrupt):
            return True
    return False


def in_words(stage: Stage) -> str:
    """One stage as a line of text."""
    if stage.fault:
        return f"{stage.name}: {stage.fault}"
    kinds = ", ".join(f"{count} × {kind}" for kind, count in stage.failures.items())
    failed = f"{stage.failed} of {stage.requests} requests failed" + (f" ({kinds})" if kinds else "")
    wrong = f", {stage.wrong} executed twice, crossed or corrupted" if stage.wrong else ""
    why = f"; {stage.absence}" if stage.absence else ""
    return f"{stage.name}: {failed}{wrong} (bound 0); {stage.steps}{why}"
