"""Answers to the source's questions, in its order, with its own results; and the bounds.

Texts and tables made from an `Evaluation`; a part that was not measured has no answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from rich.table import Table

from experiments.reproduce.evaluation import (
    FIVE,
    OURS,
    PATIENCE,
    Calm,
    Crowd,
    Evaluation,
    PolicyRun,
    Setup,
    paired,
    spans_of,
)
from experiments.reproduce.session import Verdict

MOST_ADDED = 1.0
"""Bound on the median latency in milliseconds that the balancer adds; the source's added 30 to 35."""

EQUAL = 1.05
"""Largest ratio to the best of the five policies that counts as equal."""


def answers(found: Evaluation, setup: Setup) -> Iterator[tuple[str, str]]:
    """Pairs of question and answer, for the parts that were measured."""
    if found.crowds and found.machines:
        yield "How many requests does one machine take?", one_machine(found)
    if found.calm:
        yield "What is the latency of each region?", latencies(found.calm)
        yield "How long is the computation?", computation(found.calm)
        yield "What is the response time without load?", without_load(found.calm)
    if found.added:
        yield "What latency does the forwarding unit add?", added(found)
    if found.load is not None:
        yield "When does the unit become the bottleneck?", bottleneck(found)
    if found.calm:
        yield "What latency does the platform add?", platform(found.calm)
    if found.crushes:
        yield "What are the downsides of a single unit?", downsides(found)
    if found.policy_runs:
        yield "Which policy is fastest?", fastest(found.policy_runs, setup)


def one_machine(found: Evaluation) -> str:
    rate = median(len(samples) / samples.span for _, samples in found.machines)
    fine = [crowd.at_once for crowd in found.crowds if not crowd.failed]
    lost = [crowd for crowd in found.crowds if crowd.failed]
    most = f"{max(fine)} at once are fine" if fine else "none of the crowds was served whole"
    end = (
        f", {lost[0].at_once} are not: {lost[0].failed} of {lost[0].requests} waited for {PATIENCE:g} s"
        if lost
        else ""
    )
    return (
        f"{rate:.1f} per second: one slot, 20 ms each. {most}{end}. (Source: 400 to 500 at once are fine, 1500 end in "
        f"503 after 30 s.)"
    )


def latencies(calm: Sequence[Calm]) -> str:
    each = {one.region: 1e3 * one.latency for one in calm}
    words = ", ".join(f"{region} {millis:.0f} ms" for region, millis in each.items())
    return f"{words}. (Source: emea 350, us 450, asia 580 ms, which is what is emulated.)"


def computation(calm: Sequence[Calm]) -> str:
    worked = [seconds for one in calm for seconds in one.worked]
    return (
        f"{1e3 * min(worked):.1f} to {1e3 * max(worked):.1f} ms, by the workers' own account, whatever the load. "
        "(Source: 19 to 21 ms.)"
    )


def without_load(calm: Sequence[Calm]) -> str:
    each = {one.region: 1e3 * median(one.took) for one in calm}
    return (
        ", ".join(f"{region} {millis:.0f} ms" for region, millis in each.items())
        + ": latency and computation."
    )


def added(found: Evaluation) -> str:
    ours, (low, high) = paired([one.unit - one.direct for one in found.added])
    fresh, _ = paired([one.fresh - one.direct for one in found.added])
    return (
        f"{ours:.2f} ms at the median [{low:.2f}, {high:.2f}], paired. One that opens a connection for every request "
        f"adds {fresh:.1f} ms where the way there and back takes 32 ms. (Source: 30 to 35 ms, a connection each.)"
    )


def bottleneck(found: Evaluation) -> str:
    assert found.load is not None
    load = found.load
    machines = load.rate / 50
    cost = "" if load.cost is None else f", {1e6 * load.cost:.0f} µs of processor time each"
    return (
        f"At {load.rate:.0f} requests per second{cost}: beyond {machines:.0f} such machines. Then "
        "`processes = N` shares the port among N of them; after that, several units. (Source: its unit crashed first.)"
    )


