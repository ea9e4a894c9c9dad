"""One-line error messages for all commands, and what their help has in common."""

from __future__ import annotations

import sys
from io import TextIOWrapper

import click

from balancer.syntax.printable import one_line
from experiments.errors import STOPPED, ExperimentError

WIDEST_HELP = 100
"""Columns of help; the terminal may be narrower."""

LAB = ("numpy", "matplotlib", "jinja2")
"""Packages of the extra `lab`, which an installation for forwarding alone does not have."""


def run_command_line(group: click.Group, name: str) -> None:
    """Run the group with this process's arguments and exit with its code; errors are one line on standard error."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # of what its encoding lacks
    try:
        code = group.main(prog_name=name, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()  # the help, as it is
        code = error.exit_code
    except click.ClickException as error:
        code = _complain(name, error.format_message(), error.exit_code)
    except ExperimentError as error:
        code = _complain(name, str(error), error.exit_code)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in LAB:
            raise
        code = _complain(name, f"needs {error.name}: pip install '.[lab]' in the checkout", 2)
    except (click.Abort, KeyboardInterrupt):
        code = STOPPED
    sys.exit(code or 0)


def _complain(name: str, message: str, code: int) -> int:
    click.echo(f"{name}: {one_line(message)}", err=True)
    return code
