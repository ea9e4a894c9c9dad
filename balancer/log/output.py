"""Output of the access log: a file in append mode, or standard output; and locks of files.

Once open, nothing raises. A full disk, a broken pipe or a failed reopen is reported once on standard error, and lines
are dropped until writing works again. A line that was begun is finished first.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable
from contextlib import suppress

from balancer.config.problems import ConfigError
from balancer.errors import LogFailed
from balancer.syntax.printable import one_line, printable

STANDARD_OUTPUT = 1
FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
MODE = 0o640
"""Not readable by others: the log has clients' addresses and request targets."""


def complain(line: str) -> None:
    """Print a message for the operator on standard error. It is lost if that cannot be written."""
    with suppress(OSError):
        print(f"balancer: {printable(line)}", file=sys.stderr, flush=True)


def complain_of(error: Exception, *lines: str) -> int:
    """Print an error: these lines, or its message, or each problem of the configuration. Return the exit code."""
    problems = error.problems if isinstance(error, ConfigError) else lines or (str(error),)
    for problem in problems:
        complain(one_line(problem))
    return 2


def try_lock(fd: int) -> bool:
    """Lock the file until it is closed; return whether that succeeded. True where a file system has no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


class LogOutput:
    """An open log; `path` None is standard output. Raises `LogFailed` if the file cannot be opened."""

    def __init__(self, path: str | None, say: Callable[[str], None] = complain) -> None:
        self._path = path
        self._say = say
        self._has_complained = False
        self._rest = b""  # of a line that was begun
        self._fd = STANDARD_OUTPUT if path is None else self._open(path)

    def write(self, data: bytes) -> int:
        """Append whole lines; return how many are lost. May block as long as the reader of a pipe."""
        data, at = self._rest + data, 0
        try:
            while at < len(data):
                at += os.write(self._fd, memoryview(data)[at:])
        except OSError as error:
            end = data.find(b"\n", at - 1) + 1 if at else len(self._rest)  # of the line that was begun
            self._rest = data[at:end]
            where = "standard output" if self._path is None else self._path
            self._complain(f"cannot write to {where}: {error.strerror}; entries are lost until it works")
            return data.count(b"\n", end)
        self._rest = b""
        return 0

    def reopen(self) -> None:
        """Open the path again, for log rotation; the old file is kept if that fails."""
        if self._path is None:
            return
        self._has_complained = False
        try:
            fd = self._open(self._path)
        except LogFailed as error:
            self._complain(f"{error}; the old file is kept")
            return
        os.close(self._fd)
        self._fd, self._rest = fd, b""

    def close(self) -> None:
        """Close the file; standard output stays open."""
        if self._path is not None:
            os.close(self._fd)

    @staticmethod
    def _open(path: str) -> int:
        try:
            return os.open(path, FLAGS, MODE)
        except OSError as error:
            raise LogFailed(f"log.path: cannot open {path}: {error.strerror}") from None

    def _complain(self, problem: str) -> None:
        if not self._has_complained:
            self._has_complained = True
            self._say(f"access log: {problem}")
