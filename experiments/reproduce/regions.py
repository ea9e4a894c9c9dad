"""`experiments reproduce regions`: the source's questions about a forwarding balancer in front of three regions.

Only runs the parts in order and prints the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from experiments.reproduce.answers import answers, bounds, crowd_table, policy_table
from experiments.reproduce.evaluation import PLACES, QUICK, Evaluation, Setup, paired, spans_of
from experiments.reproduce.evaluation_runs import added, bottleneck, calm, crowds, machines, six
from experiments.reproduce.overload import crushes, file_limit
from experiments.reproduce.policy_runs import run_policies
from experiments.reproduce.session import Choices, Session, Verdict, run_session, with_choices

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPILOG = """\b
Examples:
  experiments reproduce regions                        five minutes, writes regions.png
  experiments reproduce regions --quick                under a minute
  experiments reproduce regions --check --plots results --json results/regions.json
"""


@click.command(epilog=EPILOG)
@with_choices
def regions(choices: Choices) -> int:
    """A forwarding balancer before two workers in each of three regions: limits, latencies, added latency, policies."""
    return run_session(RegionsReproduction(QUICK if choices.quick else Setup()), choices)


class RegionsReproduction(Session):
    """Session: collects the parts and prints the answers."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self._setup = setup
        self._found = Evaluation()

    def introduction(self) -> str:
        return introduction(self._setup)

    async def run_plan(self, seed: int, folder: Path) -> None:
        setup, found, progress = self._setup, self._found, self.status.update
        limit = file_limit()
        async with AsyncExitStack() as stack:
            workers = await six(stack)
            progress("calling each worker, one call after the other")
            await calm(setup, workers, found)
            progress(f"{setup.requests} requests to each worker, {setup.batch} at once")
            await machines(setup, workers, found)
        progress(f"up to {setup.crowds[-1]} at once before one worker")
        await crowds(setup, found)
        progress("calling straight and through units, by turns")
        await added(setup, seed, folder, found)
        progress("as much as a unit forwards")
        await bottleneck(setup, folder, found)
        progress(f"up to {setup.crushes[-1][0]} clients before a unit of {setup.descriptors} descriptors")
        await crushes(setup, folder, found, limit)
        await run_policies(setup, seed, found, progress)

    def present(self) -> list[Verdict]:
        found, console = self._found, self.console
        for question, answer in answers(found, self._setup):
            console.print(Text(question, style="bold"))
            console.print(Text(f"  {answer}"))
        if found.crowds:
            console.print(crowd_table(found.crowds, self._setup))
        if found.policy_runs:
            console.print(policy_table(found.policy_runs, self._setup))
        for words in found.skipped:
            console.print(Text(f"not measured: {words}", style="yellow"))
        return bounds(found, self._setup)

    def figures(self) -> Mapping[str, Callable[[], Figure]]:
        from experiments.reproduce.regions_figure import regions_figure

        return {"regions": partial(regions_figure, self._found)} if self._found.calm else {}

    def content(self) -> dict[str, Any]:
        found = self._found
        return {
            "setup": asdict(self._setup),
            "answers": [{"question": one, "answer": other} for one, other in answers(found, self._setup)],
            "calm": [asdict(one) for one in found.calm],
            "machines": {
                worker: {
                    "requests": len(samples),
                    "failed": int((~samples.ok).sum()),
                    "seconds": samples.span,
                }
                for worker, samples in found.machines
            },
            "crowds": [asdict(one) for one in found.crowds],
            "added": [asdict(one) for one in found.added],
            "added_ms": paired([one.unit - one.direct for one in found.added]) if found.added else None,
            "load": asdict(found.load) if found.load else None,
            "crushes": [asdict(one) | {"ended": None, "span": one.span} for one in found.crushes],
            "laps": [asdict(one) for one in found.policy_runs],
            "spans": spans_of(found.policy_runs),
            "skipped": found.skipped,
        }


def introduction(setup: Setup) -> str:
    return (
        f"{len(PLACES)} workers in three regions, one slot each, 19 to 21 ms of work; 350, 450 and 580 ms away.\n"
        f"Compressed in time: crowds before one worker {setup.crowd_scale:g}, clients before a unit short of "
        f"descriptors {setup.crush_scale:g}, policies {setup.policy_scale:g} (seconds for one of the source's).\n"
    )
