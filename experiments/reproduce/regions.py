"""`experiments reproduce regions`: the source's questions about a forwarding balancer in front of three regions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from experiments.reproduce.mean_of_blocks import mean_ms
from experiments.reproduce.regions_answers import answers, bounds, concurrency_table, policy_table
from experiments.reproduce.regions_cases import PLACES, QUICK, Plan, Results, policy_spans
from experiments.reproduce.regions_overload import overloads
from experiments.reproduce.regions_runs import (
    added_latency,
    all_workers,
    growing_concurrency,
    loaded_workers,
    policy_times,
    proxy_throughput,
    unloaded_latency,
)
from experiments.reproduce.reproduction import Document, ReportProgress, Reproduction, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Regions(Reproduction):
    """The source's questions, one part of the measurement after the other."""

    name = "regions"
    document = Document(
        "Performance evaluation report: a forwarding unit before regional workers on Heroku",
        "a student's course work, unpublished",
    )
    summary = (
        "A balancer before two workers in each of three regions: limits, latencies, added latency, policies."
    )
    duration = "five minutes"

    def __init__(self, is_quick: bool) -> None:
        self._plan = QUICK if is_quick else Plan()
        self._results = Results()

    def introduction(self) -> str:
        plan = self._plan
        return (
            f"{len(PLACES)} workers in three regions, one slot each, 19 to 21 ms of work; 350, 450 and 580 ms away.\n"
            f"Compressed in time: many requests before one worker {plan.concurrency_scale:g}, clients before a proxy "
            f"short of descriptors {plan.overload_scale:g}, policies {plan.policy_scale:g} (seconds for one of the "
            "source's).\n"
        )

    async def measure(self, seed: int, folder: Path, progress: ReportProgress) -> None:
        plan, results = self._plan, self._results
        async with AsyncExitStack() as stack:
            workers = await all_workers(stack)
            progress("calling each worker, one call after the other")
            await unloaded_latency(plan, workers, results)
            progress(f"{plan.requests} requests to each worker, {plan.batch} at once")
            await loaded_workers(plan, workers, results)
        progress(f"up to {plan.concurrency[-1]} at once before one worker")
        await growing_concurrency(plan, results)
        progress("calling directly and through proxies, in turns")
        await added_latency(plan, seed, folder, results)
        progress("as many requests as a proxy forwards")
        await proxy_throughput(plan, folder, results)
        progress(f"up to {plan.overloads[-1][0]} clients before a proxy of {plan.descriptors} descriptors")
        await overloads(plan, folder, results)
        await policy_times(plan, seed, results, progress)

    def findings(self) -> Sequence[Table | Text | str]:
        results, found = self._results, list[Table | Text | str]()
        for question, answer in answers(results, self._plan):
            found += [Text(question, style="bold"), f"  {answer}"]
        if results.concurrency:
            found.append(concurrency_table(results.concurrency, self._plan))
        if results.policy_runs:
            found.append(policy_table(results.policy_runs, self._plan))
        return [*found, *(Text(f"not measured: {reason}", style="yellow") for reason in results.skipped)]

    def verdicts(self) -> list[Verdict]:
        return list(bounds(self._results))

    def figure(self) -> Figure | None:
        from experiments.reproduce.regions_figure import regions_figure

        return regions_figure(self._results) if self._results.unloaded else None

    def content(self) -> dict[str, Any]:
        found = self._results
        added = [one.proxy - one.direct for one in found.added]
        return {
            "plan": asdict(self._plan),
            "answers": [{"question": one, "answer": other} for one, other in answers(found, self._plan)],
            "unloaded": [asdict(one) for one in found.unloaded],
            "workers": {
                worker: {
                    "requests": len(samples),
                    "failed": int((~samples.ok).sum()),
                    "seconds": samples.span,
                }
                for worker, samples in found.workers
            },
            "concurrency": [asdict(one) for one in found.concurrency],
            "added": [asdict(one) for one in found.added],
            "added_ms": mean_ms(added) if added else None,
            "throughput": asdict(found.throughput) if found.throughput else None,
            "overloads": [asdict(one) | {"ended": None, "span": one.span} for one in found.overloads],
            "policy_runs": [asdict(one) for one in found.policy_runs],
            "policy_spans": policy_spans(found.policy_runs),
            "skipped": found.skipped,
        }
