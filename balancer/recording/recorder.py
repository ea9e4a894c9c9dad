"""Requests that have ended, on their way to a recording, by a thread of their own.

Rule of this file: as with the access log, the data path appends one tuple and goes on; what does not fit in the queue
or in the file is dropped and counted. No secret is written: a key leaves only a hash with a salt that is forgotten with
the process, and paths only where they are asked for, without their query.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from threading import Event, Thread
from typing import Any, Final

from balancer.errors import ForwardingError, LogFailed
from balancer.log.formats import Entry, outcome, phases
from balancer.log.output import FLAGS
from balancer.recording.format import (
    END,
    ENDPOINT,
    ENDS,
    FORMAT,
    NAN,
    NOWHERE,
    PATH,
    START,
    Row,
    packed,
    rows,
    told,
)
from policies.routing.facts import Endpoint

MODE: Final = 0o600
"""Permissions of a new file: it says who asked for what, and is read by whoever runs the unit."""

GATHERING: Final = 1.0
"""Seconds for which the thread lets requests gather: more rows to a block are smaller together."""

BATCH: Final = 512
"""Rows of a block."""

BREATH: Final = 32
"""Rows after which the thread lets go of the interpreter."""

FLUSH_LIMIT: Final = 2.0
"""Seconds that a stop waits for the last rows."""

LOCK_PAUSE: Final = 0.25
"""Seconds between two looks whether another process has done with the file."""

PATHS: Final = 4096
"""Different paths that are told apart; further ones count as none."""

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_ENDS: Final = {name: number for number, name in enumerate(ENDS)}


@dataclass(slots=True)
class RecordCounts:
    """Requests since the start of the recording, and bytes of the file. `dropped` found the queue full, or the file."""

    written: int = 0
    dropped: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True)
class About:
    """What a recording says of itself. `offset` turns the unit's clock into Unix time, `began_at` is on that clock, in
    seconds; `facts` are told as they are. `connect_of` gives the seconds that connecting to an endpoint takes, `key_of`
    whom a request belongs to."""

    began_at: float
    offset: float
    facts: dict[str, Any]
    connect_of: Callable[[str], float]
    key_of: Callable[[Entry], bytes]


class Recorder:
    """One recording. At most `limit` bytes of file and `queue` requests that wait; with `paths` they are kept, too.

    Raises `LogFailed` where the file cannot be opened. `before` is the thread of a recording into the same file that is
    about to end.
    """

    def __init__(
        self,
        path: str,
        about: About,
        *,
        salt: bytes,
        limit: int,
        queue: int,
        paths: bool = False,
        before: Thread | None = None,
    ) -> None:
        self.counts = RecordCounts()
        self.is_full = False
        self.problem: str | None = None
        self._about = about
        self._salt = salt
        self._limit = limit
        self._room = queue
        self._keeps_paths = paths
        self._before = before
        self._queue: deque[Entry] = deque()
        self._endpoints: dict[str, tuple[Endpoint, int]] = {}
        self._paths: dict[bytes, int] = {}
        self._wakes = Event()
        self._stops = Event()
        self.begun = Event()  # the file is ours, and says so
        try:
            self._fd = os.open(path, FLAGS, MODE)
        except OSError as error:
            raise LogFailed(f"record.path: cannot open {path}: {error.strerror}") from None
        self.thread = Thread(target=self._run, name="recorder", daemon=True)
        self.thread.start()

    # --- called on the data path

    def takes(self, status: int, error: ForwardingError | None) -> bool:
        """Journal: every request is wanted."""
        return True

    def add(self, entry: Entry) -> None:
        """Let it be written, or drop it."""
        queue = self._queue
        if self.is_full or len(queue) >= self._room:
            self.counts.dropped += 1
            return
        queue.append(entry)
        if len(queue) == 1:  # asked afterwards: the thread may have emptied it in between
            self._wakes.set()

    # --- called now and then

    @property
    def waiting(self) -> int:
        """Requests that are not written yet."""
        return len(self._queue)

    def retire(self) -> None:
        """Write what waits and close, while everything else goes on. Requests that end later are too late."""
        self._room = 0
        self._stops.set()
        self._wakes.set()

    def stop(self) -> None:
        """The same, and wait for it, for at most `FLUSH_LIMIT` seconds."""
        self.retire()
        self.thread.join(FLUSH_LIMIT)

    # --- the thread

    def _run(self) -> None:
        if self._before is not None:
            self._before.join()
        if not self._has_file_alone():
            self.counts.dropped += len(self._queue)
            self._queue.clear()
            os.close(self._fd)
            return
        self.counts.size = os.fstat(self._fd).st_size
        about = self._about
        start = {"format": FORMAT, "began": about.began_at + about.offset, **about.facts}
        self._write(told(START, {"steelyard": "recording", **start}))
        self.begun.set()
        while not self._stops.is_set():
            self._wakes.wait()
            self._stops.wait(GATHERING)
            self._wakes.clear()
            self._write_all()
        self._write_all()
        self._write_end()
        os.close(self._fd)

    def _has_file_alone(self) -> bool:
        """Wait until no other process writes there, as the predecessor does in a restart: blocks of two recordings must
        not mix. False where it has to end before that."""
        while not is_locked(self._fd):
            if self._stops.wait(LOCK_PAUSE):
                return False
        return True

    def _write_all(self) -> None:
        while self._queue and not self.is_full:
            names: list[bytes] = []
            batch: list[bytes] = []
            while self._queue and len(batch) < BATCH:
                row = self._row(self._queue.popleft(), names)
                if row is not None:
                    batch.append(packed(row))
                if len(batch) % BREATH == 0:
                    time.sleep(0)
            if batch and self._write(b"".join(names) + rows(batch)):
                self.counts.written += len(batch)
            else:
                self.counts.dropped += len(batch)
        while self.is_full and self._queue:
            self._queue.popleft()
            self.counts.dropped += 1

    def _write_end(self) -> None:
        """What is known better by now, and that the recording is whole: these few bytes may go beyond the limit."""
        known = [self._describe(endpoint, number) for endpoint, number in self._endpoints.values()]
        counts = {"written": self.counts.written, "dropped": self.counts.dropped}
        self._put(b"".join(known) + told(END, counts))

    def _write(self, data: bytes) -> bool:
        """Whether it is written; where it is not, nothing more will be."""
        if self.counts.size + len(data) > self._limit:
            self.is_full = True
            return False
        return self._put(data)

    def _put(self, data: bytes) -> bool:
        if self.problem is not None:
            return False
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError as error:
            self.problem = error.strerror or str(error)
            self.is_full = True
            return False
        self.counts.size += len(data)
        return True

    def _row(self, entry: Entry, names: list[bytes]) -> Row | None:
        """None for what is no request to a worker. Blocks that the row refers to are added to `names`."""
        end, status, bytes_out = outcome(entry)
        if end not in _ENDS:
            return None
        times, load = phases(entry), entry.load
        head_at, began = entry.arrived
        return Row(
            (head_at or began) - self._about.began_at,
            times.queue,
            or_nan(times.connect),
            or_nan(times.first_byte),
            or_nan(times.service),
            or_nan(load.service_time if load is not None else None),
            int.from_bytes(blake2b(self._about.key_of(entry), key=self._salt, digest_size=8).digest(), "big"),
            entry.bytes_in,
            bytes_out,
            self._endpoint(entry.endpoint, names),
            self._path(entry.target, names),
            status,
            entry.attempts,
            _ENDS[end],
        )

    def _endpoint(self, endpoint: Endpoint | None, names: list[bytes]) -> int:
        if endpoint is None:
            return NOWHERE
        known = self._endpoints.get(endpoint.id)
        if known is not None:
            return known[1]
        number = len(self._endpoints)
        if number >= NOWHERE:
            return NOWHERE
        self._endpoints[endpoint.id] = endpoint, number
        names.append(self._describe(endpoint, number))
        return number

    def _describe(self, endpoint: Endpoint, number: int) -> bytes:
        return told(ENDPOINT, {
            "number": number,
            "id": endpoint.id,
            "region": endpoint.region,
            "weight": endpoint.weight,
            "max_in_flight": endpoint.max_in_flight,
            "connect": round(self._about.connect_of(endpoint.id), 6),
        })  # fmt: skip

    def _path(self, target: bytes, names: list[bytes]) -> int:
        if not self._keeps_paths:
            return 0
        path = target.partition(b"?")[0]
        number = self._paths.get(path)
        if number is None and len(self._paths) < PATHS:
            number = self._paths[path] = len(self._paths) + 1
            names.append(told(PATH, {"number": number, "path": path.decode("latin-1")}))
        return number or 0


def is_locked(fd: int) -> bool:
    """Whether the file is ours alone, until it is closed; true as well where nobody can say."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def or_nan(seconds: float | None) -> float:
    """As a row has it."""
    return NAN if seconds is None else seconds
