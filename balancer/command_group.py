"""Command groups that import a command when it is called, and say in one line that the output cannot be written."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from errno import EDQUOT, EFBIG, ENOSPC
from importlib import import_module
from typing import Any, NamedTuple

import click

LONGEST_HELP = 300
"""Characters of a command's line in the help of its group, which is wrapped: click itself cuts it off at 45."""


class Entry(NamedTuple):
    """A command's name, the module that defines it, and its line in the group's help."""

    name: str
    module: str
    help: str


class LazyGroup(click.Group):
    """A group whose commands are imported one at a time: `--help` imports none of them."""

    def __init__(self, *, entries: Sequence[Entry] = (), **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.entries = {entry.name: entry for entry in entries}

    def main(self, *arguments: Any, **extra: Any) -> Any:
        """Run a command. Raises `click.UsageError` if its output cannot be written."""
        open_streams()
        try:
            return super().main(*arguments, **extra)
        except OSError as error:
            if error.errno not in (ENOSPC, EDQUOT, EFBIG):
                raise
            raise click.UsageError(f"the output cannot be written: {error.strerror}") from None
        finally:
            discard_unwritable()

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *self.entries]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.entries.get(cmd_name)
        if entry is None:
            return super().get_command(ctx, cmd_name)
        found = vars(import_module(entry.module)).values()
        return next(one for one in found if isinstance(one, click.Command) and one.name == cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. An unknown one is refused with the nearest, or with all of them."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            names = self.list_commands(ctx)
            near = get_close_matches(args[0], names, 1)
            known = f"did you mean {near[0]!r}?" if near else f"commands: {', '.join(names)}"
            ctx.fail(f"No such command {args[0]!r}; {known}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, self._short_help(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def _short_help(self, ctx: click.Context, name: str) -> str:
        entry = self.entries.get(name)
        if entry is not None:
            return entry.help
        command = self.get_command(ctx, name)
        return "" if command is None else command.get_short_help_str(limit=LONGEST_HELP)


def open_streams() -> None:
    """Open /dev/null as each standard stream that was closed before the start, or a socket would get its descriptor."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest that is free
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w", closefd=False))


def discard_unwritable() -> None:
    """Discard what standard output and standard error could not take, which would fail once more at the exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
