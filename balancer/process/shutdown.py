"""Shutdown requests by signal, and the signals from the supervisor. This module only records them.

Without a supervisor, the first SIGTERM or SIGINT starts the shutdown and the second one cuts the grace period short. A
child process gets SIGTERM when a successor of the program or of the process takes over, SIGINT when the balancer stops,
SIGQUIT to cut the grace period short, and SIGUSR1 to reload the configuration in all processes. Service managers often
signal all processes at once, so a second SIGTERM has no effect on a child.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

REPLACED = signal.SIGTERM
STOPPED = signal.SIGINT
CUT_SHORT = signal.SIGQUIT
RELOAD = signal.SIGUSR1
"""Signals from the supervisor to its processes."""


class Shutdown:
    """Shutdown state of a process.

    `begun` is set when the shutdown starts, `cut_short` when it must end at once. `is_patient` is set while a successor
    serves, so that idle clients get time; `on_impatient` is called when that ends.
    """

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.cut_short = asyncio.Event()
        self.is_patient = False
        self.on_impatient: Callable[[], None] | None = None

    def begin(self) -> None:
        """Start the shutdown; a repeated call only ends the patience."""
        was_patient, self.is_patient = self.is_patient, False
        self.begun.set()
        if was_patient and self.on_impatient is not None:
            self.on_impatient()

    def replaced(self) -> None:
        """Start a patient shutdown: a successor serves."""
        if not self.begun.is_set():
            self.is_patient = True
            self.begun.set()

    def install_handlers(self) -> None:
        """Install the signal handlers of a process without a supervisor."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._begin_or_cut)

    def install_child_handlers(self) -> None:
        """Install the signal handlers of a child process."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(STOPPED, self.begin)
        loop.add_signal_handler(REPLACED, self.replaced)
        loop.add_signal_handler(CUT_SHORT, self._cut)

    def orphaned(self, lifeline: int) -> None:
        """Start the shutdown because the supervisor has vanished, which would restart processes."""
        asyncio.get_running_loop().remove_reader(lifeline)
        self.begin()

    def _begin_or_cut(self) -> None:
        if self.begun.is_set() and not self.is_patient:
            self._cut()
        else:
            self.begin()

    def _cut(self) -> None:
        self.begun.set()
        self.cut_short.set()
