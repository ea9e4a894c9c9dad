"""`experiments reproduce regions`: the source's questions about a forwarding balancer in front of three regions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.figure import Figure
from rich.table import Table
from rich.text import Text

from experiments.platform.session import BoundVerdict
from experiments.platform.terminal import plain_table
from experiments.reproduce import regions_runs as runs
from experiments.reproduce.regions_cases import (
    OURS,
    PATIENCE,
    PLACES,
    QUICK,
    SOURCE_POLICIES,
    Concurrency,
    PolicyRun,
    RegionsPlan,
    Results,
    Throughput,
    Unloaded,
    policy_spans,
)
from experiments.reproduce.reproduction import Publication, ReportProgress, Reproduction
from experiments.stats.comparison import Interval, average


class Regions(Reproduction):
    """The source's questions, one part of the measurement after the other."""

    name = "regions"
    document = Publication(
        "Performance evaluation report: a forwarding unit before regional workers on Heroku",
        "a student's course work, unpublished",
    )
    summary = (
        "A balancer before two workers in each of three regions: limits, latencies, added latency, policies."
    )
    duration = "five minutes"

    def __init__(self, is_quick: bool) -> None:
        self._plan = QUICK if is_quick else RegionsPlan()
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
            workers = await runs.all_workers(stack)
            progress("calling each worker, one call after the other")
            await runs.unloaded_latency(plan, workers, results)
            progress(f"{plan.requests} requests to each worker, {plan.batch} at once")
            await runs.loaded_workers(plan, workers, results)
        progress(f"up to {plan.concurrency[-1]} at once before one worker")
        await runs.growing_concurrency(plan, results)
        progress("calling directly and through proxies, in turns")
        await runs.added_latency(plan, seed, folder, results)
        progress("as many requests as a proxy forwards")
        await runs.proxy_throughput(plan, folder, results)
        progress(f"up to {plan.overloads[-1][0]} clients before a proxy of {plan.descriptors} descriptors")
        await runs.overloads(plan, folder, results)
        await runs.policy_times(plan, seed, results, progress)

    def findings(self) -> Sequence[Table | Text | str]:
        results, found = self._results, list[Table | Text | str]()
        for question, answer in answers(results, self._plan):
            found += [Text(question, style="bold"), f"  {answer}"]
        if results.concurrency:
            found.append(concurrency_table(results.concurrency, self._plan))
        if results.policy_runs:
            found.append(policy_table(results.policy_runs, self._plan))
        return [*found, *(Text(f"not measured: {reason}", style="yellow") for reason in results.skipped)]

    def verdicts(self) -> list[BoundVerdict]:
        return list(bounds(self._results))

    def figure(self) -> Figure | None:
        from experiments.reproduce.regions_figure import regions_figure

        return regions_figure(self._results) if self._results.unloaded else None

    def content(self) -> dict[str, Any]:
        found = self._results
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
            "added_ms": asdict(added_ms(found)) if found.added else None,
            "throughput": asdict(found.throughput) if found.throughput else None,
            "overloads": [asdict(one) | {"ended": None, "span": one.span} for one in found.overloads],
            "policy_runs": [asdict(one) for one in found.policy_runs],
            "policy_spans": policy_spans(found.policy_runs),
            "skipped": found.skipped,
        }


MOST_ADDED = 1.0
"""Bound on the median latency in milliseconds that the balancer adds; the source's added 30 to 35."""

EQUAL_RATIO = 1.05
"""Largest ratio to the best of the source's policies that counts as equal."""


def answers(found: Results, plan: RegionsPlan) -> Iterator[tuple[str, str]]:
    """Pairs of question and answer, for the parts that were measured."""
    if found.concurrency and found.workers:
        yield "How many requests does one machine take?", one_machine(found)
    if found.unloaded:
        each = by_region(found.unloaded, lambda one: one.latency)
        yield (
            "What is the latency of each region?",
            f"{each}. (Source: emea 350, us 450, asia 580 ms, which is what is emulated.)",
        )
        yield "How long is the computation?", computation(found.unloaded)
        took = by_region(found.unloaded, lambda one: median(one.took))
        yield "What is the response time without load?", f"{took}: latency and computation."
    if found.added:
        yield "What latency does the proxy add?", added(found)
    if found.throughput is not None:
        yield "When does the proxy become the bottleneck?", bottleneck(found.throughput)
    if found.unloaded:
        yield "What latency does the platform add?", platform(found.unloaded)
    if found.overloads:
        yield "What are the downsides of a single proxy?", downsides(found)
    if found.policy_runs:
        yield "Which policy is fastest?", fastest(found.policy_runs, plan)


def one_machine(found: Results) -> str:
    rate = median(len(samples) / samples.span for _, samples in found.workers)
    served = [one.at_once for one in found.concurrency if not one.failed]
    failed = [one for one in found.concurrency if one.failed]
    most = f"{max(served)} at once are fine" if served else "at no concurrency did all succeed"
    end = ""
    if failed:
        first = failed[0]
        end = f", {first.at_once} are not: {first.failed} of {first.requests} waited for {PATIENCE:g} s"
    return (
        f"{rate:.1f} per second: one slot, 20 ms each. {most}{end}. (Source: 400 to 500 at once are fine, 1500 end in "
        f"503 after 30 s.)"
    )


def by_region(unloaded: Sequence[Unloaded], seconds: Callable[[Unloaded], float]) -> str:
    each = {one.region: 1e3 * seconds(one) for one in unloaded}
    return ", ".join(f"{region} {millis:.0f} ms" for region, millis in each.items())


