"""`experiments reproduce regions`: the source's questions about a forwarding balancer in front of three regions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table
from rich.text import Text

from experiments.platform.session import BoundVerdict
from experiments.platform.terminal import plain_table
from experiments.report import canvas
from experiments.report.palette import GREY, INK, entry_colours, worker_colours
from experiments.reproduce import regions_runs as runs
from experiments.reproduce.charts import BAD, GOOD, SOURCE_MARK, bar, label_bars
from experiments.reproduce.regions_runs import (
    OURS,
    PATIENCE,
    PLACES,
    QUICK,
    ROUND_TRIPS,
    SOURCE_POLICIES,
    RegionsPlan,
    Results,
    Unloaded,
)
from experiments.reproduce.reproduction import (
    Publication,
    ReportProgress,
    Reproduction,
    all_met,
    failures_verdict,
    figure_verdict,
    judged,
    ratio_of,
    written,
)
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
    duration = "six minutes"

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
        await runs.each_worker(plan, seed, results, progress)
        progress(f"up to {plan.concurrency[-1]} at once before one worker")
        await runs.growing_concurrency(plan, results)
        progress("calling directly and through proxies, in turns")
        await runs.added_latency(plan, seed, folder, results)
        progress("as many requests as a proxy forwards")
        await runs.proxy_throughput(plan, folder, results)
        progress(f"up to {plan.overloads[-1][0]} clients before a proxy of {plan.descriptors} descriptors")
        await runs.overloads(plan, seed, folder, results)
        await runs.policy_times(plan, seed, results, progress)

    def findings(self) -> Iterator[Table | Text | str]:
        plan, results = self._plan, self._results
        for question, answer in answers(results, plan):
            yield Text(question, style="bold")
            yield f"  {answer}"
        if results.concurrency:
            title = f"one worker, {plan.concurrency_requests} requests; s, in the source's time"
            rows = [
                (str(one.at_once), str(one.failed), f"{one.p50:.1f}", f"{one.max:.1f}")
                for one in results.concurrency
            ]
            yield plain_table(("at once", "failed", "p50", "max"), rows, title=title)
        if spans := middles(results):
            blocks = max(run.block for run in results.policy_runs) + 1
            title = f"{plan.policy_requests} requests, median of {blocks} blocks; s, in the source's time"
            lines = []
            for policy in (name for name in plan.policies if name in spans):
                failed = sum(run.failed for run in results.policy_runs if run.policy == policy)
                origin = "source's" if policy in SOURCE_POLICIES else "ours"
                rate = plan.policy_requests / spans[policy]
                lines.append((policy, f"{spans[policy]:.1f}", f"{rate:.0f}", str(failed), origin))
            heads = ("policy", "total", "req/s", "failed", "")
            yield plain_table(heads, lines, left=("",), title=title)
        for reason in results.skipped:
            yield Text(f"not measured: {reason}", style="yellow")

    def verdicts(self) -> Iterator[BoundVerdict]:
        """On the parts that were measured."""
        found = self._results
        if found.added:
            subject, bound = "latency that the proxy adds", "< 1 ms on average"
            yield figure_verdict(subject, bound, added_ms(found), IN_MS, most=MOST_ADDED)
        for one in found.overloads:
            clients = f"{one.at_once} clients at once, {one.descriptors} descriptors"
            yield failures_verdict(clients, one.failed, one.requests)
        for least in found.concurrency[:1]:
            subject = f"{least.at_once} at once before one worker"
            yield failures_verdict(subject, least.failed, least.requests)
        yield from rankings(found.spans)

    def figure(self) -> Figure:
        """Two rows of three panels, each with what the source found."""
        figure, panels = canvas.blank(7.4, 2, 3)
        drawings = {
            "Each worker alone, all at once": draw_workers,
            "One worker under concurrency": draw_concurrency,
            "Without load": draw_unloaded,
            "Latency that the proxy adds": draw_added,
            "Short of descriptors": draw_overloads,
            "All requests, by policy": draw_policies,
        }
        for axes, (title, draw) in zip(panels, drawings.items(), strict=True):
            axes.set_title(title, fontweight="bold")
            draw(axes, self._results)
        return figure

    def content(self) -> dict[str, Any]:
        found = self._results
        return {
            "plan": self._plan,
            "answers": [{"question": one, "answer": other} for one, other in answers(found, self._plan)],
            "unloaded": found.unloaded,
            "workers": {
                worker: {"requests": len(one), "failed": runs.failed_in(one), "seconds": one.span}
                for worker, one in found.workers
            },
            "concurrency": found.concurrency,
            "added": found.added,
            "added_ms": added_ms(found) if found.added else None,
            "throughput": found.throughput,
            "overloads": [asdict(one) | {"ended": None, "span": one.span} for one in found.overloads],
            "policy_runs": found.policy_runs,
            "policy_spans": middles(found),
            "skipped": found.skipped,
        }


MOST_ADDED = 1.0
"""Bound on the median latency in milliseconds that the balancer adds; the source's added 30 to 35."""

