"""`python -m benchmarks`: measure and check Steelyard itself.

Exit codes: 0 measured, 1 a bound was missed with `--check`, 2 bad input, 3 a process did not start, 130 interrupted.
"""

from __future__ import annotations

import click

from balancer.command_group import Entry, LazyGroup
from experiments.platform.command_line import run_command_line

ENTRIES = (
    Entry("cost", "benchmarks.cost.command", "CPU per forwarded request, beside other proxies."),
    Entry("storm", "benchmarks.storm.command", "Failed requests under worker faults, beside other proxies."),
    Entry("rolling", "benchmarks.rolling.command", "Failed requests while workers and balancer restart."),
    Entry("slow-clients", "benchmarks.slow_clients.command", "Latency beside slow senders and readers."),
    Entry("processes", "benchmarks.processes.command", "Throughput and latency with several processes."),
    Entry("simulator", "benchmarks.simulator.command", "Simulated requests per second, beside SimPy."),
    Entry("certificate", "benchmarks.simulator.command", "The simulator beside closed forms."),
    Entry("fidelity", "benchmarks.fidelity.command", "Simulated beside measured runs of scenarios."),
    Entry("calibration", "benchmarks.calibration.command", "How often a verdict is wrong."),
)


@click.group(cls=LazyGroup, entries=ENTRIES, context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Measure and check Steelyard itself."""


if __name__ == "__main__":
    run_command_line(cli, "benchmarks")
