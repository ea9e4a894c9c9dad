"""Whoever wants to know of requests that have ended: the access log, a recording, or both.

Rule of this file: for the data path they are one, so that several cost no more tests than one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from balancer.errors import ForwardingError
    from balancer.log.access_log import AccessLog
    from balancer.log.formats import Entry
    from balancer.recording.recorder import Recorder


class Journal(Protocol):
    """`takes` is asked first, and `add` follows it at once where the answer is yes."""

    def takes(self, status: int, error: ForwardingError | None) -> bool: ...
    def add(self, entry: Entry) -> None: ...


def journal_of(log: AccessLog | None, recorder: Recorder | None) -> Journal | None:
    """What there is of them, as one."""
    if log is None or recorder is None:
        return log or recorder
    return Both(log, recorder)


class Both:
    """Every entry is the recording's; what `log` takes of them is its own, too."""

    def __init__(self, log: AccessLog, recorder: Recorder) -> None:
        self._log = log
        self._recorder = recorder
        self._is_logged = False

    def takes(self, status: int, error: ForwardingError | None) -> bool:
        """Whether the log wants it, is found out while it is known how it ended."""
        self._is_logged = self._log.takes(status, error)
        return True

    def add(self, entry: Entry) -> None:
        """To those who want it."""
        self._recorder.add(entry)
        if self._is_logged:
            self._log.add(entry)
