"""Answers to the questions of the source of `regions`, in its order, with its own results; and the bounds.

Texts and tables made from `Results`; a part that was not measured has no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median

from rich.table import Table

from experiments.platform.terminal import plain_table
from experiments.reproduce.mean_of_blocks import mean_ms
from experiments.reproduce.regions_cases import (
    OURS,
    PATIENCE,
    SOURCE_POLICIES,
    Concurrency,
    Plan,
    PolicyRun,
    Results,
    Unloaded,
    policy_spans,
)
from experiments.reproduce.reproduction import Verdict

MOST_ADDED = 1.0
"""Bound on the median latency in milliseconds that the balancer adds; the source's added 30 to 35."""

EQUAL = 1.05
"""Largest ratio to the best of the source's policies that counts as equal."""


def answers(found: Results, plan: Plan) -> Iterator[tuple[str, str]]:
    """Pairs of question and answer, for the parts that were measured."""
    if found.concurrency and found.workers:
        yield "How many requests does one machine take?", one_machine(found)
    if found.unloaded:
        yield "What is the latency of each region?", latencies(found.unloaded)
        yield "How long is the computation?", computation(found.unloaded)
        yield "What is the response time without load?", without_load(found.unloaded)
    if found.added:
        yield "What latency does the proxy add?", added(found)
    if found.throughput is not None:
        yield (
            "When does the proxy become the bottleneck?",
            bottleneck(found.throughput.rate, found.throughput.cost),
        )
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


def latencies(unloaded: Sequence[Unloaded]) -> str:
    each = by_region(unloaded, lambda one: one.latency)
    return f"{each}. (Source: emea 350, us 450, asia 580 ms, which is what is emulated.)"


def by_region(unloaded: Sequence[Unloaded], seconds: Callable[[Unloaded], float]) -> str:
    each = {one.region: 1e3 * seconds(one) for one in unloaded}
    return ", ".join(f"{region} {millis:.0f} ms" for region, millis in each.items())


def computation(unloaded: Sequence[Unloaded]) -> str:
    service = [seconds for one in unloaded for seconds in one.service]
    return (
        f"{1e3 * min(service):.1f} to {1e3 * max(service):.1f} ms, as the workers report it, whatever the load. "
        "(Source: 19 to 21 ms.)"
    )


def without_load(unloaded: Sequence[Unloaded]) -> str:
    return by_region(unloaded, lambda one: median(one.took)) + ": latency and computation."


def added(found: Results) -> str:
    ours, (low, high) = mean_ms([one.proxy - one.direct for one in found.added])
    fresh, _ = mean_ms([one.without_keep_alive - one.direct for one in found.added])
    return (
        f"{ours:.2f} ms on average [{low:.2f}, {high:.2f}], paired. One that opens a connection for every request "
        f"adds {fresh:.1f} ms where the round trip takes 32 ms. (Source: 30 to 35 ms, a connection each.)"
    )


def bottleneck(rate: float, cpu_seconds: float | None) -> str:
    cost = "" if cpu_seconds is None else f", {1e6 * cpu_seconds:.0f} µs of CPU time each"
    return (
        f"At {rate:.0f} requests per second{cost}: beyond {rate / 50:.0f} such machines. Then `processes = N` shares "
        "the port among N of them; after that, several proxies. (Source: its proxy crashed first.)"
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


def fastest(policy_runs: Sequence[PolicyRun], plan: Plan) -> str:
    spans = policy_spans(policy_runs)
    order = sorted(spans, key=lambda policy: spans[policy])
    return (
        f"{order[0]}, {spans[order[0]]:.1f} s for {plan.policy_requests} requests; {order[-1]} is last with "
        f"{spans[order[-1]]:.1f} s. (Source: random with a batch of 10 last, EMEA alone before it: it is nearest, and "
        "its two workers saturate.)"
    )


def concurrency_table(found: Sequence[Concurrency], plan: Plan) -> Table:
    """Table of latencies and failures by number of concurrent requests to one worker."""
    title = f"one worker, {plan.concurrency_requests} requests; s, in the source's time"
    rows = [(str(one.at_once), str(one.failed), f"{one.p50:.1f}", f"{one.max:.1f}") for one in found]
    return plain_table(("at once", "failed", "p50", "max"), rows, title=title)


def policy_table(policy_runs: Sequence[PolicyRun], plan: Plan) -> Table:
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


def bounds(found: Results) -> Iterator[Verdict]:
    """Verdicts on the bounds, for the parts that were measured."""
    if found.added:
        ours, (low, high) = mean_ms([one.proxy - one.direct for one in found.added])
        is_met = True if high < MOST_ADDED else False if low >= MOST_ADDED else None
        yield Verdict(is_met, f"the proxy adds {ours:.2f} ms on average [{low:.2f}, {high:.2f}], bound 1 ms")
    for one in found.overloads:
        text = f"{one.at_once} clients at once, {one.descriptors} descriptors: {one.failed} failed"
        yield Verdict(one.failed == 0, text)
    if found.concurrency:
        least = found.concurrency[0]
        yield Verdict(least.failed == 0, f"{least.at_once} at once are fine")
    yield from rankings(policy_spans(found.policy_runs))


def rankings(spans: dict[str, float]) -> Iterator[Verdict]:
    """Verdicts on the order of the source's policies, and of `OURS` against the best of them."""
    theirs = {policy: spans[policy] for policy in SOURCE_POLICIES if policy in spans}
    if len(theirs) < len(SOURCE_POLICIES) or OURS not in spans:
        return
    slowest = sorted(theirs, key=lambda policy: -theirs[policy])[:2]
    best = min(theirs.values())
    yield Verdict(
        slowest == ["random (batch 10)", "single-region"],
        f"of the source's policies the slowest are {slowest[0]}, then {slowest[1]}, as there",
    )
    yield Verdict(
        spans[OURS] <= EQUAL * best,
        f"{OURS} takes {spans[OURS]:.1f} s, the best of the source's policies {best:.1f} s",
    )
