"""Signals that a process without an event loop can wait for.

Signal handlers do nothing: the interpreter writes each signal's number into a socket (`signal.set_wakeup_fd`), which is
read.
"""

from __future__ import annotations

import select
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Self

HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2, signal.SIGCHLD)

IGNORED_BY_CHILDREN = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals ignored by children: SIGUSR2 always, as it is for the supervisor; the others until a handler is installed."""


def _noted(number: int, frame: FrameType | None) -> None:
    """Do nothing: the signal's number is already written to the wake-up socket."""


class Signals:
    """Context manager that catches signals for `wait`."""

    def __enter__(self) -> Self:
        self._reading, self._writing = socket.socketpair()
        self._reading.setblocking(False)
        self._writing.setblocking(False)
        signal.set_wakeup_fd(self._writing.fileno(), warn_on_full_buffer=False)
        for number in HEARD:
            signal.signal(number, _noted)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)
        self._reading.close()
        self._writing.close()

    def wait(self, also: list[int], seconds: float | None) -> list[int]:
        """Wait for a signal, a readable descriptor of `also`, or the timeout; return the numbers of the signals
        received.
        """
        select.select([self._reading.fileno(), *also], (), (), seconds)
        try:
            return list(self._reading.recv(256))
        except BlockingIOError:
            return []

    @contextmanager
    def held(self) -> Iterator[None]:
        """Block signals, so that none is delivered to a child that is being forked."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def forget(self) -> None:
        """Restore the default signal handling in a child."""
        signal.set_wakeup_fd(-1)
        self._reading.close()
        self._writing.close()
        for number in HEARD:
            signal.signal(number, signal.SIG_DFL)
        for number in IGNORED_BY_CHILDREN:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
