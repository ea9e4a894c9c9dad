"""Recorder: finished requests are queued by the data path and written to a recording by a separate thread.

The data path only appends a tuple; a request that does not fit in the queue or the file is dropped and counted. No
secret may be written: a key is stored as a hash, with a random salt unless one is configured, and paths only on request
and without their query.
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
    CHANGE,
    END,
    ENDPOINT,
    ENDS,
    FORMAT,
    NAN,
    NOWHERE,
    PATH,
    START,
    RecordedRow,
    encoded,
    packed,
    rows,
)
from policies.facts import Endpoint

MODE: Final = 0o600
"""Permissions of a new file: it has clients' requests, and is for the operator only."""

GATHERING: Final = 1.0
"""Seconds for which the thread collects requests: larger blocks compress better."""

BATCH: Final = 512
"""Rows of a block."""

YIELD_EVERY: Final = 32
"""Rows after which the thread yields the GIL."""

FLUSH_LIMIT: Final = 2.0
"""Seconds that a stop waits for the last rows."""

LOCK_PAUSE: Final = 0.25
"""Seconds between two attempts to lock the file while another process writes to it."""

PATHS: Final = 4096
"""Limit of distinct paths; further ones are stored as none."""

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_ENDS: Final = {name: number for number, name in enumerate(ENDS)}


@dataclass(slots=True)
class RecordCounts:
    """Requests since the start, and bytes of the file. `dropped`: the queue or the file was full."""

    written: int = 0
    dropped: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True)
class RecordingMetadata:
    """Metadata of a recording.

    `began_at` is in seconds of the process's clock, `offset` converts that to Unix time; `facts` are stored unchanged.
    `connect_of` returns the connect time to an endpoint in seconds, `key_of` the key of a request.
    """

    began_at: float
    offset: float
    facts: dict[str, Any]
    connect_of: Callable[[str], float]
    key_of: Callable[[Entry], bytes]


class Recorder:
    """One recording of at most `limit` bytes of file, with at most `queue` waiting requests; `paths` keeps request
    paths.

    `before` is the thread of a recording to the same file that is about to end. Raises `LogFailed` if the file cannot
    be opened.
    """

    chosen: Final = None  # a recording has no chosen fields

    def __init__(
        self,
        path: str,
        about: RecordingMetadata,
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
        self._changes: deque[tuple[float, dict[str, Any]]] = deque()
        self._endpoints: dict[str, tuple[Endpoint, int]] = {}
        self._paths: dict[bytes, int] = {}
        self._wakes = Event()
        self._stops = Event()
        self.begun = Event()  # set once the file is locked and has a START block
        try:
            self._fd = os.open(path, FLAGS, MODE)
        except OSError as error:
            raise LogFailed(f"record.path: cannot open {path}: {error.strerror}") from None
        self.thread = Thread(target=self._run, name="recorder", daemon=True)
        self.thread.start()

    # --- called on the data path

    def takes(self, status: int, error: ForwardingError | None) -> bool:
        """Return True: a recording takes every request."""
        return True

    def add(self, entry: Entry) -> None:
        """Queue an entry, or drop it if the queue or the file is full."""
        queue = self._queue
        if self.is_full or len(queue) >= self._room:
            self.counts.dropped += 1
            return
        queue.append(entry)
        if len(queue) == 1:  # checked after the append: the thread may have emptied the queue in between
            self._wakes.set()

    # --- called outside the data path

    @property
    def waiting(self) -> int:
        """Requests that are not written yet."""
        return len(self._queue)

    def policy_changed(self, now: float, policy: dict[str, Any]) -> None:
        """Register the policy, name and options, of requests routed from `now` on."""
        self._changes.append((now, policy))
        self._wakes.set()

    def retire(self) -> None:
        """Write the queued requests and close, without waiting. Later requests are dropped."""
        self._room = 0
        self._stops.set()
        self._wakes.set()

    def stop(self) -> None:
        """Write the queued requests and close, waiting at most `FLUSH_LIMIT` seconds."""
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
        self._write(encoded(START, {"steelyard": "recording", **start}))
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
        """Wait for the exclusive lock on the file; return False if the recording ends before.

        At a hot restart the predecessor may still write, and blocks of two recordings must not mix.
        """
        while not try_lock(self._fd):
            if self._stops.wait(LOCK_PAUSE):
                return False
        return True

    def _write_all(self) -> None:
        while self._changes:
            at, policy = self._changes.popleft()
            self._write(encoded(CHANGE, {"at": round(at - self._about.began_at, 6), "policy": policy}))
        while self._queue and not self.is_full:
            names: list[bytes] = []
            batch: list[bytes] = []
            while self._queue and len(batch) < BATCH:
                row = self._row(self._queue.popleft(), names)
                if row is not None:
                    batch.append(packed(row))
                if len(batch) % YIELD_EVERY == 0:
                    time.sleep(0)
            if batch and self._write(b"".join(names) + rows(batch)):
                self.counts.written += len(batch)
            else:
                self.counts.dropped += len(batch)
        while self.is_full and self._queue:
            self._queue.popleft()
            self.counts.dropped += 1

    def _write_end(self) -> None:
        """Write updated endpoint blocks and the END block; these few bytes may exceed the limit."""
        known = [self._describe(endpoint, number) for endpoint, number in self._endpoints.values()]
        counts = {"written": self.counts.written, "dropped": self.counts.dropped}
        self._put(b"".join(known) + encoded(END, counts))

    def _write(self, data: bytes) -> bool:
        """Write a block; return False, and stop the recording, if it does not fit or fails."""
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

    def _row(self, entry: Entry, names: list[bytes]) -> RecordedRow | None:
        """Return the row of an entry; None if it is no request to a worker. Blocks that it refers to are added to
        `names`.
        """
        end, status, bytes_out = outcome(entry)
        if end not in _ENDS:
            return None
        times, load = phases(entry), entry.load
        head_at, began = entry.arrived
        return RecordedRow(
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
        return encoded(ENDPOINT, {
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
            names.append(encoded(PATH, {"number": number, "path": path.decode("latin-1")}))
        return number or 0


def try_lock(fd: int) -> bool:
    """Lock the file until it is closed; return whether that succeeded. True where locks are not supported."""
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
    """Return nan for None."""
    return NAN if seconds is None else seconds
