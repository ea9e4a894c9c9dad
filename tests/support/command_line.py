"""Run a command line of the project in the test's own process; a fresh interpreter takes most of a second to start."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from subprocess import CompletedProcess

import click
import pytest
from click.testing import CliRunner, Result

from balancer.__main__ import cli
from experiments.platform.command_line import run_command_line

Program = click.Group | Callable[[], object]
"""A command group, or the function that is the entry point of a program."""


def run_in_process(program: Program, name: str, *arguments: str) -> CompletedProcess[str]:
    """Run the program with `arguments`; returns its exit code and what it writes, as `subprocess.run` does.

    Its handler of Ctrl-C is replaced again: an event loop leaves its own behind."""
    handler = signal.getsignal(signal.SIGINT)
    stdout, stderr = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(stdout), redirect_stderr(stderr):
        patch.setattr(sys, "argv", [name, *arguments])
        code: object = 0
        try:
            run_command_line(program, name) if isinstance(program, click.Group) else program()
        except SystemExit as ended:
            code = ended.code
        finally:
            signal.signal(signal.SIGINT, handler)
    assert isinstance(code, int)
    return CompletedProcess(arguments, code, stdout.getvalue(), stderr.getvalue())


def complaint(program: Program, name: str, *arguments: str) -> str:
    """The one line with which a program refuses bad input: exit code 2, and nothing else is written."""
    done = run_in_process(program, name, *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
    return done.stderr


async def run_balancer(*words: str) -> Result:
    """Run a command of the balancer in a thread, so that a server in this process can answer it."""
    return await asyncio.to_thread(CliRunner().invoke, cli, list(words))


async def printed(url: str, command: str, *words: str) -> list[str]:
    """The lines that a command prints, which asks the balancer at `url`."""
    ran = await run_balancer(command, "--url", url, *words)
    assert ran.exit_code == 0, ran.output
    return ran.stdout.splitlines()  # a server in this process writes its log to standard error