IN_MS = "{:.2f} ms".format

SLOWEST = ("random (batch 10)", "single-region")
RANKS = dict(zip(SLOWEST, ("slowest", "second"), strict=True))
"""The source's two slowest policies, in order."""

SOURCE_PLATEAU = 1.6
"""Seconds that a request took in the source's plot after the first hundred."""

EQUAL_RATIO = 1.05
"""Largest ratio to the best of the source's policies that counts as equal."""


def answers_on_workers(found: Results) -> Iterator[tuple[str, str]]:
    if found.concurrency and found.workers:
        rate = median(len(samples) / samples.span for _, samples in found.workers)
        served = [one.at_once for one in found.concurrency if not one.failed]
        failed = [one for one in found.concurrency if one.failed]
        most = f"{max(served)} at once are fine" if served else "at no concurrency did all succeed"
        for one in failed[:1]:
            most += f", {one.at_once} are not: {one.failed} of {one.requests} waited for {PATIENCE:g} s"
        yield (
            "How many requests does one machine take?",
            f"{rate:.1f} per second: one slot, 20 ms each. {most}. (Source: 400 to 500 at once are fine, 1500 end in "
            "503 after 30 s.)",
        )
    if found.unloaded:
        yield (
            "What is the latency of each region?",
            f"{by_region(found.unloaded, lambda one: one.latency)}. (Source: emea 350, us 450, asia 580 ms, which is "
            "what is emulated.)",
        )
        service = [1e3 * seconds for one in found.unloaded for seconds in one.service]
        yield (
            "How long is the computation?",
            f"{min(service):.1f} to {max(service):.1f} ms, as the workers report it, whatever the load. (Source: 19 to "
            "21 ms.)",
        )
        took = by_region(found.unloaded, lambda one: median(one.took))
        yield "What is the response time without load?", f"{took}: latency and computation."


def by_region(unloaded: Sequence[Unloaded], seconds: Callable[[Unloaded], float]) -> str:
    each = {one.region: 1e3 * seconds(one) for one in unloaded}
    return ", ".join(f"{region} {millis:.0f} ms" for region, millis in each.items())


def answers(found: Results, plan: RegionsPlan) -> Iterator[tuple[str, str]]:
    """Pairs of question and answer, on workers first, for the parts that were measured."""
    yield from answers_on_workers(found)
    if found.added:
        fresh = average([1e3 * (one.without_keep_alive - one.direct) for one in found.added]).ratio
        yield (
            "What latency does the proxy add?",
            f"{written(added_ms(found), IN_MS)} on average, paired. One that opens a connection for every request "
            f"adds {fresh:.1f} ms where the round trip takes 32 ms. (Source: 30 to 35 ms, a connection each.)",
        )
    if one := found.throughput:
        cost = "" if one.cost is None else f", {1e6 * one.cost:.0f} µs of CPU time each"
        yield (
            "When does the proxy become the bottleneck?",
            f"At {one.rate:.0f} requests per second{cost}: beyond {one.rate / 50:.0f} such machines. Then "
            "`processes = N` shares the port among N of them; after that, several proxies. (Source: its proxy crashed "
            "first.)",
        )
    if found.unloaded:
        rest = [1e3 * worker.platform for worker in found.unloaded]
        yield (
            "What latency does the platform add?",
            f"{min(rest):.1f} to {max(rest):.1f} ms are neither distance nor work: kernel, loopback, Python on both "
            "ends. There is no platform's router here. (Source: 5 to 10 ms.)",
        )
    if found.overloads:
        each = "; ".join(
            f"{run.at_once} clients at once before {run.descriptors} descriptors: {run.requests} requests, "
            f"{run.failed} failed, {run.span:.0f} s"
            for run in found.overloads
        )
        yield (
            "What are the downsides of a single proxy?",
            f"It is one more hop, and all fail with it. It should not fail first: {each}. Clients without a descriptor "
            "wait in the kernel. (Source: crashed at 10 000 requests, 1000 at once, ulimit -n 1024.)",
        )
    if spans := middles(found):
        order = sorted(spans, key=lambda policy: spans[policy])
        first, last = order[0], order[-1]
        yield (
            "Which policy is fastest?",
            f"{first}, {spans[first]:.1f} s for {plan.policy_requests} requests; {last} is last with {spans[last]:.1f} "
            "s. (Source: random with a batch of 10 last, EMEA alone before it: it is nearest, and its two workers "
            "saturate.)",
        )


