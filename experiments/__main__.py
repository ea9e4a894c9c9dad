"""`experiments`: compare routing policies by measured or simulated runs.

Exit codes: 0 success, 1 a threshold failed, 2 bad input, 3 a process did not start, 130 interrupted. Bad input is one
line on standard error that names the option or field and what is allowed.
"""

from __future__ import annotations

import click

from experiments.command_line import Entry, LazyGroup, run_command_line

EPILOG = """\b
Examples:
  experiments run --quick                       the default scenario in about a minute
  experiments run steady --rate 120 --duration 20
  experiments simulate steady --blocks 20       the same in virtual time
  experiments report results/first              redraw from files alone
  experiments compare results/first results/second
"""

ENTRIES = (
    Entry("run", "experiments.commands.run", "Run a scenario on real processes and report."),
    Entry("simulate", "experiments.commands.simulate", "Simulate a scenario in virtual time and report."),
    Entry("list", "experiments.commands.run", "Scenarios that come with the package."),
    Entry("report", "experiments.commands.run", "Redraw a report from its files."),
    Entry("compare", "experiments.commands.compare", "Two results side by side, with an exit code for CI."),
    Entry("sweep", "experiments.commands.sweep", "Simulate policies × scenarios × knobs × seeds."),
    Entry("catalogue", "experiments.commands.catalogue", "Read what a sweep has found."),
    Entry("matrix", "experiments.commands.catalogue", "Every scenario × every policy."),
    Entry("load", "experiments.commands.load_curve", "Latency against offered load."),
    Entry("capacity", "experiments.commands.capacity", "The highest rate within an SLO."),
    Entry("live", "experiments.commands.live", "Compare policies on a running balancer."),
    Entry("what-if", "experiments.commands.what_if", "Simulate recorded traffic under other conditions."),
    Entry("from-log", "experiments.commands.from_log", "A report from an access log."),
    Entry("reproduce", "experiments.reproduce.command", "Reproduce results of five published sources."),
)


@click.group(
    cls=LazyGroup,
    entries=ENTRIES,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
def cli() -> None:
    """Compare routing policies on running processes or in simulation, and report."""


def main() -> None:
    """Console script: run the `experiments` command group."""
    run_command_line(cli, "experiments")


if __name__ == "__main__":
    main()
