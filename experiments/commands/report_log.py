"""Report of real traffic from an access log of the balancer, for `experiments report FILE`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO

from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from experiments.commands.options import command_line, new_directory
from experiments.errors import BadInputError
from experiments.platform.printable import printable
from experiments.platform.terminal import console_here, make_directory, path_line
from experiments.recorded.access_log import LONGEST_LINE, LogColumns, read_log
from experiments.report.access_log.runs import LogRuns, log_runs


def report_log(file: Path, out: Path | None) -> int:
    """Draw the figures that an access log of the balancer has data for; - is standard input."""
    from experiments.report.access_log.page import write_log_report
    from experiments.report.terminal_tables import terminal_table

    console = console_here()
    if out is not None:
        make_directory("--out", out)
    log = load(file, console)
    directory = out or new_directory(f"log-{Path(log.name).stem.replace(' ', '-')}")
    with console.status("Drawing the report"):
        tables = write_log_report(log, directory, command_line())
    console.print(terminal_table(tables[0], console.width))
    if log.unreadable:
        console.print(Text(log.unreadable_in_words, style="yellow"))
    console.print(path_line("Report:", directory / "report.html"), soft_wrap=True)
    return 0


def load(file: Path, console: Console) -> LogRuns:
    """Read the log, with a progress bar on a terminal. Raises `BadInputError`."""
    name = "standard input" if str(file) == "-" else str(file)
    try:
        with opened(file, console) as lines:
            pieces = iter(partial(lines.readline, LONGEST_LINE + 1), "")
            columns: LogColumns = read_log(pieces, name)
    except OSError as error:
        raise BadInputError(f"{name}: cannot be read: {error.strerror}") from None
    return log_runs(columns, "standard input" if str(file) == "-" else printable(file.name))


@contextmanager
def opened(file: Path, console: Console) -> Iterator[TextIOWrapper]:
    """Lines of the file, with a progress bar. A log is ASCII; other bytes are replaced."""
    if str(file) == "-":
        yield TextIOWrapper(sys.stdin.buffer, encoding="ascii", errors="replace")
        return
    progress = Progress(console=console, transient=True, disable=not console.is_terminal)
    with progress, progress.open(file, "rb", description="Reading") as raw:
        stream: BinaryIO = raw
        yield TextIOWrapper(stream, encoding="ascii", errors="replace")