def added_ms(found: Results) -> Interval:
    """Mean latency that the proxy adds, with its interval over blocks, in milliseconds."""
    return average([1e3 * (one.proxy - one.direct) for one in found.added])


def middles(found: Results) -> dict[str, float]:
    """Median seconds over blocks by policy."""
    return {policy: median(spans) for policy, spans in found.spans.items()}


def rankings(spans: dict[str, list[float]]) -> Iterator[BoundVerdict]:
    """Verdicts on the order of the source's policies, and of `OURS` against the best of them, paired by block."""
    theirs = {policy: spans[policy] for policy in SOURCE_POLICIES if policy in spans}
    blocks = min(map(len, spans.values()), default=0)
    if len(theirs) < len(SOURCE_POLICIES) or OURS not in spans or not blocks:
        return
    slowest, second = SLOWEST
    order = sorted(theirs, key=lambda policy: -median(theirs[policy]))
    rest = [
        max(theirs[policy][block] for policy in theirs if policy not in SLOWEST) for block in range(blocks)
    ]
    pairs = ((theirs[slowest], theirs[second]), (theirs[second], rest))
    yield BoundVerdict(
        "slowest of the source's policies",
        ", ".join(SLOWEST),
        all_met(judged(ratio_of(above, below), least=1.0) for above, below in pairs),
        ", ".join(order[:2]),
    )
    best = [min(values[block] for values in theirs.values()) for block in range(blocks)]
    limit = f"≤ {EQUAL_RATIO:g} × the best of the source's policies, {median(best):.1f} s"
    ratio = ratio_of(spans[OURS], best)
    shown = f"{median(spans[OURS]):.1f} s, {written(ratio, '{:.2f} ×'.format)}"
    yield figure_verdict(OURS, limit, ratio, shown, most=EQUAL_RATIO)


def draw_workers(axes: Axes, found: Results) -> None:
    """Response time of each request directly to each worker, as in the source's plot."""
    for (worker, samples), colour in zip(found.workers, worker_colours(PLACES), strict=False):
        number, taken = samples.sequence[samples.ok], samples.service_time[samples.ok]
        axes.plot(number, taken, ".", markersize=2, color=colour, label=worker, rasterized=True)
    axes.axhline(
        SOURCE_PLATEAU, color=GREY, linewidth=1.2, linestyle="--", label="source, after the first 100"
    )
    axes.set(xlabel="request number", ylabel="s")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7, ncols=2, markerscale=4, loc="lower right")


def draw_concurrency(axes: Axes, found: Results) -> None:
    """Longest and median latency, and failures, by concurrency."""
    at_once = [one.at_once for one in found.concurrency]
    axes.plot(at_once, [one.max for one in found.concurrency], "o-", color=INK, label="longest")
    axes.plot(at_once, [one.p50 for one in found.concurrency], "o--", color=GOOD, label="median")
    axes.axhline(PATIENCE, color=BAD, linewidth=1.2)
    note(axes, "source: 503 at 1500", 0, PATIENCE, (3, 3), BAD)
    axes.axvspan(400, 500, color=GREY, alpha=0.3, linewidth=0, label="source: fine")
    for one in found.concurrency:
        if one.failed:
            note(axes, f"{one.failed / one.requests:.0%} failed", one.at_once, 0, (0, 6), BAD, ha="right")
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1.15 * PATIENCE)
    axes.set(xlabel="requests at once", ylabel="s, in the source's time")
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(0.0, 0.84))


