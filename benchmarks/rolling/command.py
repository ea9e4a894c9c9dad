"""`python -m benchmarks rolling`: workers restarted, balancer reloaded and replaced, under load."""

from __future__ import annotations

from pathlib import Path

import click

from benchmarks.harness.options import CHECK, JSON, QUICK, SEED, proxy_and_load_cores
from benchmarks.harness.serving import folder_in
from benchmarks.rolling import stages
from benchmarks.rolling.stages import STAGES, Stage, StageTiming, seconds_of, staged
from experiments.platform.descriptors import open_files
from experiments.platform.session import BoundVerdict, Session

EPILOG = """\b
Examples:
  python -m benchmarks rolling                   about two and a half minutes
  python -m benchmarks rolling --quick           half a minute
  python -m benchmarks rolling --check           exit code 1 when a request failed
"""


@click.command(epilog=EPILOG)
@SEED
@QUICK
@JSON
@CHECK
def rolling(seed: int, quick: bool, file: Path | None, check: bool) -> int:
    """Restart every worker, reload and replace the balancer under load: the bound is 0 failed requests."""
    session, cores = Session(file, check), proxy_and_load_cores()
    timing, found = stages.QUICK if quick else StageTiming(), list[Stage]()
    span = sum(seconds_of(name, timing) for name in STAGES)
    session.introduce(f"{timing.rate:g} requests per second, {len(STAGES)} stages, about {span:g} s.")

    async def run_stages(folder: Path) -> None:
        open_files()
        for number, name in enumerate(STAGES):
            session.run_started(name)
            stage = await staged(name, timing, seed, cores, folder_in(folder, f"stage-{number}"))
            found.append(stage)
            session.run_ended(name, stage.steps, stage.fault)

    session.measure(run_stages, len(STAGES))
    return session.conclude([verdict(stage) for stage in found], stages=found)


def verdict(stage: Stage) -> BoundVerdict:
    is_met = not (stage.fault or stage.failed or stage.wrong)
    return BoundVerdict(stage.name, "0 failed requests", is_met, stage_in_words(stage))


def stage_in_words(stage: Stage) -> str:
    if stage.fault:
        return stage.fault
    kinds = ", ".join(f"{count} × {kind}" for kind, count in stage.failures.items())
    failed = f"{stage.failed} of {stage.requests} requests failed" + (f" ({kinds})" if kinds else "")
    wrong = f", {stage.wrong} executed twice, crossed or corrupted" if stage.wrong else ""
    return failed + wrong