def computation(unloaded: Sequence[Unloaded]) -> str:
    service = [seconds for one in unloaded for seconds in one.service]
    return (
        f"{1e3 * min(service):.1f} to {1e3 * max(service):.1f} ms, as the workers report it, whatever the load. "
        "(Source: 19 to 21 ms.)"
    )


def added(found: Results) -> str:
    fresh = average([1e3 * (one.without_keep_alive - one.direct) for one in found.added]).ratio
    return (
        f"{in_ms_with_ends(added_ms(found))} on average, paired. One that opens a connection for every request "
        f"adds {fresh:.1f} ms where the round trip takes 32 ms. (Source: 30 to 35 ms, a connection each.)"
    )


def added_ms(found: Results) -> Interval:
    """Mean latency that the proxy adds, with its interval over blocks, in milliseconds."""
    return average([1e3 * (one.proxy - one.direct) for one in found.added])


def in_ms_with_ends(found: Interval) -> str:
    return f"{found.ratio:.2f} ms [{found.low:.2f}, {found.high:.2f}]"


def bottleneck(found: Throughput) -> str:
    cost = "" if found.cost is None else f", {1e6 * found.cost:.0f} µs of CPU time each"
    return (
        f"At {found.rate:.0f} requests per second{cost}: beyond {found.rate / 50:.0f} such machines. Then "
        "`processes = N` shares the port among N of them; after that, several proxies. (Source: its proxy crashed "
        "first.)"
    )


def platform(unloaded: Sequence[Unloaded]) -> str:
    each = [1e3 * one.platform for one in unloaded]
    return (
        f"{min(each):.1f} to {max(each):.1f} ms are neither distance nor work: kernel, loopback, Python on both ends. "
        "There is no platform's router here. (Source: 5 to 10 ms.)"
    )


def downsides(found: Results) -> str:
    each = "; ".join(
        f"{one.at_once} clients at once before {one.descriptors} descriptors: {one.requests} requests, {one.failed} "
        f"failed, {one.span:.0f} s"
        for one in found.overloads
    )
    return (
        f"It is one more hop, and all fail with it. It should not fail first: {each}. Clients without a descriptor "
        "wait in the kernel. (Source: crashed at 10 000 requests, 1000 at once, ulimit -n 1024.)"
    )


def fastest(policy_runs: Sequence[PolicyRun], plan: RegionsPlan) -> str:
    spans = policy_spans(policy_runs)
    order = sorted(spans, key=lambda policy: spans[policy])
    return (
        f"{order[0]}, {spans[order[0]]:.1f} s for {plan.policy_requests} requests; {order[-1]} is last with "
        f"{spans[order[-1]]:.1f} s. (Source: random with a batch of 10 last, EMEA alone before it: it is nearest, and "
        "its two workers saturate.)"
    )


def concurrency_table(found: Sequence[Concurrency], plan: RegionsPlan) -> Table:
    """Table of latencies and failures by number of concurrent requests to one worker."""
    title = f"one worker, {plan.concurrency_requests} requests; s, in the source's time"
    rows = [(str(one.at_once), str(one.failed), f"{one.p50:.1f}", f"{one.max:.1f}") for one in found]
    return plain_table(("at once", "failed", "p50", "max"), rows, title=title)


def policy_table(policy_runs: Sequence[PolicyRun], plan: RegionsPlan) -> Table:
    """Table of the total seconds by policy: the source's five first."""
    blocks = max(run.block for run in policy_runs) + 1
    title = f"{plan.policy_requests} requests, median of {blocks} blocks; s, in the source's time"
    spans, rows = policy_spans(policy_runs), []
    for policy in (name for name in plan.policies if name in spans):
        failed = sum(run.failed for run in policy_runs if run.policy == policy)
        origin = "source's" if policy in SOURCE_POLICIES else "ours"
        rate = plan.policy_requests / spans[policy]
        rows.append((policy, f"{spans[policy]:.1f}", f"{rate:.0f}", str(failed), origin))
    return plain_table(("policy", "total", "req/s", "failed", ""), rows, left=("",), title=title)


def bounds(found: Results) -> Iterator[BoundVerdict]:
    """Verdicts on the bounds, for the parts that were measured."""
    if found.added:
        ours = added_ms(found)
        is_met = True if ours.high < MOST_ADDED else False if ours.low >= MOST_ADDED else None
        yield BoundVerdict("latency that the proxy adds", "< 1 ms on average", is_met, in_ms_with_ends(ours))
    for one in found.overloads:
        clients = f"{one.at_once} clients at once, {one.descriptors} descriptors"
        yield BoundVerdict(clients, "none fails", one.failed == 0, f"{one.failed} failed")
    if found.concurrency:
        least = found.concurrency[0]
        yield BoundVerdict(
            f"{least.at_once} at once", "are fine", least.failed == 0, f"{least.failed} failed"
        )
    yield from rankings(policy_spans(found.policy_runs))


def rankings(spans: dict[str, float]) -> Iterator[BoundVerdict]:
    """Verdicts on the order of the source's policies, and of `OURS` against the best of them."""
    theirs = {policy: spans[policy] for policy in SOURCE_POLICIES if policy in spans}
    if len(theirs) < len(SOURCE_POLICIES) or OURS not in spans:
        return
    slowest = sorted(theirs, key=lambda policy: -theirs[policy])[:2]
    best = min(theirs.values())
    expected = ["random (batch 10)", "single-region"]
    yield BoundVerdict(
        "slowest of the source's policies", ", ".join(expected), slowest == expected, ", ".join(slowest)
    )
    limit = f"≤ {EQUAL_RATIO:g} × the best of the source's policies, {best:.1f} s"
    yield BoundVerdict(OURS, limit, spans[OURS] <= EQUAL_RATIO * best, f"{spans[OURS]:.1f} s")
