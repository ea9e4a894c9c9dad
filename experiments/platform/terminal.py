"""Terminal output shared by all commands: exit codes, coloured verdicts, output files, interruption.

Independent of what is measured.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from balancer.syntax.printable import with_digits
from experiments.errors import BadInputError
from experiments.platform.json_values import json_value
from experiments.platform.printable import printable

T = TypeVar("T")

BOUND_MISSED = 1
"""Exit code when a threshold failed."""

FRAMES_PER_SECOND = 3
FULL_WIDTH = 120
"""Columns of a terminal that shows every table in full."""

STANDING = {True: "met", False: "MISSED", None: "not judged"}
STYLES = {True: "green", False: "bold red", None: "yellow"}
"""Word and style of a bound that is met (True), missed (False) or not judged (None)."""


class PlainConsole(Console):
    """Console that prints strings literally: no markup is interpreted, and control characters are escaped."""

    def __init__(self, width: int | None = None) -> None:
        super().__init__(width=width, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        if isinstance(renderable, Text) and (shown := printable(renderable.plain)) != renderable.plain:
            renderable = renderable.copy()
            renderable.plain = shown
        return super().render(renderable, options)


def console_here() -> Console:
    """Console on standard output; when it is redirected, at least `FULL_WIDTH` columns wide."""
    console = PlainConsole()
    return console if console.is_terminal else PlainConsole(max(console.width, FULL_WIDTH))


def print_stopped(console: Console, rest: str) -> None:
    """Print that the command was stopped by Ctrl-C, followed by `rest`."""
    console.print(Text.assemble(("Stopped.", "yellow"), f" {rest}"))


class LivePanel(ABC):
    """Live panel for long work, shown only on a terminal; `panel` is called for every frame.

    Drawn a few times per second only, because drawing costs processor time that belongs to the measurement.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            every, console = FRAMES_PER_SECOND, self._console
            self._live = Live(
                get_renderable=self.panel, console=console, refresh_per_second=every, transient=True
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    @abstractmethod
    def panel(self) -> RenderableType:
        """Return the current content of the panel."""


def print_verdict(console: Console, is_met: bool | None, words: str) -> None:
    console.print(Text(words, style=STYLES[is_met]))


def plain_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    left: Sequence[str] = (),
    title: str | None = None,
) -> Table:
    """Table whose first column and those named in `left` are aligned to the left, the others to the right."""
    table = Table(title=title, header_style="dim", box=SIMPLE_HEAD, pad_edge=False)
    for number, head in enumerate(heads):
        table.add_column(head, justify="left" if number == 0 or head in left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def in_ms(seconds: float) -> str:
    """Format seconds as `492 ms`, below 10 ms as `2.4 ms`; a dash for a non-finite value."""
    if not math.isfinite(seconds):
        return "–"
    return f"{with_digits(seconds * 1e3, 2)} ms"


def rate_digits(rate: float) -> str:
    """Format a rate as `312.4`, below 1 with two digits that count."""
    return with_digits(rate, 2) if 0 < rate < 1 else f"{rate:.1f}"


def clock(seconds: float) -> str:
    """Format seconds as `1:05`, `12:40` or `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def require_writable(option: str, file: Path | None) -> None:
    """Check before a measurement that `file` can be written. Raises `BadInputError`."""
    if file is not None and not os.access(file.parent, os.W_OK | os.X_OK):
        raise BadInputError(f"{option}: {file.parent} is not a directory that can be written to")


def make_directory(option: str, directory: Path) -> None:
    """Create a directory for output, with its parents; it may exist. Raises `BadInputError`."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # a NUL in the path
        problem = getattr(error, "strerror", None) or error
        raise BadInputError(f"{option}: {directory}: cannot be created: {problem}") from None
    require_writable(option, directory / "any")


def write_json(file: Path | None, content: Any) -> None:
    """Write `content` as JSON, data classes included, if a file is given. Raises `BadInputError` when it cannot."""
    if file is None:
        return
    try:
        text = json.dumps(json_value(content), indent=1, ensure_ascii=False)
        file.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise BadInputError(f"--json: {file}: {error.strerror}") from None


STOP_SIGNALS = tuple(one for one in signal.Signals if one.name in ("SIGINT", "SIGTERM", "SIGHUP"))
"""Signals that end a command after its clean-up: Ctrl-C, a supervisor, a terminal that is closed."""


def stop_signals() -> list[signal.Signals]:
    """`STOP_SIGNALS` without those that the process was started to ignore (nohup)."""
    return [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


async def interruptible(work: Awaitable[T]) -> T:
    """Run `work` as a task that the first stop signal cancels; later signals are ignored during its clean-up.

    The handlers before are in place again afterwards. Raises `CancelledError` after a stop signal, also where the work
    has ended in the same moment or has ignored it.
    """
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
    is_stopped = False

    def stop(*_: object) -> None:  # at once: an event loop's own handlers run only in its next turn
        nonlocal is_stopped
        if not is_stopped:
            is_stopped = True
            loop.call_soon_threadsafe(task.cancel)

    with signals_handled(stop, stop_signals()):
        result = await task
    if is_stopped:
        raise asyncio.CancelledError
    return result


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Let every stop signal raise `KeyboardInterrupt`, as Ctrl-C does; without effect outside the main thread.

    Raised at the end if it came in a destructor, where Python drops it: compiled code looks at no signal before.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    report, dropped = sys.unraisablehook, list[Any]()

    def note(found: Any) -> None:
        if issubclass(found.exc_type, KeyboardInterrupt):
            dropped.append(found.exc_type)
        else:
            report(found)

    numbers = [number for number in stop_signals() if number != signal.SIGINT]
    sys.unraisablehook = note
    try:
        with signals_handled(signal.default_int_handler, numbers):
            yield
    finally:
        sys.unraisablehook = report
    if dropped:
        raise KeyboardInterrupt


@contextmanager
def signals_ignored() -> Iterator[None]:
    """Ignore every stop signal during a clean-up that must be completed."""
    with signals_handled(signal.SIG_IGN, STOP_SIGNALS):
        yield


@contextmanager
def signals_handled(handler: Any, numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """Handle the signals by `handler` for a while."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
