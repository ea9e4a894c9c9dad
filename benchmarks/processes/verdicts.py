"""Tables and bounds of the processes benchmark. Pure functions of runs.

Ratios are computed within a block and their median is judged. A run with a fault is in no ratio, and makes its bound
missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from rich.table import Table

from benchmarks.harness.verdicts import Verdict
from benchmarks.processes.latency import HALF, SETUPS, TWO, LatencyRun
from benchmarks.processes.throughput import HANDSHAKES, PARTS, REQUESTS, ThroughputRun
from experiments.terminal import times

GAIN = 1.8
"""Least throughput of two processes, as a multiple of one."""

EQUAL = 1.05
"""Largest p99 ratio to one process that counts as equal: less than twelve blocks can resolve."""

JUDGED = {HANDSHAKES: "rate", REQUESTS: "ceiling"}
"""Figure of each part by which two processes are compared with one."""


def gain_of(bursts: Sequence[ThroughputRun], part: str, figure: str = "") -> float | None:
    """Median over blocks of the ratio of two processes to one, in `figure` or the judged one; None without pairs."""
    name = figure or JUDGED[part]
    found = {
        (run.processes, run.block): getattr(run, name) for run in bursts if run.part == part and not run.fault
    }
    ratios = [
        value / found[1, block]
        for (count, block), value in found.items()
        if count == 2 and (1, block) in found
    ]
    return median(ratios) if ratios else None


def loss_of(stretches: Sequence[LatencyRun], setup: str, figure: str = "p99") -> float | None:
    """Median over blocks of the latency ratio of a setup to `HALF`; None without pairs."""
    found = {(run.setup, run.block): getattr(run, figure) for run in stretches if not run.fault}
    ratios = [
        value / found[HALF.name, block]
        for (name, block), value in found.items()
        if name == setup and (HALF.name, block) in found
    ]
    return median(ratios) if ratios else None


def verdicts(bursts: Sequence[ThroughputRun], stretches: Sequence[LatencyRun]) -> list[Verdict]:
    """Verdicts on all bounds that were measured."""
    found = [gain_verdict([run for run in bursts if run.part == part], part) for part in PARTS]
    if stretches:
        loss = loss_of(stretches, TWO.name)
        words = f"p99 of two processes {times(loss)} that of one at equal load per core (bound: {EQUAL:g} ×)"
        found.append(judged([run.fault for run in stretches], None if loss is None else loss <= EQUAL, words))
    return [verdict for verdict in found if verdict is not None]


def gain_verdict(bursts: Sequence[ThroughputRun], part: str) -> Verdict | None:
    """Verdict on the throughput of one part; None if it was not measured."""
    if not bursts:
        return None
    gain = gain_of(bursts, part)
    taken = median([run.client_cores for run in bursts if run.processes == 2 and not run.fault] or [0.0])
    how = {
        HANDSHAKES: f"new connections; load and worker took {taken:.2f} of the cores",
        REQUESTS: "requests where each process has a core, by their processor time at equal load for each",
    }
    words = f"two processes answer {times(gain)} what one does (bound: {GAIN:g} ×): {how[part]}"
    return judged([run.fault for run in bursts], None if gain is None else gain >= GAIN, words)


def judged(faults: Sequence[str], is_met: bool | None, words: str) -> Verdict:
    """A verdict as a sentence; any fault makes the bound missed."""
    fault = next(filter(None, faults), "")
    if fault:
        is_met, words = False, f"{words}; INVALID: {fault}"
    return Verdict(is_met, words)


def throughput_table(bursts: Sequence[ThroughputRun]) -> Table:
    """Throughput table: medians over blocks."""
    table = Table(
        title="new HTTPS connections, as many as there can be; small GETs, as many per process",
        title_justify="left",
    )
    table.add_column("asked", no_wrap=True)
    for name in (
        "processes",
        "answered/s",
        "with a core each/s",
        "busiest",
        "cores: balancer's",
        "load's and worker's",
    ):
        table.add_column(name, justify="right")
    for part, count in sorted({(run.part, run.processes) for run in bursts}):
        good = [run for run in bursts if (run.part, run.processes) == (part, count) and not run.fault]
        if not good:
            table.add_row(part, str(count), "INVALID")
            continue
        table.add_row(
            part,
            str(count),
            f"{median(run.rate for run in good):.0f}",
            f"{median(run.ceiling for run in good):.0f}",
            f"{median(run.busiest for run in good):.0%}",
            f"{median(run.balancer_cores for run in good):.2f}",
            f"{median(run.client_cores for run in good):.2f}",
        )
    return table


def latency_table(stretches: Sequence[LatencyRun]) -> Table:
    """Latency table: medians over blocks, and ratios to one process with half of the workers."""
    table = Table(
        title="least-in-flight, exponential service of 20 ms, 70 % load, open loop", title_justify="left"
    )
    table.add_column("proxy", no_wrap=True)
    for name in ("workers", "offered/s", "p50 ms", "p99 ms", "p50 ratio", "p99 ratio"):
        table.add_column(name, justify="right")
    for setup in SETUPS:
        good = [run for run in stretches if run.setup == setup.name and not run.fault]
        if not good:
            table.add_row(setup.name, str(setup.workers), f"{setup.rate:.0f}", "INVALID")
            continue
        table.add_row(
            setup.name,
            str(setup.workers),
            f"{setup.rate:.0f}",
            f"{median(run.p50 for run in good):.1f}",
            f"{median(run.p99 for run in good):.1f}",
            times(loss_of(stretches, setup.name, "p50")),
            times(loss_of(stretches, setup.name)),
        )
    return table
