"""Tables and bounds of the processes benchmark. Pure functions of runs.

Ratios are computed within a block; the 95 % interval of their geometric mean is judged. A run with a fault is in no
ratio, and makes its bound missed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TypeVar

from rich.table import Table

from benchmarks.harness.verdicts import block_ratios, bracketed, over_blocks, side_of
from benchmarks.processes.throughput import (
    HALF,
    HANDSHAKES,
    PARTS,
    REQUESTS,
    SETUPS,
    TWO,
    LatencyRun,
    ThroughputRun,
)
from experiments.platform.session import BoundVerdict
from experiments.platform.terminal import plain_table
from experiments.stats.comparison import Interval

AnyRun = TypeVar("AnyRun", ThroughputRun, LatencyRun)

GAIN = 1.8
"""Least throughput of two processes, as a multiple of one."""

MAX_P99 = 1.05
"""Largest p99 ratio to one process that counts as equal: less than twelve blocks can resolve."""

JUDGED = {HANDSHAKES: "rate", REQUESTS: "ceiling"}
"""Figure of each part by which two processes are compared with one."""


def gain_of(bursts: Sequence[ThroughputRun], part: str) -> Interval | None:
    """Mean over blocks of the ratio of two processes to one, in the judged figure; None without pairs."""
    one, two = (
        {run.block: getattr(run, JUDGED[part]) for run in valid(bursts) if (run.part, run.processes) == key}
        for key in ((part, 1), (part, 2))
    )
    return over_blocks(block_ratios(two, one))


def loss_of(stretches: Sequence[LatencyRun], setup: str, figure: str = "p99") -> Interval | None:
    """Mean over blocks of the latency ratio of a setup to `HALF`; None without pairs."""
    own, half = (
        {run.block: getattr(run, figure) for run in valid(stretches) if run.setup == name}
        for name in (setup, HALF.name)
    )
    return over_blocks(block_ratios(own, half))


def valid(runs: Sequence[AnyRun]) -> list[AnyRun]:
    return [run for run in runs if not run.fault]


def verdicts(bursts: Sequence[ThroughputRun], stretches: Sequence[LatencyRun]) -> list[BoundVerdict]:
    parts = [(part, [run for run in bursts if run.part == part]) for part in PARTS]
    found = [gain_verdict(own, part) for part, own in parts if own]
    if stretches:
        loss = loss_of(stretches, TWO.name)
        bound = f"p99 of two processes ≤ {MAX_P99:g} × that of one at equal load per core"
        found.append(judged(stretches, "latency", bound, side_of(loss, MAX_P99), bracketed(loss)))
    return found


def gain_verdict(bursts: Sequence[ThroughputRun], part: str) -> BoundVerdict:
    """Verdict on the throughput of one part; `bursts` are of this part, at least one."""
    gain = gain_of(bursts, part)
    taken = median([run.client_cores for run in valid(bursts) if run.processes == 2] or [0.0])
    how = {
        HANDSHAKES: f"new connections; load and worker took {taken:.2f} cores",
        REQUESTS: "requests with a core for each process, by their CPU time at equal load for each",
    }
    bound = f"two processes answer ≥ {GAIN:g} × what one does"
    is_met = side_of(gain, GAIN, is_least=True)
    return judged(bursts, part, bound, is_met, f"{bracketed(gain)}: {how[part]}")


def judged(runs: Sequence[AnyRun], subject: str, bound: str, is_met: bool | None, found: str) -> BoundVerdict:
    """A verdict; any fault makes the bound missed."""
    fault = next((run.fault for run in runs if run.fault), "")
    if fault:
        return BoundVerdict(subject, bound, False, f"{found}; INVALID: {fault}")
    return BoundVerdict(subject, bound, is_met, found)


def throughput_table(bursts: Sequence[ThroughputRun]) -> Table:
    """Throughput table: medians over blocks."""
    title = (
        "handshakes: as many new HTTPS connections as possible; requests: small GETs at a rate per process"
    )
    heads = ("answered/s", "with a core each/s", "busiest", "balancer's cores", "load's and worker's")
    table = plain_table(("part", "processes", *heads), (), title=title)
    for part, count in sorted({(run.part, run.processes) for run in bursts}):
        good = [run for run in valid(bursts) if (run.part, run.processes) == (part, count)]
        if not good:
            table.add_row(part, str(count), "INVALID")
            continue
        formats = {"rate": ".0f", "ceiling": ".0f", "busiest": ".0%"}
        formats |= dict.fromkeys(("balancer_cores", "client_cores"), ".2f")
        table.add_row(part, str(count), *cells(good, formats))
    return table


def latency_table(stretches: Sequence[LatencyRun]) -> Table:
    """Latency table: medians over blocks, and ratios to one process with half of the workers."""
    heads = ("proxy", "workers", "offered/s", "p50 ms", "p99 ms", "p50 ratio", "p99 ratio")
    title = "least-in-flight, exponential service of 20 ms, 70 % load, open loop"
    table = plain_table(heads, (), title=title)
    for setup in SETUPS:
        good = [run for run in valid(stretches) if run.setup == setup.name]
        ratios = [bracketed(loss_of(stretches, setup.name, figure)) for figure in ("p50", "p99")]
        figures = [*cells(good, {"p50": ".1f", "p99": ".1f"}), *ratios] if good else ["INVALID"]
        table.add_row(setup.name, str(setup.workers), f"{setup.rate:.0f}", *figures)
    return table


def cells(runs: Sequence[AnyRun], formats: Mapping[str, str]) -> list[str]:
    """Median of each figure over the runs, at least one."""
    return [f"{median(getattr(run, name) for run in runs):{form}}" for name, form in formats.items()]
