"""Signals as numbers that can be waited for, of a process without an event loop.

Rule of this file: handlers do nothing; the interpreter writes each signal's number into a socket, and that is read.
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

IGNORED_BY_CHILDREN = (signal.SIGHUP, signal.SIGUSR2)
"""SIGUSR2 for good, which is for the supervisor; SIGHUP until it is heard."""


def _noted(number: int, frame: FrameType | None) -> None:
    """The number is on its way to `wait`."""


class Signals:
    """A context in which `wait` tells what was signalled."""

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
        """Until a signal comes, or one of `also` is readable, or the time is over: the signals' numbers."""
        select.select([self._reading.fileno(), *also], (), (), seconds)
        try:
            return list(self._reading.recv(256))
        except BlockingIOError:
            return []

    @contextmanager
    def held(self) -> Iterator[None]:
        """Signals come later, so that none is taken by a child that is just being made."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def forget(self) -> None:
        """In a child: signals are its own from here on."""
        signal.set_wakeup_fd(-1)
        self._reading.close()
        self._writing.close()
        for number in HEARD:
            signal.signal(number, signal.SIG_DFL)
        for number in IGNORED_BY_CHILDREN:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