def note(
    axes: Axes, text: str, x: float, y: float, offset: tuple[float, float], colour: str, **style: Any
) -> None:
    """Small text, `offset` points away from a point of the data."""
    axes.annotate(text, (x, y), offset, textcoords="offset points", color=colour, fontsize=8, **style)


def draw_unloaded(axes: Axes, found: Results) -> None:
    """Components of a call without load: network delay, computation, rest; the source's latency of each region."""
    rows = list(reversed(found.unloaded))
    network = np.array([1e3 * ROUND_TRIPS[one.region] for one in rows])
    work = np.array([1e3 * float(np.median(one.service)) for one in rows])
    rest = np.array([max(0.0, 1e3 * one.platform) for one in rows])
    at = range(len(rows))
    for left, width, colour, label in (
        (0 * network, network, GREY, "round trip"),
        (network, work, GOOD, "computation"),
        (network + work, rest, BAD, "rest"),
    ):
        axes.barh(at, width, left=left, height=0.7, color=colour, label=label)
    axes.plot(network, at, **SOURCE_MARK, label="source")
    for y, one in zip(at, rows, strict=True):
        total = 1e3 * float(np.median(one.took))
        note(axes, f"{total:.0f}", total, y, (4, 0), INK, va="center")
    label_bars(axes, [one.worker for one in rows], "ms")
    axes.set_xlim(0, 720)
    axes.set_ylim(-0.6, len(rows) + 0.9)  # room for the legend
    axes.legend(fontsize=7, loc="upper left", handlelength=1, ncols=4, columnspacing=0.8, handletextpad=0.4)


def draw_added(axes: Axes, found: Results) -> None:
    ours = [1e3 * (one.proxy - one.direct) for one in found.added]
    fresh = [1e3 * (one.without_keep_alive - one.direct) for one in found.added]
    rng = np.random.default_rng(1)
    for at, values, colour in ((0, ours, GOOD), (1, fresh, BAD)):
        x = at + rng.uniform(-0.15, 0.15, len(values))
        axes.plot(x, values, "o", color=colour, markersize=3, alpha=0.6)
        if values:
            middle = float(np.mean(values))
            axes.plot([at - 0.25, at + 0.25], [middle, middle], color=INK, linewidth=2)
            note(axes, f"{middle:.2f} ms", at + 0.25, middle, (3, 0), INK, va="center")
    axes.axhspan(30, 35, color=GREY, alpha=0.3, linewidth=0)
    note(axes, "source", -0.45, 35, (0, 2), GREY)
    axes.set_xticks([0, 1], ["ours", "a connection\neach"])
    axes.set_xlim(-0.5, 1.8)
    axes.set_ylim(bottom=min(0.0, *ours, 0.0))
    axes.set_ylabel("ms above a direct call")


def draw_overloads(axes: Axes, found: Results) -> None:
    """Completed requests over time."""
    for one, colour in zip(found.overloads, (GOOD, BAD), strict=False):
        ended = np.sort(np.array(one.ended))
        label = f"{one.at_once} at once, {one.failed} failed"
        axes.plot(ended, np.arange(1, len(ended) + 1), color=colour, linewidth=1.8, label=label)
    axes.set(xlabel="seconds", ylabel="requests answered")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    if found.overloads:
        most = max(one.requests for one in found.overloads)
        axes.set_ylim(top=1.4 * most)  # room for the legend
        title = f"ulimit -n {found.overloads[0].descriptors}\n(source: crashed, 1000 at once, 1024)"
        axes.legend(fontsize=7, loc="upper left", title=title, title_fontsize=7)


def draw_policies(axes: Axes, found: Results) -> None:
    """Total seconds of all requests by policy; the source gives an order only."""
    spans = dict(sorted(middles(found).items(), key=lambda pair: -pair[1]))
    for at, (policy, span) in enumerate(spans.items()):
        rank = RANKS.get(policy)
        text = f"{span:.1f}" if rank is None else f"{span:.1f} (source: {rank})"
        bar(axes, at, span, text, entry_colours([policy.partition(",")[0]])[0])
    names = [policy if policy in SOURCE_POLICIES else f"{policy} (ours)" for policy in spans]
    label_bars(axes, names, "s, in the source's time")
    axes.set_xlim(0, 1.6 * max(spans.values(), default=1.0))
