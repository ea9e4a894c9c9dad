"""A recording of the balancer, read back: one array of requests, and who served them.

Rule of this file: it goes by the documented format alone (`docs/live.md`). Whole blocks are taken, whatever stands
behind the last of them: a file may be read while it is written. Several files, as several processes write them, are one
recording where they overlap in time.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.errors import BadInputError
from experiments.load.samples import Floats

HEAD = struct.Struct("<cI")
ROW = np.dtype([
    ("at", "<f8"),
    ("queue", "<f4"),
    ("connect", "<f4"),
    ("first_byte", "<f4"),
    ("service", "<f4"),
    ("reported", "<f4"),
    ("key", "<u8"),
    ("bytes_in", "<u4"),
    ("bytes_out", "<u4"),
    ("endpoint", "<u2"),
    ("path", "<u2"),
    ("status", "<u2"),
    ("attempts", "u1"),
    ("end", "u1"),
])  # fmt: skip
NOWHERE = 0xFFFF
ENDS = (
    *("ok", "error_status", "refused", "timeout", "reset", "abandoned"),
    *("rejected", "unavailable", "tunnel"),
)
OK = ENDS.index("ok")
TUNNEL = ENDS.index("tunnel")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A worker as the unit knew it. `connect` is the seconds of a handshake with it, 0 where none is known."""

    id: str
    region: str
    weight: float
    connect: float


@dataclass(frozen=True, slots=True)
class Recording:
    """`rows` has the fields of ROW, shape (n,), by arrival; `at` in seconds from the first of them, `endpoint` is an
    index into `endpoints`, -1 for nobody. `policy` and `home_region` are those at its start; `dropped` requests came
    and were not recorded. `left_out` recordings of the same files do not overlap with this one, the last."""

    rows: NDArray[Any]
    endpoints: tuple[Endpoint, ...]
    began: float
    policy: dict[str, Any]
    home_region: str | None
    dropped: int
    left_out: int

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def instants(self) -> Floats:
        """When each arrived, seconds from the first; ascending."""
        return np.asarray(self.rows["at"], dtype=np.float64)

    @property
    def regions(self) -> tuple[str, ...]:
        """In order of first appearance."""
        return tuple(dict.fromkeys(endpoint.region for endpoint in self.endpoints))

    @property
    def total(self) -> Floats:
        """Seconds from arrival to the last byte, shape (n,); nan where none came."""
        rows = self.rows
        return np.asarray(rows["queue"] + np.nan_to_num(rows["connect"]) + rows["service"], dtype=np.float64)


@dataclass(slots=True)
class Segment:
    """From one start to the next."""

    about: dict[str, Any]
    endpoints: dict[int, dict[str, Any]] = field(default_factory=dict)
    rows: list[NDArray[Any]] = field(default_factory=list)
    dropped: int = 0

    @property
    def began(self) -> float:
        """Unix time in seconds."""
        return float(self.about["began"])

    @property
    def ended(self) -> float:
        """Unix time of the last arrival."""
        return self.began + max((float(rows["at"].max()) for rows in self.rows), default=0.0)


def is_recording(path: Path) -> bool:
    """Whether it begins like one."""
    try:
        with path.open("rb") as file:
            beginning = file.read(HEAD.size + 2)
    except OSError:
        return False
    return beginning[:1] == b"S" and beginning[HEAD.size : HEAD.size + 1] == b"\x78"  # RFC 1950 § 2.2


def read_recording(paths: Sequence[Path]) -> Recording:
    """The last recording in these files. Raises BadInputError."""
    segments = [segment for path in paths for segment in segments_of(path) if segment.rows]
    if not segments:
        raise BadInputError(f"{', '.join(map(str, paths))}: holds no request")
    segments.sort(key=lambda segment: segment.began)
    group = last_group(segments)
    return joined(group, len(segments) - len(group))


def last_group(segments: list[Segment]) -> list[Segment]:
    """The last one, and those that overlap with it in time; `segments` by their beginning."""
    group, begins = [segments[-1]], segments[-1].began
    for segment in reversed(segments[:-1]):
        if segment.ended >= begins:
            group.insert(0, segment)
            begins = min(begins, segment.began)
    return group


def joined(segments: Sequence[Segment], left_out: int) -> Recording:
    """Requests of all, by arrival; tunnels are none."""
    endpoints: dict[str, Endpoint] = {}
    parts = []
    for segment in segments:
        numbers = np.full(NOWHERE + 1, -1, dtype=np.int64)
        for number, told in segment.endpoints.items():
            endpoints[told["id"]] = merged(endpoints.get(told["id"]), told)
            numbers[number] = list(endpoints).index(told["id"])
        rows = np.concatenate(segment.rows)
        wide = np.empty(len(rows), dtype=[(n, "<i8" if n == "endpoint" else ROW[n]) for n in ROW.names or ()])
        for name in ROW.names or ():
            wide[name] = numbers[rows[name]] if name == "endpoint" else rows[name]
        wide["at"] += segment.began
        parts.append(wide[wide["end"] != TUNNEL])
    rows = np.concatenate(parts)
    if not len(rows):
        raise BadInputError("the recording holds tunnels alone")
    rows = rows[np.argsort(rows["at"], kind="stable")]
    began = float(rows["at"][0])
    rows["at"] -= began
    about = segments[-1].about
    dropped = sum(segment.dropped for segment in segments)
    places = tuple(endpoints.values())
    return Recording(rows, places, began, about["policy"], about.get("home_region"), dropped, left_out)


def merged(known: Endpoint | None, told: dict[str, Any]) -> Endpoint:
    """The quickest handshake that any has seen is the nearest to a round trip."""
    seen = [seconds for seconds in (known.connect if known else 0.0, float(told["connect"])) if seconds > 0]
    return Endpoint(told["id"], told["region"], float(told["weight"]), min(seen, default=0.0))


def segments_of(path: Path) -> list[Segment]:
    """All that one file holds. Raises BadInputError."""
    if not is_recording(path):
        reason = "is not a recording of the balancer" if path.is_file() else "cannot be read"
        raise BadInputError(f"{path}: {reason}")
    segments: list[Segment] = []
    try:
        for kind, payload in blocks(path.read_bytes()):
            if kind == b"S":
                segments.append(Segment(checked(path, json.loads(payload))))
            elif kind == b"R" and payload:
                segments[-1].rows.append(np.frombuffer(payload, dtype=ROW))
            elif kind == b"E":
                told = json.loads(payload)
                segments[-1].endpoints[told["number"]] = told
            elif kind == b"Z":
                segments[-1].dropped = json.loads(payload)["dropped"]
    except (OSError, zlib.error, ValueError, KeyError, IndexError) as error:
        raise BadInputError(f"{path}: is damaged: {error}") from None
    return segments


def checked(path: Path, about: dict[str, Any]) -> dict[str, Any]:
    """A start of a format that is known."""
    if about.get("steelyard") != "recording" or about.get("format") != 1:
        raise BadInputError(f"{path}: format {about.get('format')!r} is not known; known: 1")
    return about


def blocks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Kind and payload of each whole block."""
    at = 0
    while at + HEAD.size <= len(data):
        kind, size = HEAD.unpack_from(data, at)
        at += HEAD.size
        if at + size > len(data):
            return
        yield kind, zlib.decompress(data[at : at + size])
        at += size
