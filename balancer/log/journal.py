"""Consumers of finished requests: the access log and a recording, each a queue with a thread that writes it, or both
behind one interface, and the fields of messages that they ask for.

The data path has one journal, so that several together cost no more tests than one.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from threading import Event, Thread
from typing import Final, Protocol, TypeVar

from balancer.errors import ForwardingError
from balancer.http.h1.fields import found, lines_of
from balancer.log.formats import Entry, Extra


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


Item = TypeVar("Item")

FLUSH_LIMIT: Final = 2.0
"""Seconds that a stop waits for the last entries: the reader of a pipe may never take them."""


@dataclass(slots=True)
class EntryCounts:
    """Entries since the start: `dropped` because the queue was full."""

    written: int = 0
    dropped: int = 0


class EntryQueue:
    """Queue of at most `limit` entries, with the thread that writes them; abstract. `add` must be called from one
    thread, and never waits."""

    def __init__(self, name: str, limit: int) -> None:
        self._limit = limit
        self._wakes = Event()
        self._stops = Event()
        self.thread = Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def add(self, entry: Entry) -> None:
        """Queue an entry, or drop it if the queue is full."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """Entries that are not written yet."""

    def retire(self) -> None:
        """Write the queued entries and close, without waiting. Later entries are dropped."""
        self._limit = 0
        self._stops.set()
        self._wakes.set()

    def stop(self) -> None:
        """Write the queued entries and close, waiting at most `FLUSH_LIMIT` seconds."""
        self.retire()
        if self.thread.is_alive():
            self.thread.join(FLUSH_LIMIT)

    @abstractmethod
    def _run(self) -> None:
        """Write what is queued, until the stop; called by the thread."""

    def _gathered(self, seconds: float) -> Iterator[None]:
        """Yield when entries were gathered for so many seconds, the last time after the stop."""
        while not self._stops.is_set():
            self._wakes.wait()
            self._stops.wait(seconds)
            self._wakes.clear()
            yield
        yield


def taken(queue: list[Item], limit: int) -> list[Item]:
    """Take at most `limit` items from a queue to which another thread may add meanwhile."""
    items = queue[:limit]
    del queue[: len(items)]
    return items


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


VALUE_LIMIT: Final = 2048
"""Bytes of a field that are kept, all its lines together."""

NONE: Final[Mapping[bytes, bytes]] = {}


class ChosenFields:
    """The names of fields, in lower case, that are taken from the heads of requests and responses when a request ends.

    None of it is called unless `log.fields`, or the format, names such a field.
    """

    def __init__(self, of_request: Iterable[bytes], of_response: Iterable[bytes]) -> None:
        self._of_request = _lines(of_request)
        self.of_response = _lines(of_response)

    def extra(self, head: bytes, response: bytes, route: str = "") -> Extra:
        """Return what an entry has beside its own values; `head` is that of the request, `response` the fields of the
        response, b"" without one.
        """
        return Extra(route, _values(self._of_request, head), _values(self.of_response, response))


def _lines(names: Iterable[bytes]) -> re.Pattern[bytes] | None:
    parts = sorted({re.escape(name) for name in names})
    return lines_of(b"|".join(parts)) if parts else None


def _values(lines: re.Pattern[bytes] | None, block: bytes) -> Mapping[bytes, bytes]:
    """Return the values of fields by name; those of several lines are joined as one list (RFC 9110 § 5.3)."""
    if lines is None or not block:
        return NONE
    values: dict[bytes, bytes] = {}
    for name, value, _ in found(lines, block):
        before = values.get(name)
        values[name] = (value if before is None else b"%b, %b" % (before, value))[:VALUE_LIMIT]
    return values
