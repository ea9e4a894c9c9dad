"""p99 of latency at half of the slowest proxy's capacity, at the same rate for all proxies, in an open loop.

Runs are judged here, and measured by `runs.py`.

Latency counts from the scheduled instant, so it includes the generator's lag, other processes on the cores, and a
saturated generator core. A run in which one of these is large is repeated, then void. With two cores the generator has
one to itself, because a worker on the same core makes it late; the worker shares the proxy's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.cost.plan import CostRun
from benchmarks.harness.open_load import LAG_PART, Report

PART = 0.5
"""Offered rate as a fraction of the slowest proxy's capacity."""

TAKEN_PART = 0.2
"""Limit on the share of the cores used by other processes: they cause tail latency."""

BUSY_PART = 0.85
"""Limit on the utilisation of the generator's core: beyond it requests wait for the generator."""

FULL_PART = 0.9
"""Least utilisation of its core at a proxy's capacity; below, something else was the limit."""

ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Capacity:
    """Closed-loop requests per second, and the utilisation of the proxy's core by the benchmark."""

    rate: float
    used: float


def judged(run: CostRun, report: Report, rate: float, taken: float = 0.0) -> CostRun:
    """The run with the report's figures; `taken` is the share of the cores used by others."""
    return replace(
        run,
        figure=report.p99,
        requests=report.requests,
        rate=rate,
        taken=taken,
        lag=report.lag,
        busy=report.busy,
        load_cpu=report.cpu,
        waited=report.waited,
        fault=fault_in_words(report),
        void=doubt(report, taken),
    )


def fault_in_words(report: Report) -> str:
    """Failed requests by kind as text; empty if none failed."""
    if not report.failed:
        return ""
    kinds = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in report.failures.items())
    return f"{report.failed} requests failed" + (f" ({kinds})" if kinds else "")


def doubt(report: Report, taken: float) -> str:
    """Reason why a run is void; empty if it is usable."""
    if taken > TAKEN_PART:
        return f"other processes took {taken:.0%} of the cores"
    if report.busy > BUSY_PART:
        return f"the generator's core was {report.busy:.0%} in use, at most {BUSY_PART:.0%} is allowed"
    if report.lag <= LAG_PART * report.p99:  # false if one of them is nan
        return ""
    return f"the generator was {report.lag:.2f} ms late itself, of {report.p99:.2f} ms"


def capacities_in_words(capacities: dict[str, Capacity], rate: float) -> str:
    found = ", ".join(f"{name} {one.rate:.0f}/s" for name, one in capacities.items())
    slowest = min(capacities.values(), key=lambda one: one.rate, default=Capacity(0.0, 1.0))
    doubt = (
        ""
        if slowest.used >= FULL_PART
        else f" (the slowest used {slowest.used:.0%} of its core: the load or other processes limited it)"
    )
    return f"capacity: {found}{doubt}; offered to each: {rate:.0f}/s"
