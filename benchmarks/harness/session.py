"""Frame of every benchmark: run until the end or an interruption, then choose the exit code.

However it ends, no process is left running, and the caller can print and write what was measured.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from rich.console import Console
from rich.status import Status

from experiments.terminal import BOUND_MISSED, STOPPED, interruptible, print_stopped


def was_interrupted(work: Callable[[], Awaitable[None]]) -> bool:
    """Run `work`; returns whether Ctrl-C or SIGTERM ended it. Raises `ExperimentError`."""
    try:
        asyncio.run(interruptible(work()))
    except (asyncio.CancelledError, KeyboardInterrupt):
        return True
    return False


def run_in_folder(work: Callable[[Path], Awaitable[None]], console: Console, doing: str) -> bool:
    """Run `work` with a temporary folder, while the status line says `doing`; returns whether it was interrupted."""
    status = Status(doing, console=console, refresh_per_second=2)
    with tempfile.TemporaryDirectory(prefix="steelyard-") as folder, status:
        return was_interrupted(lambda: work(Path(folder)))


def exit_code(
    console: Console,
    was_stopped: bool,
    is_checked: bool,
    met: Iterable[bool | None],
    rest: str = "Nothing was left running; the table holds what had been measured.",
) -> int:
    """Exit code of a benchmark: 130 after an interruption, 1 if a bound of `met` was missed and `--check` is given."""
    if was_stopped:
        print_stopped(console, rest)
        return STOPPED
    return BOUND_MISSED if is_checked and any(one is False for one in met) else 0
