"""Run a command line of the project in the test's own process; a fresh interpreter takes most of a second to start."""

from __future__ import annotations

import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from subprocess import CompletedProcess

import click
import pytest

from experiments.command_line import run_command_line


def run_in_process(group: click.Group, name: str, *arguments: str) -> CompletedProcess[str]:
    """Run the command group with `arguments`; returns its exit code and what it writes, as `subprocess.run` does."""
    stdout, stderr = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(stdout), redirect_stderr(stderr):
        patch.setattr(sys, "argv", [name, *arguments])
        with pytest.raises(SystemExit) as ended:
            run_command_line(group, name)
    code = ended.value.code
    assert isinstance(code, int)
    return CompletedProcess(arguments, code, stdout.getvalue(), stderr.getvalue())
