"""`experiments`: compare routing policies by measured or simulated runs.

Exit codes: 0 success, 1 a threshold failed, 2 bad input, 3 a process did not start, 130 interrupted. Bad input is one
line on standard error that names the option or field and what is allowed.
"""

from __future__ import annotations

import click

from balancer.command_group import Entry, LazyGroup
from experiments.platform.command_line import WIDEST_HELP, run_command_line

EPILOG = """\b
Examples:
  experiments run --quick                       the default scenario in about a minute
  experiments run steady --rate 120 --duration 20
  experiments run steady --simulated --blocks 20    the same in virtual time
  experiments load http://127.0.0.1:8080/       a service that runs already
  experiments report results/first              redraw from files alone
  experiments compare results/first results/second
"""

ENTRIES = (
    Entry("run", "experiments.commands.run", "Run a scenario, measured or simulated, and report."),
    Entry(
        "show",
        "experiments.commands.show",
        "The scenarios, or what a scenario, result set or catalogue holds.",
    ),
    Entry("report", "experiments.commands.report", "Draw a report from its files, or from an access log."),
    Entry("compare", "experiments.commands.compare", "Two results side by side, with an exit code for CI."),
    Entry("sweep", "experiments.commands.sweep", "Simulate policies × scenarios × knobs × seeds."),
    Entry("capacity", "experiments.commands.capacity", "The highest rate within an SLO, and the load curve."),
    Entry("load", "experiments.commands.load", "Load URLs, or a balancer under several policies."),
    Entry("live", "experiments.commands.live", "Compare policies on a running balancer."),
    Entry("what-if", "experiments.commands.what_if", "Simulate recorded traffic under other conditions."),
    Entry("reproduce", "experiments.reproduce.command", "Reproduce results of published sources."),
)


@click.group(
    cls=LazyGroup,
    entries=ENTRIES,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDEST_HELP},
)
@click.version_option(package_name="steelyard", prog_name="experiments", message="%(prog)s %(version)s")
def cli() -> None:
    """Compare routing policies on running processes or in simulation, and report."""


def main() -> None:
    """Console script: run the `experiments` command group."""
    run_command_line(cli, "experiments")


if __name__ == "__main__":
    main()
