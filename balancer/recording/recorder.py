"""Recorder: finished requests are queued by the data path and written to a recording by a separate thread.

The data path only appends an entry; a request that does not fit in the queue or the file is dropped and counted. No
secret may be written: a key is stored as a hash, with a random salt unless one is configured, and paths only on request
and without their query.

A file is a sequence of self-contained blocks. It may end within a block, as after a crash, and may hold several
recordings in sequence: a reader takes whole blocks and starts again at each START. `docs/live.md` specifies the format.

    block = kind (1 byte), length of the payload (4 bytes, little endian), payload (zlib)
"""

from __future__ import annotations

import json
import os
import struct
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from threading import Event, Thread
from typing import Any, Final

from balancer.errors import ForwardingError, LogFailed
from balancer.log.formats import Entry, outcome, phases
from balancer.log.journal import EntryCounts, EntryQueue, taken
from balancer.log.output import FLAGS, try_lock
from policies.facts import Endpoint

FORMAT: Final = 1

START: Final = b"S"
ENDPOINT: Final = b"E"
PATH: Final = b"P"
ROWS: Final = b"R"
CHANGE: Final = b"C"
END: Final = b"Z"

NAN: Final = float("nan")
NOWHERE: Final = 0xFFFF
"""Endpoint number of a request that got no endpoint."""

ENDS: Final = (
    *("ok", "error_status", "refused", "timeout", "reset", "abandoned"),
    *("rejected", "unavailable", "tunnel"),
)
"""Outcomes of a request; the index is the number in a row."""

_HEAD: Final = struct.Struct("<cI")
_ROW: Final = struct.Struct("<d5fQIIHHHBB")
MOST_COUNTED: Final = 0xFFFF_FFFF
MOST_ATTEMPTS: Final = 0xFF
"""Largest numbers for which the fields of a row are wide enough; larger ones are capped."""

COMPRESSION: Final = 6


def block(kind: bytes, payload: bytes) -> bytes:
    """Return one block with a compressed payload."""
    data = zlib.compress(payload, COMPRESSION)
    return _HEAD.pack(kind, len(data)) + data


def encoded(kind: bytes, document: dict[str, Any]) -> bytes:
    """Return a block with a JSON document."""
    return block(kind, json.dumps(document, separators=(",", ":")).encode())


def rows(packed_rows: Iterable[bytes]) -> bytes:
    """Return a block of packed rows."""
    return block(ROWS, b"".join(packed_rows))


MODE: Final = 0o600
"""Permissions of a new file: it has clients' requests, and is for the operator only."""

GATHERING: Final = 1.0
"""Seconds for which the thread collects requests: larger blocks compress better."""

BATCH: Final = 512
"""Rows of a block."""

YIELD_EVERY: Final = 32
"""Rows after which the thread yields the GIL."""

LOCK_PAUSE: Final = 0.25
"""Seconds between two attempts to lock the file while another process writes to it."""

PATHS: Final = 4096
"""Limit of distinct paths; further ones are stored as none."""

_ENDS: Final = {name: number for number, name in enumerate(ENDS)}


@dataclass(slots=True)
class RecordCounts(EntryCounts):
    """Requests since the start, and bytes of the file. `dropped`: the queue or the file was full."""

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


class Recorder(EntryQueue):
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
        super().__init__("recorder", queue)
        self._queue: list[Entry] = []
        self.is_full = False
        self.problem: str | None = None
        self._about = about
        self._salt = salt
        self._most_bytes = limit
        self._keeps_paths = paths
        self._before = before
        self._changes: deque[tuple[float, dict[str, Any]]] = deque()
        self._endpoints: dict[str, tuple[Endpoint, int]] = {}
        self._paths: dict[bytes, int] = {}
        self.begun = Event()  # set once the file is locked and has a START block
        try:
            self._fd = os.open(path, FLAGS, MODE)
        except OSError as error:
            raise LogFailed(f"record.path: cannot open {path}: {error.strerror}") from None
        self.thread.start()

    # --- called on the data path

    def takes(self, status: int, error: ForwardingError | None) -> bool:
        """Return True: a recording takes every request."""
        return True

    def add(self, entry: Entry) -> None:
        if len(self._queue) >= self._limit:
            self.counts.dropped += 1
            return
        self._queue.append(entry)
        if (
            len(self._queue) == 1
        ):  # checked after the append: the thread may have emptied the queue in between
            self._wakes.set()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    # --- called outside the data path

    def policy_changed(self, now: float, policy: dict[str, Any]) -> None:
        """Register the policy, name and options, of requests routed from `now` on."""
        self._changes.append((now, policy))
        self._wakes.set()

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
        for _ in self._gathered(GATHERING):
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
            for entry in taken(self._queue, BATCH):
                row = self._row(entry, names)
                if row is not None:
                    batch.append(row)
                if len(batch) % YIELD_EVERY == 0:
                    time.sleep(0)
            if batch and self._write(b"".join(names) + rows(batch)):
                self.counts.written += len(batch)
            else:
                self.counts.dropped += len(batch)
        if self.is_full:
            self.counts.dropped += len(taken(self._queue, len(self._queue)))

    def _write_end(self) -> None:
        """Write updated endpoint blocks and the END block; these few bytes may exceed the limit."""
        known = [self._describe(endpoint, number) for endpoint, number in self._endpoints.values()]
        counts = {"written": self.counts.written, "dropped": self.counts.dropped}
        self._put(b"".join(known) + encoded(END, counts))

    def _write(self, data: bytes) -> bool:
        """Write a block; return False, and stop the recording, if it does not fit or fails."""
        if self.counts.size + len(data) > self._most_bytes:
            self._fill()
            return False
        return self._put(data)

    def _put(self, data: bytes) -> bool:
        if self.problem is not None:
            return False
        whole = os.lseek(self._fd, 0, os.SEEK_END)
        try:
            left = memoryview(data)
            while left:
                written = os.write(self._fd, left)
                left = left[written:]  # compiled, a call within the brackets would be made twice
        except OSError as error:
            os.ftruncate(self._fd, whole)  # a part of a block would hide all recordings behind it
            self.problem = error.strerror or str(error)
            self._fill()
            return False
        self.counts.size += len(data)
        return True

    def _fill(self) -> None:
        """Drop all further requests."""
        self.is_full, self._limit = True, 0

    def _row(self, entry: Entry, names: list[bytes]) -> bytes | None:
        """Return the row of an entry; None if it is no request to a worker. Blocks that it refers to are added to
        `names`.

        The first value is in seconds from the start of the recording. Durations are in seconds, nan if a phase was not
        reached or is unknown; `service` runs from sent to the last byte, and the next one is the service time that the
        worker reported. The key is a salted hash; endpoint and path are numbers of blocks, path 0 is none.
        """
        end, status, bytes_out = outcome(entry)
        if end not in _ENDS or (end == "rejected" and not entry.attempts):
            return None
        times, load = phases(entry), entry.load
        head_at, began = entry.arrived
        return _ROW.pack(
            (head_at or began) - self._about.began_at,
            times.queue,
            times.connect,
            times.first_byte,
            times.service,
            NAN if load is None or load.service_time is None else load.service_time,
            int.from_bytes(blake2b(self._about.key_of(entry), key=self._salt, digest_size=8).digest(), "big"),
            min(entry.bytes_in, MOST_COUNTED),
            min(bytes_out, MOST_COUNTED),
            self._endpoint(entry.endpoint, names),
            self._path(entry.target, names),
            status,
            min(entry.attempts, MOST_ATTEMPTS),
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
            "priority": endpoint.priority,
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
