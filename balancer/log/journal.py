"""Consumers of finished requests: the access log and a recording, or both behind one interface.

The data path has one journal, so that several together cost no more tests than one.
"""

from __future__ import annotations

from typing import Protocol

from balancer.errors import ForwardingError
from balancer.log.chosen import ChosenFields
from balancer.log.formats import Entry


class Journal(Protocol):
    """Consumer of entries: `takes` is called first, and directly after it `add` if it returned True. `chosen` has what
    entries need beside their own values.
    """

    @property
    def chosen(self) -> ChosenFields | None: ...

    def takes(self, status: int, error: ForwardingError | None) -> bool: ...
    def add(self, entry: Entry) -> None: ...


def journal_of(log: Journal | None, recorder: Journal | None) -> Journal | None:
    """Return a journal of the given consumers, of which `recorder` takes every entry; None if there are none."""
    if log is None or recorder is None:
        return log or recorder
    return Both(log, recorder)


class Both:
    """Journal of a log, and of a recorder that gets every entry."""

    def __init__(self, log: Journal, recorder: Journal) -> None:
        self._log = log
        self._recorder = recorder
        self._is_logged = False

    @property
    def chosen(self) -> ChosenFields | None:
        return self._log.chosen

    def takes(self, status: int, error: ForwardingError | None) -> bool:
        """Return True, and remember whether the log takes the entry: `add` does not know the error."""
        self._is_logged = self._log.takes(status, error)
        return True

    def add(self, entry: Entry) -> None:
        """Add an entry to the recorder, and to the log if that takes it."""
        self._recorder.add(entry)
        if self._is_logged:
            self._log.add(entry)
