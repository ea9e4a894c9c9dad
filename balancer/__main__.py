"""Command line of the balancer: `serve`, `check` and the operator commands, each imported when it is called."""

from __future__ import annotations

import gc
import os
import signal
import sys

import click

from balancer.build import version_line
from balancer.command_group import Entry, LazyGroup
from balancer.config.problems import ConfigError
from balancer.errors import ListenFailed, LogFailed
from balancer.log.output import complain_of

EPILOG = """\b
Examples:
  balancer serve --worker emea=http://127.0.0.1:9001 --worker us=http://127.0.0.1:9002
  balancer check balancer.toml
  balancer status
  balancer endpoints drain emea-1
  balancer split stable=90 next=10
  balancer probe https://api.example.org
  balancer sidecar --origin https://api.example.org
"""

ASKS, CHANGES = "balancer.control.admin.status_command", "balancer.control.admin.change_commands"
ENTRIES = (
    Entry("admin", ASKS, "Send an admin request to a running balancer."),
    Entry("check", "balancer.tools.serve", "Validate the configuration that 'serve' would read."),
    Entry("endpoints", CHANGES, "List and change the endpoints of a running balancer."),
    Entry("probe", "balancer.tools.probe.command", "Probe how a server treats connections."),
    Entry("serve", "balancer.tools.serve", "Forward requests until SIGTERM, then finish what is in flight."),
    Entry(
        "sidecar", "balancer.tools.sidecar.server", "Forward an application's requests to external origins."
    ),
    Entry("split", CHANGES, "Show and change how routes are split between clusters."),
    Entry("status", ASKS, "Show the state of a running balancer."),
)

GC_THRESHOLD = 50_000
"""Allocations between collections of the youngest generation. An exchange leaves no reference cycles, so the default of
700 makes the collector scan live connections some dozen times a second for nothing. Imports leave none either, and
their collections take a tenth of the start.
"""


def show_version(context: click.Context, _: click.Parameter, is_wanted: bool) -> None:
    """Print the version line and exit, if `--version` is given."""
    if is_wanted:
        click.echo(version_line("balancer"))
        context.exit()


@click.group(
    cls=LazyGroup,
    entries=ENTRIES,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EPILOG,
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=show_version,
    help="Show the version, the build (compiled or pure) and the interpreter, and exit.",
)
def cli() -> None:
    """An HTTP load balancer for regional workers, with routing policies in Python."""


def main() -> None:
    """Entry point: a user error is one line for each problem on stderr and exit code 2.

    SIGHUP and SIGUSR2, which would end a server that starts, are held back until it has started and can obey them.
    SIGTERM ends it with exit code 0, also as the first process of a container, which gets only signals with a handler.
    """
    gc.set_threshold(GC_THRESHOLD)
    if sys.argv[1:2] in (["serve"], ["sidecar"]):  # before the import of what would handle it
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP, signal.SIGUSR2))
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))  # policies may catch SystemExit
    try:
        cli.main(standalone_mode=False, prog_name="balancer")
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()  # the help, as it is
        sys.exit(error.exit_code)
    except click.ClickException as error:
        sys.exit(complain_of(error, error.format_message()))
    except (ConfigError, ListenFailed, LogFailed) as error:
        sys.exit(complain_of(error))
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP, signal.SIGUSR2))


if __name__ == "__main__":
    main()
