"""Click group that refuses renamed commands with the name that replaces them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click


class CommandGroup(click.Group):
    """Group of commands; `renamed` has new names by old ones."""

    def __init__(self, *arguments: Any, renamed: Mapping[str, str], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._renamed = renamed

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that `args` name. Raises `click.UsageError` for a renamed one."""
        new = self._renamed.get(args[0])
        if new is not None:
            ctx.fail(f"{args[0]}: renamed to {new}")
        return super().resolve_command(ctx, args)
