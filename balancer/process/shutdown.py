"""How a process is told to end, and by whom.

Rule of this file: it only remembers. A process that is alone hears from whoever runs it: the first SIGTERM or SIGINT
begins the end, the second one cuts the grace period short. A process of several hears SIGTERM when others take its
place, those of another program or of its own; SIGINT when the whole unit stops; SIGQUIT to cut the grace period short.
Whoever runs the unit often signals all of its processes at once, so a second SIGTERM says nothing new there.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

REPLACED = signal.SIGTERM
STOPPED = signal.SIGINT
CUT_SHORT = signal.SIGQUIT
"""What a supervisor says to its processes."""


class Ending:
    """`begun` is set when the process is to end, `cut_short` when it is to end at once. `is_patient` while others serve
    in its place, so that there is time for clients that are idle; `on_haste` is called when that is over."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.cut_short = asyncio.Event()
        self.is_patient = False
        self.on_haste: Callable[[], None] | None = None

    def begin(self) -> None:
        """Stop; a second time changes nothing, but for the patience."""
        was_patient, self.is_patient = self.is_patient, False
        self.begun.set()
        if was_patient and self.on_haste is not None:
            self.on_haste()

    def replaced(self) -> None:
        """Others serve in its place."""
        if not self.begun.is_set():
            self.is_patient = True
            self.begun.set()

    def hear_everybody(self) -> None:
        """Of a process that is alone."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._begin_or_cut)

    def hear_supervisor(self) -> None:
        """Of a process of several."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(STOPPED, self.begin)
        loop.add_signal_handler(REPLACED, self.replaced)
        loop.add_signal_handler(CUT_SHORT, self._cut)

    def orphaned(self, lifeline: int) -> None:
        """The supervisor has vanished: nobody would start another."""
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