def platform(calm: Sequence[Calm]) -> str:
    each = [1e3 * one.platform for one in calm]
    return (
        f"{min(each):.1f} to {max(each):.1f} ms are neither the way nor work: kernel, loopback, Python on both ends. "
        "There is no platform's router here. (Source: 5 to 10 ms.)"
    )


def downsides(found: Evaluation) -> str:
    words = [
        f"{one.at_once} clients at once before {one.descriptors} descriptors: {one.requests} requests, {one.failed} "
        f"failed, {one.span:.0f} s"
        for one in found.crushes
    ]
    return (
        f"It is one more hop, and all fail with it. It should not fail first: {'; '.join(words)}. Who finds no "
        "descriptor waits in the kernel. (Source: crashed at 10 000 requests, 1000 at once, ulimit -n 1024.)"
    )


def fastest(policy_runs: Sequence[PolicyRun], setup: Setup) -> str:
    spans = spans_of(policy_runs)
    order = sorted(spans, key=lambda label: spans[label])
    return (
        f"{order[0]}, {spans[order[0]]:.1f} s for {setup.policy_requests} requests; {order[-1]} is last with "
        f"{spans[order[-1]]:.1f} s. (Source: random with a batch of 10 last, EMEA alone before it: it is nearest, and "
        "its two workers saturate.)"
    )


def crowd_table(crowds: Sequence[Crowd], setup: Setup) -> Table:
    """Table of latencies and failures by number of concurrent requests to one worker."""
    table = Table(title=f"one worker, {setup.crowd_requests} requests; s, in the source's time")
    for name in ("at once", "failed", "p50", "max"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in crowds:
        table.add_row(str(one.at_once), str(one.failed), f"{one.p50:.1f}", f"{one.most:.1f}")
    return table


def policy_table(policy_runs: Sequence[PolicyRun], setup: Setup) -> Table:
    """Table of the total seconds by policy: the source's five first."""
    blocks = max(run.block for run in policy_runs) + 1
    table = Table(
        title=f"{setup.policy_requests} requests, median of {blocks} blocks; s, in the source's time"
    )
    for name in ("policy", "all took", "req/s", "failed", ""):
        table.add_column(name, justify="left" if name in ("policy", "") else "right", no_wrap=True)
    spans = spans_of(policy_runs)
    for label in (name for name in setup.labels if name in spans):
        failed = sum(run.failed for run in policy_runs if run.label == label)
        whose = "source's" if label in FIVE else "ours"
        rate = setup.policy_requests / spans[label]
        table.add_row(label, f"{spans[label]:.1f}", f"{rate:.0f}", str(failed), whose)
    return table


def bounds(found: Evaluation, setup: Setup) -> list[Verdict]:
    """Verdicts on the bounds, for the parts that were measured."""
    verdicts = []
    if found.added:
        ours, (low, high) = paired([one.unit - one.direct for one in found.added])
        is_met = True if high < MOST_ADDED else False if low >= MOST_ADDED else None
        verdicts.append(
            Verdict(is_met, f"the unit adds {ours:.2f} ms at p50 [{low:.2f}, {high:.2f}], bound 1 ms")
        )
    for crush in found.crushes:
        words = f"{crush.at_once} clients at once, {crush.descriptors} descriptors: {crush.failed} failed"
        verdicts.append(Verdict(crush.failed == 0, words))
    if found.crowds:
        verdicts.append(Verdict(found.crowds[0].failed == 0, f"{found.crowds[0].at_once} at once are fine"))
    return [*verdicts, *rankings(spans_of(found.policy_runs))]


def rankings(spans: dict[str, float]) -> list[Verdict]:
    """Verdicts on the order of the source's policies, and of `OURS` against the best of them."""
    theirs = {label: spans[label] for label in FIVE if label in spans}
    if len(theirs) < len(FIVE) or OURS not in spans:
        return []
    slowest = sorted(theirs, key=lambda label: -theirs[label])[:2]
    best = min(theirs.values())
    order = slowest == ["random, batch 10", "single-region"]
    return [
        Verdict(order, f"of the source's policies the slowest are {slowest[0]}, then {slowest[1]}, as there"),
        Verdict(
            spans[OURS] <= EQUAL * best,
            f"{OURS} takes {spans[OURS]:.1f} s, the best of the source's policies {best:.1f} s",
        ),
    ]
