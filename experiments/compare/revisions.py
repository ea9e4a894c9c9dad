"""Measure two revisions of this repository in alternation, each in a working copy of its own.

Each revision's own code runs, workers and generator included, with the packages installed here. Blocks alternate in
random order, so that machine load affects both. Working copies are removed in every case; results stay.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from experiments.errors import BadInputError, FleetFailedError
from experiments.results.directory import Results, load_results, require_new
from experiments.run_data import Run

RAN = (0, 1)
"""Exit codes of `experiments run` that leave results; 1 is a failed threshold."""


@dataclass(frozen=True, slots=True)
class RevisionPlan:
    """What both revisions run. `options` are further ones of `experiments run`."""

    scenario: str
    blocks: int
    seed: int
    options: tuple[str, ...]
    out: Path


def measure(revisions: Sequence[str], plan: RevisionPlan, console: Console) -> list[Results]:
    """Run every block of both revisions; returns their results in order.

    Raises `BadInputError`, `FleetFailedError`.
    """
    require_new(plan.out)
    rng = random.Random(plan.seed)
    with working_copies(revisions) as copies:
        for block in range(plan.blocks):
            for side in rng.sample(range(len(revisions)), len(revisions)):
                console.print(Text(f"block {block + 1} of {plan.blocks}: {revisions[side]}", style="dim"))
                run_block(copies[side], plan, block, folder_of(plan, side, block))
    return [gathered(plan, side) for side in range(len(revisions))]


@contextmanager
def working_copies(revisions: Sequence[str]) -> Iterator[list[Path]]:
    """Detached worktree of each revision, removed at the end. Raises `BadInputError` for an unknown revision."""
    with tempfile.TemporaryDirectory(prefix="steelyard-revisions-") as name:
        copies = [Path(name) / f"{number}" for number in range(len(revisions))]
        try:
            for copy, revision in zip(copies, revisions, strict=True):
                git("worktree", "add", "--quiet", "--detach", str(copy), revision)
            yield copies
        finally:
            for copy in filter(Path.exists, copies):
                git("worktree", "remove", "--force", str(copy))


def git(*arguments: str) -> None:
    """Run git. Raises `BadInputError` with git's message."""
    ran = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise BadInputError(f"--rev: git {arguments[0]}: {ran.stderr.strip() or 'failed'}")


def run_block(copy: Path, plan: RevisionPlan, block: int, out: Path) -> None:
    """Run one block with the revision's own `experiments run`. Raises `FleetFailedError` with its complaint."""
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # `-P` makes modules come from PYTHONPATH, not from the current directory
    argv = [sys.executable, "-P", "-m", "experiments", "run", plan.scenario, *plan.options]
    argv += ["--blocks", "1", "--seed", str(plan.seed + block), "--out", str(out.resolve())]
    child = subprocess.Popen(argv, env=environment, cwd=copy, **pipes)
    try:
        output, errors = child.communicate()
    except KeyboardInterrupt:
        child.terminate()  # it stops its fleet before it ends
        child.communicate()
        raise
    if child.returncode not in RAN:
        raise FleetFailedError(f"{out.name}: {errors.strip() or output.strip()[-300:]}")


def folder_of(plan: RevisionPlan, side: int, block: int) -> Path:
    """Folder `out/first-000`, `out/second-000`, …"""
    return plan.out / f"{('first', 'second')[side]}-{block:03d}"


def gathered(plan: RevisionPlan, side: int) -> Results:
    """The blocks of one revision as one result set, numbered in the order of running."""
    blocks = [load_results(folder_of(plan, side, block)) for block in range(plan.blocks)]
    planned = tuple(
        run.model_copy(update={"block": block})
        for block, results in enumerate(blocks)
        for run in results.campaign.plan
    )
    runs = tuple(
        Run(run.facts.model_copy(update={"block": block}), run.samples)
        for block, results in enumerate(blocks)
        for run in results.runs
    )
    scenario = blocks[0].scenario.model_copy(update={"blocks": plan.blocks, "seed": plan.seed})
    campaign = blocks[0].campaign.model_copy(update={"scenario": scenario, "plan": planned})
    return Results(plan.out, campaign, runs)
